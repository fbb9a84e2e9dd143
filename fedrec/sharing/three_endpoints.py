"""Three aggregators as the server sees them: one `ReleaseEndpoint`, whose releases are the sums of
three outputs.

NOT YET REVIEWED from outside. The server learns nothing here that it would not learn from one
release (`sharing.servers`): an output leaves its aggregator only once all three stand by an output
of the same users.

The server gives every attempt at a round its number, the same for all three, so that each knows
which attempt the others speak of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import (
    BETWEEN,
    DIFFER,
    Opening,
    Phase,
    Refusal,
    ReleaseEndpoint,
    RoundStatus,
    refused,
)
from fedrec.federation.releases import in_real_units
from fedrec.federation.wire import pack_release, read_header
from fedrec.privacy.calibration import Plan
from fedrec.sharing.record import read_output
from fedrec.sharing.servers import total

_LOOK_AGAIN_S = 0.5  # until all three have released: seldom enough for three calls
_BETWEEN = ","
"""Between the heads of three ledgers, which are hexadecimal."""
_PLACES = ("1", "2", "3")
_ORDER = (Phase.SHORT, Phase.OPEN, Phase.RELEASING, Phase.RELEASED)


@dataclass
class ThreeEndpoints:
    """A `ReleaseEndpoint` over three, in the order of their places."""

    endpoints: Sequence[ReleaseEndpoint]
    clock: Callable[[], float] = time.monotonic
    _plans: dict[str, Plan] = field(default_factory=dict)
    _questions: dict[tuple[str, int], Question] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.endpoints) != 3:
            raise ValueError(
                f"three-party aggregation is of three aggregators, found {len(self.endpoints)}"
            )

    def enrolled(self) -> int:
        """Users whom all three know."""
        return min(endpoint.enrolled() for endpoint in self.endpoints)

    def open_run(self, run: str, plan: Plan) -> None:
        """At all three. Raises RefusedError where one does not take the plan."""
        for endpoint in self.endpoints:
            endpoint.open_run(run, plan)
        self._plans[run] = plan

    def open_round(self, opening: Opening) -> RoundStatus:
        """Find the attempt that all three are at, or begin the next one at all of them.

        Raises RefusedError; its code is `LOST_SHARE` where the round can neither be released nor
        done again.
        """
        header = read_header(opening.header)
        self._questions = {
            (opening.run, opening.round): Question(header.round, header.step, {}, header.specs())
        }
        heads = opening.ledger_head.split(_BETWEEN) if opening.ledger_head else [""] * 3
        if len(heads) != 3:
            raise refused(
                Refusal.STALE_LEDGER,
                "the run was begun with one aggregator, not with three",
                "Begin a run of its own.",
            )
        openings = [replace(opening, ledger_head=head) for head in heads]
        found = [
            endpoint.open_round(asked)
            for endpoint, asked in zip(self.endpoints, openings, strict=True)
        ]
        if any(status.phase is Phase.RELEASED for status in found):
            return self._released(found)
        alike = len({status.attempt for status in found}) == 1 and all(
            status.phase is not Phase.SHORT for status in found
        )
        if alike and all(
            status.quorum == opening.quorum for status in found if status.phase is Phase.OPEN
        ):
            return self._together(found)
        number = 1 + max(status.attempt for status in found)
        begun = [
            endpoint.open_round(replace(asked, attempt=number))
            for endpoint, asked in zip(self.endpoints, openings, strict=True)
        ]
        return self._together(begun)

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Status of all three: as far as the last of them is. Raises RefusedError (`ROUND_UNKNOWN`
        where one has forgotten the round).

        While it waits, all three are asked again and again: one that has forgotten the round leaves
        the others waiting for ever.
        """
        until_s = self.clock() + wait_s
        while True:
            found = self._compared(self._each(lambda endpoint: endpoint.status(run, round)))
            behind = self._together(found)
            left_s = until_s - self.clock()
            if behind.phase in {Phase.RELEASED, Phase.SHORT} or left_s <= 0:
                return behind
            waiting = next(i for i, status in enumerate(found) if status.phase is behind.phase)
            self.endpoints[waiting].status(run, round, wait_s=min(left_s, _LOOK_AGAIN_S))

    def close(self, run: str, round: int) -> RoundStatus:
        """At all three."""
        found = self._each(lambda endpoint: endpoint.close(run, round))
        return self._together(self._compared(found))

    def release(self, run: str, round: int) -> bytes:
        """`wire.pack_release` of the sum of three outputs.

        Raises ProtocolError where they are not of one attempt."""
        question = self._questions.get((run, round))
        plan = self._plans.get(run)
        if question is None or plan is None:
            raise refused(
                Refusal.ROUND_UNKNOWN,
                f"round {round} of run {run!r} was not opened here",
                "Open it first.",
            )
        outputs = [endpoint.release(run, round) for endpoint in self.endpoints]
        return sum_of(outputs, question, plan)[0]

    def _each(self, ask: Callable[[ReleaseEndpoint], RoundStatus]) -> list[RoundStatus]:
        """Every endpoint's answer.

        What one refuses is raised when all were asked: a close must reach everybody. One that has
        ended an attempt whose lists differ for another has nothing to say against that."""
        found = dict[int, RoundStatus]()
        failures = list[RefusedError | UnreachableError]()
        for i, endpoint in enumerate(self.endpoints):
            try:
                found[i] = ask(endpoint)
            except (RefusedError, UnreachableError) as failure:
                failures.append(failure)
        differing = next(filter(_differs, found.values()), None)
        ended = all(getattr(failure, "code", "") == Refusal.ROUND_UNKNOWN for failure in failures)
        if failures and not (differing and ended):
            raise failures[0]
        return [
            found[i] if i in found or differing is None else replace(differing, rejected={})
            for i in range(len(self.endpoints))
        ]

    def _compared(self, found: list[RoundStatus]) -> list[RoundStatus]:
        """Where one has found that lists differ, the others are given time to find whose: of three
        lists the one that differs from both others is the cause."""
        if not any(map(_differs, found)):
            return found
        for i, (endpoint, status) in enumerate(zip(self.endpoints, found, strict=True)):
            if status.phase is not Phase.SHORT:
                with suppress(ProtocolError):
                    asked = status.run, status.round
                    found[i] = endpoint.status(*asked, wait_s=_LOOK_AGAIN_S)
        return found

    def _released(self, found: Sequence[RoundStatus]) -> RoundStatus:
        """One has published. The others stand by an output of the same attempt, or it is lost."""
        attempts = {
            status.attempt for status in found if status.phase in {Phase.RELEASED, Phase.RELEASING}
        }
        lost = [i for i, status in enumerate(found) if status.phase in {Phase.SHORT, Phase.OPEN}]
        if lost or len(attempts) != 1:
            cause = (
                f"round {found[0].round} was published by one aggregator, and aggregator "
                f"{(lost or [0])[0] + 1} has lost its share of it"
            )
            remedy = (
                "Restore the newest backup of its ledger. Without one the run cannot go on: the "
                "round stays charged, and is never repeated."
            )
            raise refused(Refusal.LOST_SHARE, cause, remedy)
        return self._together(found)

    def _together(self, found: Sequence[RoundStatus]) -> RoundStatus:
        """What the server may count on: the earliest phase and the fewest users."""
        least = min(found, key=lambda status: (_ORDER.index(status.phase), status.reported))
        heads = [status.ledger_head for status in found]
        rejected = {k: n for k, n in least.rejected.items() if not k.startswith(DIFFER)}
        for i, status in enumerate(found):
            for place in {*_PLACES} - {_PLACES[i]}:
                if count := status.rejected.get(f"{DIFFER}{place}"):
                    pair = f"{DIFFER}{BETWEEN.join(sorted((_PLACES[i], place)))}"
                    rejected[pair] = max(count, rejected.get(pair, 0))
        return replace(
            least,
            rejected=rejected,
            enrolled=min(status.enrolled for status in found),
            reported=min(status.reported for status in found),
            quorum=max(status.quorum for status in found),
            remaining_s=min(status.remaining_s for status in found),
            release_sha256="",
            ledger_head=_BETWEEN.join(heads) if all(heads) else "",
        )


def _differs(status: RoundStatus) -> bool:
    """Whether it says that lists of users differ."""
    return any(code.startswith(DIFFER) for code in status.rejected)


def sum_of(outputs: Sequence[bytes], question: Question, plan: Plan) -> tuple[bytes, int]:
    """`wire.pack_release` of the sum of three outputs (`record.packed_output`), and the number of
    users in it. Raises ProtocolError where they are none, or not of one attempt."""
    try:
        read = [read_output(output, question) for output in outputs]
    except ValueError as failure:
        raise ProtocolError(
            f"an aggregator's output cannot be read: {failure}", "Ask the operators of all three."
        ) from None
    if len({(ticket, users) for ticket, users, _ in read}) != 1:
        raise ProtocolError(
            f"three outputs of round {question.round} are not of one attempt",
            "Ask the operators of all three.",
        )
    summed = in_real_units(question, total([parts for *_, parts in read]), plan)
    return pack_release(summed), read[0][1]
