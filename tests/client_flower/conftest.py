from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from fedrec.federation.coding import coded, deflated
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Answer, Invitation, Terms
from fedrec.federation.reports import block
from fedrec.federation.wire import pack_invitation, pack_terms, read_answer
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee

TERMS = Terms("run", "recipe", "ratings", (1.0, 5.0), ("a", "b", "c"))
PLAN = calibrate(Guarantee(5.0, 1e-5), {"first": 1.0})
SPEC = ReleaseSpec("first", (block("x", "linear", rows=3, width=2),))


@dataclass
class Recorder:
    """A participant that remembers what it was asked, and answers or raises what it was told to."""

    name: str = "library"
    fault: Exception | None = None
    terms: list[Terms] = field(default_factory=list)
    invitations: list[Invitation] = field(default_factory=list)

    def join(self, terms: Terms) -> Answer:
        self.terms.append(terms)
        return self._said(Answer(self.name, users=2))

    def answer(self, invitation: Invitation) -> Answer:
        self.invitations.append(invitation)
        return self._said(Answer(self.name, users=2, accepted=1, rejected={"busy": 1}))

    def _said(self, answer: Answer) -> Answer:
        if self.fault:
            raise self.fault
        return answer


def as_sent(payload: bytes) -> Array:
    """One array of a question."""
    return Array("uint8", (len(payload),), "fedrec.coding", payload)


@dataclass(frozen=True)
class Post:
    """Messages as a server's side of Flower makes them, and the answers in their replies."""

    terms: Terms = TERMS

    def join(self) -> Message:
        return self.message(
            "query.join",
            RecordDict({"fedrec": ConfigRecord({"terms": deflated(pack_terms(self.terms))})}),
        )

    def ask(
        self,
        *,
        earlier: Mapping[str, npt.NDArray[np.generic]] | None = None,
        **public: npt.NDArray[np.generic],
    ) -> Message:
        header, plan = pack_invitation(
            Invitation("run", PLAN, Question(3, "step", public, (SPEC,)))
        )
        arrays = ArrayRecord(
            {name: as_sent(payload) for name, payload in coded(public, earlier or {}).items()}
        )
        return self.message(
            "query.ask",
            RecordDict(
                {"fedrec": ConfigRecord({"header": header, "plan": plan}), "public": arrays}
            ),
        )

    def message(self, kind: str, content: RecordDict) -> Message:
        metadata = Metadata(7, "message", 1, 2, "", "", 1e9, 3600.0, kind)
        return Message(content, metadata=metadata)  # type: ignore[call-overload]

    def through(self, app: ClientApp, message: Message) -> Answer:
        return self.answer(app(message, Context(7, 2, {}, RecordDict(), {})))

    def answer(self, reply: Message) -> Answer:
        content = reply.content["fedrec"]["answer"]
        assert isinstance(content, bytes)
        return read_answer(content)


@pytest.fixture
def participant() -> Recorder:
    return Recorder()


@pytest.fixture
def post() -> Post:
    return Post()
