import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.messages import BlockReports, BlockSpec, Question, ReleaseSpec, Reports
from fedrec.federation.protocol import Phase, Receipt, Refusal
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.wire import question_digest, question_header
from fedrec.privacy.calibration import Plan, PlannedRelease, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec_aggregator.core import Limits

EVERYBODY = list(range(12))
RUN = "run-1"


def refused_as(code: Refusal) -> Any:
    return pytest.raises(RefusedError, check=lambda failure: failure.code == code.value)


# --- a round that ends well ---


@pytest.mark.parametrize("order", [EVERYBODY, EVERYBODY[::-1], EVERYBODY[6:] + EVERYBODY[:6]])
def test_two_clients_in_any_order_and_cut_give_the_loopbacks_bytes(
    world: Any, order: list[int]
) -> None:
    for user in order:
        world.send([user])
    status = world.aggregator.status(RUN, 0)
    assert (status.phase, status.reported, status.clipped) == (Phase.RELEASED, 12, 0)
    assert world.aggregator.release(RUN, 0) == world.expected()
    assert status.ledger_head == world.aggregator.ledger.head()


def test_the_same_release_is_served_however_often_asked_and_after_a_restart(world: Any) -> None:
    world.send(EVERYBODY)
    first = world.aggregator.close(RUN, 0)
    status = world.aggregator.release(RUN, 0)
    world.restart()
    assert world.aggregator.release(RUN, 0) == status
    assert (
        world.aggregator.open_round(world.opening())
        == first
        == world.aggregator.status(RUN, 0)
        == world.aggregator.close(RUN, 0)
    )
    assert len(world.aggregator.ledger.spends().charges) == 2


def test_a_client_does_not_wait_for_the_release_but_the_next_who_asks_finds_it(world: Any) -> None:
    world.send(EVERYBODY)
    assert world.aggregator.ledger.spends().charges == ()
    world.aggregator.tick()
    assert world.aggregator.ledger.released(RUN, 0) is not None


def test_a_round_is_released_at_its_deadline_with_the_cohort_and_not_before(world: Any) -> None:
    world.send(EVERYBODY[:5])
    world.clock.now_s += 59
    world.aggregator.tick()
    assert world.aggregator.status(RUN, 0).phase is Phase.OPEN
    assert world.aggregator.status(RUN, 0).remaining_s == pytest.approx(1)
    world.clock.now_s += 1
    world.aggregator.tick()
    assert world.aggregator.status(RUN, 0).phase is Phase.RELEASED


def test_the_operators_round_time_is_the_longest(make: Callable[..., Any]) -> None:
    world = make(limits=Limits(min_cohort=5, max_round_s=10))
    world.open()
    assert world.aggregator.status(RUN, 0).remaining_s == pytest.approx(10)


def test_a_short_cohort_releases_and_spends_nothing_and_the_round_opens_anew(world: Any) -> None:
    world.send(EVERYBODY[:4])
    status = world.aggregator.close(RUN, 0)
    assert (status.phase, status.reported) == (Phase.SHORT, 4)
    assert world.aggregator.ledger.spends().charges == ()
    with refused_as(Refusal.BUSY):
        world.aggregator.release(RUN, 0)
    again = world.aggregator.open_round(world.opening())
    assert (again.phase, again.attempt, again.reported) == (Phase.OPEN, 2, 0)
    world.send(EVERYBODY)
    world.check_release()


def test_opening_an_open_round_again_keeps_its_reports(world: Any) -> None:
    world.send([0, 1])
    status = world.aggregator.open_round(world.opening())
    assert (status.attempt, status.reported, status.phase) == (1, 2, Phase.OPEN)


def test_attempts_are_counted_over_restarts(world: Any) -> None:
    world.restart()
    with refused_as(Refusal.ROUND_UNKNOWN):
        world.aggregator.status(RUN, 0)
    assert world.aggregator.open_round(world.opening()).attempt == 2


# --- reports turned away, each by its code ---


def receipt(
    world: Any, batch: bytes, *, sender: str = "client-0", run: str = RUN, round: int = 0
) -> Receipt:
    found: Receipt = world.aggregator.report(sender, run, round, batch)
    return found


