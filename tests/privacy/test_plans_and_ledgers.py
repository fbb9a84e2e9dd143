import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import BudgetExceededError, PrivacyError, UnitMismatchError
from fedrec.privacy.accounting import GaussianEvent, Ledger, mu_for
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee, non_private, said_down, said_up, with_sound_delta

FIVE = Guarantee(5.0, 1e-5)


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.floats(1e-3, 1e3), min_size=1, max_size=8)
)
def test_the_releases_of_a_plan_compose_to_its_guarantee(shares: dict[str, float]) -> None:
    plan = calibrate(FIVE, shares)
    assert math.fsum(r.share for r in plan.releases) == pytest.approx(1)
    assert math.hypot(*(r.mu for r in plan.releases)) == pytest.approx(mu_for(5.0, 1e-5), rel=1e-12)


def test_a_whole_plan_fits_its_ledger_and_nothing_fits_after() -> None:
    plan = calibrate(FIVE, {"counts": 1, "items/1": 2, "items/2": 4})
    ledger = Ledger(FIVE)
    for release in plan.releases:
        ledger = ledger.add(plan.event(release.name))
    assert ledger.epsilon == pytest.approx(5.0)
    with pytest.raises(BudgetExceededError, match="limit"):
        ledger.add(GaussianEvent("one more", 0.01))


def test_a_ledger_refuses_another_unit_and_keeps_what_it_was() -> None:
    ledger = Ledger(FIVE)
    with pytest.raises(UnitMismatchError):
        ledger.add(GaussianEvent("a", 0.1, "example"))
    ledger.add(GaussianEvent("a", 0.1))
    assert ledger.events == ()


def test_no_privacy_is_spelled_out_and_costs_infinity() -> None:
    plan = calibrate(non_private(1e-5), {"a": 1.0})
    assert plan["a"].mu == math.inf
    assert plan["a"].noise_multiplier == 0
    assert "no privacy" in str(plan.guarantee)


@pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": -1.0}, {"a": math.inf}, {"a": math.nan}])
def test_shares_that_divide_nothing_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        calibrate(FIVE, shares)


def test_every_printed_epsilon_has_its_unit_and_neighbours() -> None:
    assert str(FIVE) == "epsilon 5 at delta 1e-05 per user (add/remove, number of users public)"
    assert "NOT ESTABLISHED" in str(Guarantee(5.0, 1e-5, established=False, note="why"))


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (1, 0), (1, 1)]
)
def test_impossible_guarantees_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError):
        Guarantee(epsilon, delta)


def test_a_plan_that_differs_in_anything_has_another_digest() -> None:
    plans = [
        calibrate(Guarantee(e, d), {"a": s, "b": 1})
        for e, d, s in [(5, 1e-5, 1), (4, 1e-5, 1), (5, 1e-6, 1), (5, 1e-5, 2)]
    ]
    assert len({plan.digest() for plan in plans}) == 4


def test_a_guarantee_says_that_the_number_of_users_is_public() -> None:
    assert "per user (add/remove, number of users public)" in str(FIVE)
    assert "number of users" not in str(Guarantee(5.0, 1e-5, "click", "replace"))
    assert "number of users public" in str(non_private(1e-5))


@pytest.mark.parametrize(
    ("delta", "users", "said"),
    [(1e-5, 943, ""), (0.9e-3, 943, ""), (0.01, 100, "warns"), (0.002, 943, "warns")],
)
def test_a_delta_of_one_in_the_number_of_users_is_warned_of(
    delta: float, users: int, said: str
) -> None:
    sound = with_sound_delta(Guarantee(5.0, delta), users, allowed=False)
    assert ("is not below 1/" in str(sound)) == bool(said)
    assert sound.established


def test_a_delta_of_one_in_the_root_of_the_number_of_users_is_refused_unless_allowed() -> None:
    for delta in (0.3, 943**-0.5):
        with pytest.raises(PrivacyError, match="943"):
            with_sound_delta(Guarantee(5.0, delta), 943, allowed=False)
        assert "is not below 1/943" in str(
            with_sound_delta(Guarantee(5.0, delta), 943, allowed=True)
        )
    assert with_sound_delta(non_private(0.3), 943, allowed=False) == non_private(0.3)


def test_what_is_said_to_be_left_is_never_more_than_is_left_and_what_is_needed_never_less() -> None:
    assert (said_down(1.80359), said_up(1.80359)) == ("1.803", "1.804")
    assert (said_down(8.0 - 1e-12), said_up(8.0 + 1e-12)) == ("8", "8")
    assert (said_down(0.0), said_down(math.inf), said_up(math.inf)) == ("0", "inf", "inf")
    for epsilon in np.geomspace(1e-3, 1e3, 997):
        assert float(said_down(epsilon)) <= epsilon * (1 + 1e-8)
        assert float(said_up(epsilon)) >= epsilon * (1 - 1e-8)
        assert float(said_up(epsilon)) - float(said_down(epsilon)) <= 1.1e-3 * epsilon
