"""A serving process that looks at a server's folder whenever it may have changed, and a person who
asks each new model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedrec.errors import FedRecError
from fedrec.serving import ranking
from fedrec_client.clicks import Clicks
from fedrec_client.recommending import Recommender
from fedrec_client.serving_ledger import read_answers
from fedrec_client.serving_link import Left, ServingQuery, ServingReply
from fedrec_server.runs import Runs
from fedrec_server.serving.store import ServedModel, found, load
from tests.simulation.auditor import Broken

SERVED_WHOLE = (
    "whoever serves a server's folder finds a whole bundle of a training that it knows, and at "
    "last the newest"
)
PAID_ONCE = "a person pays once for each history that is asked with"


@dataclass
class Visitor:
    """`state`: a server's folder; `device`: the person's. broken: what did not hold so far."""

    state: Path
    device: Path
    broken: list[Broken] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    _seen: object = None

    def look(self) -> None:
        """Take a new bundle over, if one is there, and ask with one click more than the last
        time."""
        there = found(self.state)
        if there == self._seen:
            return
        self._seen = there
        try:
            model = load(self.state, demo=True)
            if model.version not in [entry.version for entry in Runs(self.state).entries]:
                self.broken.append(
                    Broken(
                        SERVED_WHOLE, f"version {model.version} is of no training of this folder"
                    )
                )
            self.versions.append(model.version)
            self._ask(model)
        except FedRecError as failure:
            self.broken.append(Broken(SERVED_WHOLE, failure.cause))

    def judge(self) -> list[Broken]:
        """Everything that does not hold, at the end."""
        finished = Runs(self.state).finished
        newest = [] if finished is None or not finished.version else [finished.version]
        if self.versions[-1:] != newest:
            self.broken.append(
                Broken(SERVED_WHOLE, f"served were {self.versions}, the newest is {newest}")
            )
        path = self.device / "ledger.sqlite"
        paid = [answer.version for answer in read_answers(path)] if path.exists() else []
        if paid != self.versions:
            self.broken.append(
                Broken(PAID_ONCE, f"paid were answers of {paid}, asked was of {self.versions}")
            )
        return self.broken

    def _ask(self, model: ServedModel) -> None:
        history = Clicks.of([f"item-{number}" for number in range(len(self.versions))])
        with Recommender(
            _Direct(model), self.device, epsilon=5.0, limit=20.0, via="server"
        ) as person:
            first, again = (person.recommend(history, k=2) for _ in range(2))
        if not first.fresh or again.fresh or first.bundle.version != model.version:
            self.broken.append(
                Broken(
                    PAID_ONCE,
                    f"an answer of {first.bundle.version}: fresh {first.fresh}, then {again.fresh}",
                )
            )


@dataclass
class _Direct:
    """A serving server without a network."""

    model: ServedModel
    journal: list[Left] = field(default_factory=list)

    def newest(self) -> str:
        return self.model.version

    def bundle(self, version: str) -> Iterator[bytes]:
        yield self.model.piece(0, self.model.size)

    def recommend(self, query: ServingQuery) -> ServingReply:
        self.journal.append(Left("direct", (), query.sent.tobytes()))
        [best] = self.model.rank([ranking.Query(query.sent, query.k, query.category_bits)])
        return ServingReply(query.version, best.items.astype(np.int64), best.scores)

    def close(self) -> None:
        """Nothing is open."""
