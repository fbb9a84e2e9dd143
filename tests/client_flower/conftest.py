from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from fedrec.federation.coding import coded, deflated
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Answer, Invitation, Terms
from fedrec.federation.reports import block
from fedrec.federation.round_messages import RoundMessage, said
from fedrec.federation.wire import pack_invitation, pack_terms, read_answer
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.requests import Requests

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


@dataclass(frozen=True)
class Post:
    """Messages as a server makes them, and the answers in their replies."""

    terms: Terms = TERMS

    def join(self) -> RoundMessage:
        return RoundMessage(said(terms=deflated(pack_terms(self.terms))), kind="join")

    def ask(
        self,
        *,
        earlier: Mapping[str, npt.NDArray[np.generic]] | None = None,
        **public: npt.NDArray[np.generic],
    ) -> RoundMessage:
        header, plan = pack_invitation(
            Invitation("run", PLAN, Question(3, "step", public, (SPEC,)))
        )
        return RoundMessage(said(header=header, plan=plan), coded(public, earlier or {}), "ask")

    def through(self, requests: Requests, message: RoundMessage) -> Answer:
        return self.answer(requests.answer(message))

    def answer(self, reply: RoundMessage) -> Answer:
        return read_answer(reply.said["answer"])


@pytest.fixture
def participant() -> Recorder:
    return Recorder()


@pytest.fixture
def post() -> Post:
    return Post()