def test_a_report_sent_again_is_replayed_and_a_second_one_already_reported(world: Any) -> None:
    assert receipt(world, world.packed([0, 1])) == Receipt(2, {})
    assert receipt(world, world.packed([0, 1, 2])) == Receipt(1, {"replayed": 2})
    assert receipt(world, world.packed([0, 3], salt=1)) == Receipt(1, {"already-reported": 1})
    assert world.aggregator.status(RUN, 0).rejected == {"replayed": 2, "already-reported": 1}
    world.send([4, 5, *EVERYBODY[6:]])
    world.aggregator.tick()
    assert world.aggregator.release(RUN, 0) == world.expected()


def test_a_user_or_an_id_twice_in_one_batch_counts_once(world: Any) -> None:
    one = world.batch([0, 0, 1])
    digest = world.opening().digest
    assert receipt(world, pack_reports(one, digest)) == Receipt(2, {"replayed": 1})
    ids = world.batch([7, 8, 9]).ids
    users = Batch(ids, world.batch([2, 2, 3]).tokens, world.batch([2, 2, 3]).reports)
    assert receipt(world, pack_reports(users, digest)) == Receipt(2, {"already-reported": 1})
    assert world.aggregator.status(RUN, 0).reported == 4


def test_users_of_nobody_and_of_another_client_are_left_out_and_the_others_counted(
    world: Any,
) -> None:
    batch = world.batch([0, 6, 1, 2])
    tokens = batch.tokens.copy()
    tokens[3] = 255
    mixed = pack_reports(Batch(batch.ids, tokens, batch.reports), world.opening().digest)
    assert receipt(world, mixed) == Receipt(2, {"forbidden": 1, "not-enrolled": 1})
    world.send(EVERYBODY)
    world.aggregator.tick()
    assert world.aggregator.release(RUN, 0) == world.expected()


def with_numbers(batch: Batch, **changed: Any) -> Batch:
    return replace(batch, reports=replace(batch.reports, **changed))


def test_every_other_reason_has_its_code_and_is_counted(world: Any) -> None:
    digest = world.opening().digest
    good = world.batch([1, 2])
    sound = pack_reports(good, digest)
    low = bytearray(sound)
    low[-2:] = (-(2**15)).to_bytes(2, "little", signed=True)
    beyond = pack_reports(with_numbers(good, items=good.reports.items + 100), digest)
    falling = pack_reports(with_numbers(good, items=good.reports.items[::-1].copy()), digest)
    cases = {
        "malformed": [sound[:-1], sound + b"x", b"FRR2" + sound[4:], falling],
        "wrong-question": [sound[:4] + bytes(32) + sound[36:]],
        "unknown-item": [beyond],
        "out-of-range": [bytes(low)],
    }
    for code, batches in cases.items():
        for batch in batches:
            assert receipt(world, batch) == Receipt(0, {code: 2})
    assert receipt(world, sound, run="run-2") == Receipt(0, {"run-unknown": 2})
    assert receipt(world, sound, round=1) == Receipt(0, {"round-unknown": 2})
    counted = world.aggregator.status(RUN, 0)
    assert counted.rejected == {code: 2 * len(batches) for code, batches in cases.items()}
    assert counted.reported == 0


def test_batches_users_and_events_above_the_operators_limits_are_too_large(
    make: Callable[..., Any],
) -> None:
    for limits in (
        Limits(min_cohort=1, max_batch_bytes=200),
        Limits(min_cohort=1, max_users_per_batch=2),
        Limits(min_cohort=1, max_events_per_user=3),
    ):
        world = make(limits=limits).begun()
        turned_away = receipt(world, world.packed([1, 2, 3])).rejected
        assert turned_away == {"too-large": min(3, limits.max_users_per_batch)}
        world.stop()


def test_a_report_after_the_round_froze_or_was_released_finds_it_closed(world: Any) -> None:
    world.send(EVERYBODY[:6])
    world.clock.now_s += 60
    late = world.packed([6], salt=1)
    assert receipt(world, late, sender="client-1") == Receipt(0, {"round-closed": 1})
    assert world.aggregator.status(RUN, 0).reported == 6
    assert receipt(world, late, sender="client-1") == Receipt(0, {"round-closed": 1})


def test_sums_that_could_pass_two_to_the_63_turn_a_batch_away_and_keep_the_others(
    make: Callable[..., Any],
) -> None:
    world = make().begun()
    collection = world.aggregator._rounds[RUN, 0]
    world.send([0])
    collection.sums._reach[0][:] = 2.0**63  # as 2^18 greedy users would
    assert receipt(world, world.packed([1, 2])) == Receipt(0, {"overflow": 2})
    collection.sums._reach[0][:] = 0
    assert receipt(world, world.packed([1, 2])) == Receipt(2, {})


