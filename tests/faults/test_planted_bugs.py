"""The simulator can fail: each bug that is planted in a party's core is found in a few seeds, by
the rule that it breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.federation.protocol import Phase, Refusal
from fedrec.federation.round_driver import Patience
from fedrec.federation.sums import ExactSums
from fedrec.randomness import Streams
from fedrec.serving.bundle import FILE
from fedrec_aggregator import core as aggregator_core
from fedrec_aggregator import intake
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client import delivery, participant
from fedrec_client.ledger import ClientLedger
from fedrec_client.serving_ledger import ServingLedger
from fedrec_server.rounds import _Kept
from fedrec_server.runs import Runs
from fedrec_simulations.faults import auditor, simulator, verdict, visitor
from fedrec_simulations.faults.script import script
from fedrec_simulations.faults.simulator import simulate

pytestmark = pytest.mark.slow

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(60)


def no_dedup(patch: pytest.MonkeyPatch) -> None:
    """A repeated report is counted again."""
    patch.setattr(
        Collection,
        "_new",
        lambda self, ids, users, counts: (set(ids), set(users), np.ones(len(ids), np.bool_)),
    )


def any_sender(patch: pytest.MonkeyPatch) -> None:
    """A client may report for another client's users."""
    patch.setattr(
        intake,
        "_of_the_sender",
        lambda batch, sender, owners: (np.ones(len(batch.tokens), np.bool_), Counter[Refusal]()),
    )


def any_question(patch: pytest.MonkeyPatch) -> None:
    """What a batch says it answers is not looked at."""
    honest = intake.unpack_reports
    patch.setattr(
        intake,
        "unpack_reports",
        lambda data, specs, digest, **limits: honest(data, specs, data[4:36].hex(), **limits),
    )


def counts_after_the_end(patch: pytest.MonkeyPatch) -> None:
    """A round whose release waits for the disk goes on counting."""
    honest = Aggregator.report

    def report(self: Any, sender: str, run: str, round: int, batch: bytes, **named: Any) -> Any:
        collection = self._rounds.get((run, round))
        if collection is None or collection.phase is not Phase.RELEASING:
            return honest(self, sender, run, round, batch, **named)
        collection.phase = Phase.OPEN
        receipt = honest(self, sender, run, round, batch, **named)
        collection.phase = Phase.RELEASING
        return receipt

    patch.setattr(Aggregator, "report", report)


def no_deadline(patch: pytest.MonkeyPatch) -> None:
    """Reports are taken for as long as nobody closes the round."""
    patch.setattr(Aggregator, "_close_if_due", lambda self, collection: collection.phase)


def noise_at_every_request(patch: pytest.MonkeyPatch) -> None:
    """Asked again, the aggregator noises again."""
    honest, asked = Aggregator.release, Counter[tuple[str, int]]()

    def release(self: Any, run: str, round: int) -> bytes:
        asked[run, round] += 1
        content = honest(self, run, round)
        return content[:-1] + bytes([(content[-1] + asked[run, round] - 1) % 256])

    patch.setattr(Aggregator, "release", release)


def forgets_releases(patch: pytest.MonkeyPatch) -> None:
    """After a restart a round is open again, though its release has left."""
    honest = ReleaseLedger._load

    def load(self: Any) -> None:
        honest(self)
        self._rows.chain._released.clear()

    patch.setattr(ReleaseLedger, "_load", load)


def charges_after_the_release(patch: pytest.MonkeyPatch) -> None:
    """The charge becomes durable after the entry that lets the release leave."""
    charge, publish = ReleaseLedger.charge, ReleaseLedger.publish
    owed = list[tuple[Any, ...]]()

    def publish_first(self: Any, *arguments: Any, **named: Any) -> None:
        publish(self, *arguments, **named)
        while owed:
            charge(*owed.pop())

    patch.setattr(ReleaseLedger, "charge", lambda *arguments: owed.append(arguments))
    patch.setattr(ReleaseLedger, "publish", publish_first)


