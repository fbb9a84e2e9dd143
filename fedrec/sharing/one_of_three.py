"""One of three aggregators through a round: take shares, agree on the users, sum, keep, publish.
Rules, without transport or disk.

Guarantee, unit user (report replaced by the empty one). Against the server, one other aggregator
and any clients, if this aggregator and the third are honest: what leaves them of a round is one
release of two noises (`servers`, `privacy.calibration`), mu-GDP as planned.

Why. (a) An output leaves only by `output`, after `publish`, which is durable and once a round;
asked again, the same bytes leave. (b) An aggregator publishes what it kept for one ticket after
both others said directly, for the same ticket, that they keep an output of the same users. So of
two honest ones that publish under one ticket, both summed the same users. (c) A ticket holds a
nonce that each draws once for an attempt, so masks and noise are fresh in every attempt, and an
attempt has one ticket or none: a peer that shows two nonces ends it. (d) Outputs of two honest
aggregators under different tickets never meet: each is masked by a key of its own attempt that only
they know. (e) Aggregator 2 sums the explicit shares that aggregator 1 passes on
only where they are those of the clients' hashes; to anybody else none is passed on, since
aggregator 0 has both seeds. (f) What was kept and not published may be given up for another
attempt, since it never left and from then on never will. What a lying peer can do: drop users, end
attempts, keep a round from being published.

Peers are asked, they do not call: an answer that is lost or comes twice changes nothing. `advance`
does what can be done next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.errors import ProtocolError
from fedrec.federation.messages import Question
from fedrec.federation.releases import Source, party_noise
from fedrec.privacy.calibration import Plan
from fedrec.sharing.agreement import Agreement
from fedrec.sharing.protocol import KeptOutput, Peer, Standing, Store
from fedrec.sharing.record import packed_output
from fedrec.sharing.servers import masked_output
from fedrec.sharing.shared_users import Attempt


class OneOfThree(Agreement):
    """Aggregator `index` of three, as `Agreement`. noise: where its own comes from."""

    def __init__(
        self,
        index: int,
        names: Sequence[bytes],
        peers: Mapping[int, Peer],
        store: Store,
        noise: Source,
        *,
        enrolled: Callable[[bytes], bool] = lambda user: True,
        folder: Path | None = None,
    ) -> None:
        super().__init__(index, names, peers, store, enrolled=enrolled, folder=folder)
        self._noise = noise

    def open(
        self,
        run: str,
        question: Question,
        plan: Plan,
        digest: bytes,
        *,
        attempt: int,
        needed: int,
        named: bytes = b"",
    ) -> None:
        """Opens an attempt as `Agreement.open` does. Raises ProtocolError also where something was
        published; UnreachableError where a peer might have published what is kept here and does not
        answer.
        """
        round = question.round
        if self._store.published(run, round):
            raise ProtocolError(
                f"round {round} was published: it has no other attempt", "Fetch its output."
            )
        kept = self._store.kept(run, round) if attempt > self._store.attempt(run, round) else None
        if kept is not None:
            if any(self._published_elsewhere(run, round, kept.ticket)):
                raise ProtocolError(
                    f"round {round} was published by a peer",
                    "Wait for this aggregator to publish it too.",
                )
            self._store.abandon(run, round)
        super().open(run, question, plan, digest, attempt=attempt, needed=needed, named=named)

    def output(self, run: str, round: int) -> bytes:
        """`record.packed_output` of a published round, the same bytes every time.

        Raises ProtocolError before."""
        kept = self._store.kept(run, round) if self._store.published(run, round) else None
        if kept is None:
            raise ProtocolError(f"round {round} is not published", "Ask again later.")
        return kept.content

    def forget(self, run: str, round: int) -> None:
        """An attempt that has ended, or whose output was published: nobody asks for more of it than
        is kept."""
        attempt = self._attempts.get((run, round))
        if attempt is not None and (attempt.ended or self._store.published(run, round)):
            self._drop(run, round)

    def standing(self, run: str, round: int) -> Standing:
        """What peers may know. A kept output is stood by after a crash too."""
        attempt = self._attempts.get((run, round))
        kept = self._store.kept(run, round)
        if kept is None:
            return super().standing(run, round)
        told = Standing(kept.attempt, b"", kept.ticket, agreed=kept.agreed)
        if attempt is not None and attempt.number == kept.attempt:
            told = self._said(attempt)
        return replace(
            told,
            accepted=kept.agreed,
            ready=hashlib.sha256(kept.content).digest(),
            published=self._store.published(run, round),
        )

    def advance(self, run: str, round: int) -> Standing:
        """Advances as `Agreement.advance` does, then keeps the output and publishes it."""
        if self._store.kept(run, round) is None:
            super().advance(run, round)
            attempt = self._attempts.get((run, round))
            if attempt is not None and attempt.summed and not attempt.ended:
                self._keep_output(run, attempt)
        self._publish_if_all_are_ready(run, round)
        return self.standing(run, round)

    def _keep_output(self, run: str, attempt: Attempt) -> None:
        """Charge, then noise and mask, then keep."""
        question = attempt.question
        plan = attempt.plan
        self._store.charge(run, question, plan)
        noise = party_noise(question, plan, self._noise)
        parts = masked_output(attempt.batch.packed(), noise, attempt.keys, attempt.ticket)
        content = packed_output(attempt.ticket, attempt.people, parts)
        output = KeptOutput(attempt.number, attempt.ticket, attempt.summed, attempt.people, content)
        self._store.keep(run, question.round, output)
        if self.index != 1:  # aggregator 2 may still ask it for explicit shares
            attempt.batch.close()

    def _publish_if_all_are_ready(self, run: str, round: int) -> None:
        kept = self._store.kept(run, round)
        if kept is None or self._store.published(run, round):
            return
        theirs = [peer.standing(run, round) for peer in self._peers.values()]
        if all(
            other.ready and (other.ticket, other.accepted) == (kept.ticket, kept.agreed)
            for other in theirs
        ):
            self._store.publish(run, round)

    def _published_elsewhere(self, run: str, round: int, ticket: bytes) -> list[bool]:
        theirs = [peer.standing(run, round) for peer in self._peers.values()]
        return [other.published and other.ticket == ticket for other in theirs]