def test_a_greedy_report_is_scaled_down_and_counted_not_rejected(world: Any) -> None:
    batch = world.batch([0, 1])
    digest = world.opening().digest
    blocks = tuple(
        BlockReports(part.coefficients * np.int32(3), part.vectors) for part in batch.reports.blocks
    )
    capped = tuple(
        BlockReports(np.clip(b.coefficients, -(2**15) + 1, 2**15 - 1), b.vectors) for b in blocks
    )
    assert receipt(world, pack_reports(with_numbers(batch, blocks=capped), digest)) == Receipt(
        2, {}
    )
    assert world.aggregator.status(RUN, 0).clipped == 2


# --- enrolment ---


def test_enrolment_is_durable_idempotent_and_belongs_to_the_first(make: Callable[..., Any]) -> None:
    world = make(limits=Limits(min_cohort=1, max_users_per_sender=3))
    endpoint = world.aggregator.client_endpoint("a")
    other = world.aggregator.client_endpoint("b")
    tokens = world.tokens([1, 2])
    assert endpoint.enroll(tokens) == endpoint.enroll(tokens * 2) == 2
    with refused_as(Refusal.FORBIDDEN):
        other.enroll([*world.tokens([3]), tokens[0]])
    with refused_as(Refusal.TOO_LARGE):
        endpoint.enroll(world.tokens([3, 4]))
    with refused_as(Refusal.MALFORMED):
        endpoint.enroll([b"short"])
    world.restart()
    assert world.aggregator.enrolled() == 2
    assert world.aggregator.client_endpoint("a").enroll([]) == 2
    assert world.aggregator.client_endpoint("b").enroll([]) == 0
    assert world.aggregator.client_endpoint("a", max_users=4).enroll(world.tokens([3, 4])) == 4
    with refused_as(Refusal.TOO_LARGE):
        world.aggregator.client_endpoint("b", max_users=1).enroll(world.tokens([5, 6]))


def test_an_enrolment_looks_at_its_own_users_only(world: Any) -> None:
    world.aggregator.enroll("a", world.tokens(range(20, 60)))

    class Index(dict[bytes, str]):
        looked_at = 0

        def get(self, *arguments: Any) -> Any:
            self.looked_at += 1
            return super().get(*arguments)

        def __iter__(self) -> Any:
            raise AssertionError("it goes through all users")

        values = items = keys = copy = __iter__

    index = world.aggregator.ledger._rows.owners = Index(world.aggregator.ledger._rows.owners)
    assert world.aggregator.enroll("b", world.tokens([70, 71])) == 2
    assert index.looked_at == 2


def test_an_enrolment_that_was_cut_off_between_disk_and_memory_is_whole_when_it_is_sent_again(
    world: Any,
) -> None:
    class Full(dict[bytes, str]):
        def update(self, *_: Any) -> None:
            raise MemoryError

    ledger = world.aggregator.ledger
    tokens = world.tokens([70, 71])
    before = world.aggregator.enrolled()
    ledger._rows.owners = Full(ledger._rows.owners)
    with pytest.raises(MemoryError):
        world.aggregator.enroll("a", tokens)
    with pytest.raises(RunError):  # what is on disk is read again
        world.aggregator.enroll("a", tokens)
    assert world.aggregator.enroll("a", tokens) == 2
    assert world.aggregator.enrolled() == before + 2
    world.restart()
    assert world.aggregator.enroll("a", []) == 2


# --- runs and openings turned away ---


def test_a_run_keeps_its_plan(world: Any) -> None:
    world.aggregator.open_run(RUN, world.plan)
    other = calibrate(Guarantee(4.0, 1e-5), {"s/0": 1.0})
    for _ in range(2):
        with refused_as(Refusal.WRONG_PLAN):
            world.aggregator.open_run(RUN, other)
        world.restart()


@pytest.mark.parametrize("run", ["", "../x", "a/b", ".hidden", "-x", "x" * 200, "ä"])
def test_a_run_that_could_name_a_file_elsewhere_is_malformed(world: Any, run: str) -> None:
    with refused_as(Refusal.MALFORMED):
        world.aggregator.open_run(run, world.plan)