def charges_again(patch: pytest.MonkeyPatch) -> None:
    """A round that is collected again is charged again."""
    honest = ReleaseLedger.charge

    def charge(self: Any, *arguments: Any) -> None:
        known, self._rows.chain._charged = self._rows.chain._charged, {}
        honest(self, *arguments)
        self._rows.chain._charged = known | self._rows.chain._charged

    patch.setattr(ReleaseLedger, "charge", charge)


def client_pays_later(patch: pytest.MonkeyPatch) -> None:
    """Reports leave before the client's ledger is written."""
    patch.setattr(ClientLedger, "_append", lambda self, *arguments: None)


def client_answers_anything(patch: pytest.MonkeyPatch) -> None:
    """The same round, asked again, is charged once and answered with other reports."""
    honest, calls = delivery.answered, list[int]()

    def answered(*arguments: Any, **named: Any) -> Any:
        reports = honest(*arguments, **named)
        calls.append(1)
        return replace(
            reports,
            blocks=tuple(
                replace(block, vectors=block.vectors // len(calls)) for block in reports.blocks
            ),
        )

    patch.setattr(delivery, "answered", answered)


def forgets_attempts(patch: pytest.MonkeyPatch) -> None:
    """Every attempt is the first."""
    honest = ReleaseLedger.begin

    def begin(self: Any, *arguments: Any, **named: Any) -> int:
        honest(self, *arguments, **named)
        return 1

    patch.setattr(ReleaseLedger, "begin", begin)


def any_cohort(patch: pytest.MonkeyPatch) -> None:
    """The minimum cohort is not looked at."""
    honest = Aggregator._opened

    def opened(self: Any, opening: Any) -> Any:
        collection = honest(self, opening)
        collection.needed = max(1, opening.quorum)
        return collection

    patch.setattr(Aggregator, "_opened", opened)


def any_quorum(patch: pytest.MonkeyPatch) -> None:
    """The aggregator looks at its minimum cohort, and at no quorum."""
    honest = Aggregator._opened

    def opened(self: Any, opening: Any) -> Any:
        collection = honest(self, opening)
        collection.needed = self.limits.min_cohort
        return collection

    patch.setattr(Aggregator, "_opened", opened)


def no_quorum_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The server goes on with whoever is there."""
    patch.setattr(Patience, "quorum", lambda self, num_users: 0)


def unbound_quorum(patch: pytest.MonkeyPatch) -> None:
    """Reports name the question alone: a quorum that is changed on the way is not noticed."""
    patch.setattr(aggregator_core, "report_digest", lambda digest, quorum: digest)
    patch.setattr(participant, "report_digest", lambda digest, quorum: digest)


def other_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise that is the same in every run."""
    honest = aggregator_core.release
    patch.setattr(
        aggregator_core, "release", lambda *arguments, noise: honest(*arguments, noise=Streams(1))
    )


def adds_twice(patch: pytest.MonkeyPatch) -> None:
    """Whoever is counted once is added twice."""
    honest = ExactSums.add

    def add(self: Any, reports: Any, **named: Any) -> None:
        honest(self, reports, **named)
        honest(self, reports, **named)

    patch.setattr(
        "fedrec_aggregator.collection.ExactSums", type("Twice", (ExactSums,), {"add": add})
    )


def report_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A batch that could not be used is kept for somebody to look at."""
    honest = Aggregator.report

    def report(self: Any, sender: str, run: str, round: int, batch: bytes, **named: Any) -> Any:
        receipt = honest(self, sender, run, round, batch, **named)
        if receipt.rejected:
            (Path(self.ledger.folder) / "rejected.bin").write_bytes(batch)
        return receipt

    patch.setattr(Aggregator, "report", report)


def loses_an_entry(patch: pytest.MonkeyPatch) -> None:
    """The last entry of the chain is not there after a restart."""
    honest = ReleaseLedger._load

    def load(self: Any) -> None:
        self._db.execute(
            "DELETE FROM entries WHERE seq > 1 AND seq = (SELECT max(seq) FROM entries)"
        )
        honest(self)

    patch.setattr(ReleaseLedger, "_load", load)


def wrong_state(patch: pytest.MonkeyPatch) -> None:
    """The server keeps another state than the releases lead to."""
    honest = _Kept._keep

    def keep(self: Any, state: Any, lines: Any, head: str) -> None:
        broken = {
            name: array * (1 + 1e-7) if name == "mean" else array for name, array in state.items()
        }
        honest(self, broken if len(lines) > 1 else state, lines, head)

    patch.setattr(_Kept, "_keep", keep)


def first_attempts_only(patch: pytest.MonkeyPatch) -> None:
    """The server notes every round as if it had been collected once."""
    honest = _Kept._line
    patch.setattr(
        _Kept,
        "_line",
        lambda self, *arguments, **named: replace(honest(self, *arguments, **named), attempt=1),
    )


def stuck(patch: pytest.MonkeyPatch) -> None:
    """A round that could not be released once is never tried again."""
    honest = Aggregator._finish

    def finish(self: Any, collection: Any) -> None:
        if collection.failure is None:
            honest(self, collection)

    patch.setattr(Aggregator, "_finish", finish)


def defect(patch: pytest.MonkeyPatch) -> None:
    """A second attempt at a round, which nobody thought of."""
    honest = Aggregator.open_round

    def open_round(self: Any, opening: Any) -> Any:
        status = honest(self, opening)
        return {1: status}[status.attempt]

    patch.setattr(Aggregator, "open_round", open_round)


def unnoted_version(patch: pytest.MonkeyPatch) -> None:
    """A bundle is served before the server has noted whose it is."""
    patch.setattr(Runs, "made", lambda self, bundle: None)


def old_model_stays(patch: pytest.MonkeyPatch) -> None:
    """A further training is finished, and the model before it is served on."""
    honest = Runs.publish

    def publish(self: Any, *, now_s: float) -> Any:
        before = (self.state / FILE).read_bytes() if (self.state / FILE).exists() else None
        entry = honest(self, now_s=now_s)
        if before is not None:
            (self.state / FILE).write_bytes(before)
        return entry

    patch.setattr(Runs, "publish", publish)


def pays_again(patch: pytest.MonkeyPatch) -> None:
    """A person's answer is drawn and charged anew at every question."""
    patch.setattr(ServingLedger, "kept", lambda self, question: None)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (no_dedup, auditor.COUNTED_ONCE),
        (any_sender, auditor.REASONS),
        (any_question, auditor.COUNTED_ONCE),
        (counts_after_the_end, auditor.COUNTED_ONCE),
        (no_deadline, auditor.COUNTED_ONCE),
        (noise_at_every_request, auditor.RELEASED_ONCE),
        (forgets_releases, auditor.RELEASED_ONCE),
        (charges_after_the_release, auditor.CHARGED_FIRST),
        (charges_again, verdict.CHARGED_ONCE),
        (client_pays_later, auditor.CHARGED_FIRST),
        (client_answers_anything, auditor.ONE_ANSWER),
        (forgets_attempts, auditor.ATTEMPTS_RISE),
        (any_cohort, verdict.COHORT),
        (any_quorum, verdict.QUORUM),
        (no_quorum_is_asked_for, verdict.QUORUM),
        (unbound_quorum, auditor.CHARGED_FIRST),
        (other_noise, verdict.EXACT_PLUS_NOISE),
        (adds_twice, verdict.EXACT_PLUS_NOISE),
        (report_on_disk, verdict.NO_REPORT_ON_DISK),
        (loses_an_entry, verdict.LEDGER_KEPT),
        (wrong_state, verdict.SAME_MODEL),
        (first_attempts_only, verdict.KEPT_AS_RELEASED),
        (unnoted_version, visitor.SERVED_WHOLE),
        (old_model_stays, visitor.SERVED_WHOLE),
        (pays_again, visitor.PAID_ONCE),
        (stuck, simulator.ENDS),
        (defect, auditor.DEFECTS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_is_found_by_the_rule_that_it_breaks(
    plant: Plant, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        broken = simulate(script(seed)).broken
        assert rule == auditor.DEFECTS or auditor.DEFECTS not in {one.rule for one in broken}, (
            plant.__doc__,
            broken,
        )  # of the plant itself
        if rule in {one.rule for one in broken}:
            return
    pytest.fail(f"not found in {len(SEEDS)} seeds: {plant.__doc__}")
