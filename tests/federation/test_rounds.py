import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.errors import BudgetExceededError, PrivacyError
from fedrec.federation.messages import Question, ReleaseSpec, Reports
from fedrec.federation.releases import release
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams

GUARANTEE = Guarantee(5.0, 1e-5)
PLAN = calibrate(GUARANTEE, {"first": 1.0, "second": 1.0})
SPEC = ReleaseSpec("first", (block("x", "linear", rows=4, width=1),))
QUESTION = Question(0, "ones", {}, (SPEC,))
DATA = Interactions.from_columns(
    np.array([0, 0, 1, 2]),
    np.array([0, 3, 3, 1]),
    None,
    num_users=3,
    num_items=4,
    value_range=(0, 1),
    kind="clicks",
)


def honest(question: Question, mine: Interactions) -> Reports:
    return bounded(
        mine.user_ptr,
        mine.items,
        [RealBlock(np.ones(len(mine)), np.ones((mine.num_users, 1)))],
        question.releases,
    )


def greedy(question: Question, mine: Interactions) -> Reports:
    reports = honest(question, mine)
    reports.blocks[0].coefficients[:] *= 2
    return reports


def link(step: object = honest, ledger: Ledger | None = None) -> Loopback:
    return Loopback(DATA, {"ones": step}, PLAN, Streams(1), ledger or Ledger(GUARANTEE))  # type: ignore[dict-item]


def test_every_release_is_charged_and_a_ledger_without_room_gets_no_noise() -> None:
    one = link()
    one.answer(QUESTION)
    assert [event.name for event in one.ledger.events] == ["first"]
    one.answer(QUESTION)
    with pytest.raises(BudgetExceededError):
        one.answer(QUESTION)
    assert len(one.ledger.events) == 2


def test_a_report_larger_than_its_radius_is_never_added() -> None:
    with pytest.raises(AssertionError, match="radius"):
        link(greedy).answer(QUESTION)


def test_what_all_devices_send_is_counted() -> None:
    one = link()
    one.answer(QUESTION)
    assert one.bytes_up == sum(64 + 2 + 6 * n for n in (2, 1, 1))


def test_noise_belongs_to_its_round_and_its_release() -> None:
    sums = (np.zeros((4, 1), np.int64),)
    seen = []
    for round_, name in ((0, "first"), (1, "first"), (0, "second")):
        question = Question(round_, "ones", {}, (ReleaseSpec(name, SPEC.blocks),))
        answer, _ = release(question, sums, PLAN, Ledger(GUARANTEE), noise=Streams(1))
        seen.append(answer.values["x"].tobytes())
    assert len(set(seen)) == 3


def test_noise_of_the_operating_system_never_repeats() -> None:
    sums = (np.zeros((4, 1), np.int64),)
    draws = {
        release(QUESTION, sums, PLAN, Ledger(GUARANTEE), noise=SystemStreams())[0]
        .values["x"]
        .tobytes()
        for _ in range(3)
    }
    assert len(draws) == 3


def test_noise_that_the_grid_cannot_hold_is_refused_with_a_remedy() -> None:
    tiny = calibrate(Guarantee(1e-3, 1e-5), {"first": 1.0, "second": 1e6})
    spec = ReleaseSpec("first", (block("x", "outer", rows=4, width=2),))
    with pytest.raises(PrivacyError, match="grid") as caught:
        release(
            Question(0, "ones", {}, (spec,)),
            (np.zeros((4, 3), np.int64),),
            tiny,
            Ledger(tiny.guarantee),
            noise=Streams(1),
        )
    assert "epsilon" in caught.value.remedy


def one_greedy(question: Question, mine: Interactions) -> Reports:
    reports = honest(question, mine)
    reports.blocks[0].coefficients[-1] *= 2  # the last user's only item
    return reports


def test_one_report_larger_than_its_radius_among_honest_ones_is_never_added() -> None:
    with pytest.raises(AssertionError, match="radius"):
        link(one_greedy).answer(QUESTION)


def test_every_release_of_a_question_is_charged() -> None:
    second = ReleaseSpec("second", (block("y", "linear", rows=4, width=1),))
    question = Question(0, "ones", {}, (SPEC, second))
    _, ledger = release(
        question, (np.zeros((4, 1), np.int64),) * 2, PLAN, Ledger(GUARANTEE), noise=Streams(1)
    )
    assert [event.name for event in ledger.events] == ["first", "second"]
    assert ledger.epsilon == pytest.approx(GUARANTEE.epsilon)