def test_a_plan_that_is_not_true_or_not_established_is_refused(world: Any) -> None:
    lying = Plan(Guarantee(1.0, 1e-5), (PlannedRelease("s/0", 1.0, 50.0),))
    paper = replace(world.plan, guarantee=replace(world.plan.guarantee, established=False))
    # whose noise one aggregator would not add alone
    three = among_three(world.plan, calibrated_for="one-corrupt")
    for plan in (lying, paper, three):
        with refused_as(Refusal.WRONG_PLAN):
            world.aggregator.open_run("run-2", plan)


def test_an_operator_may_allow_plans_that_reproduce_a_paper(make: Callable[..., Any]) -> None:
    world = make(limits=Limits(allow_not_established=True))
    world.aggregator.open_run(
        "run-2", replace(world.plan, guarantee=replace(world.plan.guarantee, established=False))
    )


def test_no_noise_needs_an_operator_who_says_so(make: Callable[..., Any]) -> None:
    bare = calibrate(non_private(1e-5), {"s/0": 1.0, "m/0": 1.0})
    for limit in (None, Guarantee(100.0, 1e-5)):
        world = make(limit=limit)
        with refused_as(Refusal.BUDGET):
            world.aggregator.open_run("bare", bare)
        world.stop()
    world = make(limit=non_private(1e-5), plan=bare).begun()
    world.send(EVERYBODY)
    world.aggregator.tick()
    assert world.aggregator.release(RUN, 0) == world.expected()
    world.restart()
    assert math.isinf(world.aggregator.ledger.spends().epsilon)


def test_the_operators_limit_holds_over_all_runs(make: Callable[..., Any]) -> None:
    world = make(limit=Guarantee(6.0, 1e-5))
    world.enroll()
    for round in range(3):
        world.open(round)
        world.send(EVERYBODY, round)
        world.aggregator.tick()
    spends = world.aggregator.ledger.spends()
    assert spends.epsilon == pytest.approx(5.0)
    assert spends.left == pytest.approx(1.0)
    with refused_as(Refusal.BUDGET):
        world.aggregator.open_run("run-2", world.plan)
    world.aggregator.open_run("run-3", calibrate(Guarantee(1.0, 1e-5), {"s/0": 1.0}))


def test_two_runs_that_fit_alone_but_not_together_are_stopped_before_the_limit(
    make: Callable[..., Any],
) -> None:
    world = make(limit=Guarantee(5.0, 1e-5)).begun()
    world.run = "run-2"
    world.open()
    world.send(EVERYBODY)
    assert world.aggregator.close("run-2", 0).phase is Phase.RELEASED
    for round in (1, 2):
        world.open(round)
        world.send(EVERYBODY, round)
        world.aggregator.tick()
    world.run = RUN
    world.send(EVERYBODY)
    with refused_as(Refusal.BUDGET):
        world.aggregator.close(RUN, 0)
    with refused_as(Refusal.BUDGET):
        world.aggregator.open_round(world.opening())
    assert len(world.aggregator.ledger.spends().charges) == 6


def test_a_plan_of_another_unit_than_the_limit_is_refused(make: Callable[..., Any]) -> None:
    world = make(limit=Guarantee(5.0, 1e-5))
    with refused_as(Refusal.BUDGET):
        world.aggregator.open_run("run-2", calibrate(Guarantee(1.0, 1e-5, "example"), {"x": 1.0}))


def test_an_opening_must_be_of_its_run_its_plan_and_its_header(world: Any) -> None:
    opening = world.opening(world.question(1))
    question = world.question(1)
    foreign = question_header(question, run=RUN, plan="0" * 64)
    unplanned = replace(question, releases=(replace(question.releases[0], name="s/9"),))
    cases = [
        (Refusal.RUN_UNKNOWN, replace(opening, run="run-9")),
        (Refusal.WRONG_QUESTION, replace(opening, digest="0" * 64)),
        (Refusal.WRONG_QUESTION, replace(opening, round=2)),
        (Refusal.WRONG_QUESTION, replace(world.opening(), digest="0" * 64)),
        (Refusal.WRONG_PLAN, replace(opening, header=foreign, digest=question_digest(foreign))),
        (Refusal.WRONG_PLAN, world.opening(unplanned)),
        (Refusal.MALFORMED, replace(opening, timeout_s=0.0)),
        (Refusal.MALFORMED, replace(opening, timeout_s=math.nan)),
        (Refusal.MALFORMED, replace(opening, header=b"{", digest=question_digest(b"{"))),
        (Refusal.STALE_LEDGER, replace(opening, ledger_head="0" * 64)),
    ]
    for code, bad in cases:
        with refused_as(code):
            world.aggregator.open_round(bad)
    assert (
        world.aggregator.open_round(
            replace(opening, ledger_head=world.aggregator.ledger.head())
        ).phase
        is Phase.OPEN
    )


def shaped(rows: int, width: int, **sizes: float) -> Question:
    spec = BlockSpec(
        "x", "linear", rows, width, sizes.get("step", 2.0**-14), sizes.get("vector_step", 2.0**-14)
    )
    return Question(1, "step", {}, (ReleaseSpec("s/1", (spec,), sizes.get("radius", 1.0)),))


def test_sums_are_measured_before_they_are_allocated_and_shared_among_open_rounds(
    make: Callable[..., Any],
) -> None:
    world = make(limits=Limits(min_cohort=5, max_accumulator_bytes=8_000))
    world.open()
    with refused_as(Refusal.TOO_LARGE):
        world.aggregator.open_round(world.opening(shaped(2**31 - 1, 2**26)))
    with refused_as(Refusal.BUSY):
        world.aggregator.open_round(world.opening(shaped(490, 1)))
    world.aggregator.close(RUN, 0)
    assert world.aggregator.open_round(world.opening(shaped(490, 1))).phase is Phase.OPEN


@pytest.mark.parametrize(
    ("code", "sizes"),
    [
        # a squared norm would read 0, and any report pass as bounded
        (Refusal.MALFORMED, {"radius": 1e-160, "vector_step": 1e-170}),
        (Refusal.MALFORMED, {"step": 1e-300}),
        # noise of more steps than the sampler holds
        (Refusal.OUT_OF_RANGE, {"radius": 1e11, "step": 1e-12}),
        (Refusal.OUT_OF_RANGE, {"step": 2.0**20}),  # a grid too coarse for the noise
    ],
)
def test_a_grid_on_which_a_norm_or_the_noise_would_vanish_is_refused(
    world: Any, code: Refusal, sizes: dict[str, float]
) -> None:
    with refused_as(code):
        world.aggregator.open_round(world.opening(shaped(6, 1, **sizes)))


def test_a_release_is_charged_for_one_round_of_a_run_only(world: Any) -> None:
    world.send(EVERYBODY)
    world.aggregator.tick()
    with refused_as(Refusal.BUDGET):
        world.aggregator.open_round(world.opening(replace(world.question(0), round=1)))


def test_what_the_server_sees_of_a_round_holds_no_user(world: Any) -> None:
    world.send([0])
    world.aggregator.report("client-0", RUN, 0, b"junk")
    words = json.dumps(vars(world.aggregator.status(RUN, 0)), default=str)
    assert world.tokens([0])[0].hex() not in words
    assert set(json.loads(words)) == {
        "run", "round", "digest", "phase", "attempt", "enrolled", "reported", "clipped",
        "rejected", "remaining_s",
        "release_sha256", "ledger_head", "quorum",
    }  # fmt: skip


def test_reports_are_never_on_the_aggregators_disk(world: Any) -> None:
    world.send(EVERYBODY)
    world.aggregator.tick()
    reports = world.batch(EVERYBODY).reports
    written = b"".join(path.read_bytes() for path in world.folder.rglob("*") if path.is_file())
    ids = world.batch(EVERYBODY).ids
    assert not any(bytes(row) in written for row in ids)
    assert not any(
        block.vectors[k].astype("<i2").tobytes() in written
        for block in reports.blocks[:2]
        for k in range(12)
    )


def test_without_noise_a_batch_of_no_users_changes_nothing(world: Any) -> None:
    empty = Reports(
        np.zeros(1, np.int64),
        np.zeros(0, np.int32),
        tuple(
            BlockReports(np.zeros(0, np.int32), np.zeros((0, s.width), np.int32))
            for s in world.question().blocks
        ),
    )
    none = np.zeros((0, 16), np.uint8)
    assert receipt(
        world, pack_reports(Batch(none, none, empty), world.opening().digest)
    ) == Receipt(0, {})
