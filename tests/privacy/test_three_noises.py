"""Any two of three noises are what a plan asks for; all three are wider by sqrt(3/2)."""

import math

import numpy as np
import pytest
from scipy import stats

from fedrec.errors import BudgetExceededError, PrivacyError
from fedrec.federation import releases
from fedrec.federation.messages import BlockSpec, Question, ReleaseSpec
from fedrec.privacy import calibration
from fedrec.privacy.accounting import Ledger, compose, opinions
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams, SystemStreams

PROMISE = Guarantee(5.0, 1e-5)
TRUSTED = calibrate(PROMISE, {"counts": 1.0, "items": 3.0})
THREE = among_three(TRUSTED, calibrated_for="one-corrupt")
OUTSIDERS = among_three(TRUSTED, calibrated_for="outsiders")
ROWS = BlockSpec("counts", "linear", 9_000, 1, 2.0**-14, 1.0)
WIDE = BlockSpec("items", "linear", 2_000, 4, 2.0**-12, 2.0**-6)
SQUARE = BlockSpec("square", "outer", 600, 3, 2.0**-10, 2.0**-6)
QUESTION = Question(
    0,
    "step",
    {},
    (ReleaseSpec("counts", (ROWS,)), ReleaseSpec("items", (WIDE, SQUARE), radius=2.0)),
)
SEEDED = Streams(3)
P = 1e-6
"""A noise of the right law is taken for a wrong one once in a million draws; of seeded streams, so
never by chance."""


def drawn(plan: Plan, source: Streams | SystemStreams = SEEDED) -> list[list[np.ndarray]]:
    """Every aggregator's noise, block by block, in real units."""
    return [
        [
            z * block.step
            for z, block in zip(
                releases.party_noise(
                    QUESTION,
                    plan,
                    own,
                ),
                QUESTION.blocks,
                strict=True,
            )
        ]
        for own in releases.parties(source, plan)
    ]


def p_normal(sample: np.ndarray, std: float) -> float:
    return float(stats.kstest(sample.ravel(), stats.norm(0, std).cdf).pvalue)


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 0)])
def test_any_two_noises_have_the_planned_std_and_not_two_thirds_or_three_halves_of_it(
    pair: tuple[int, int],
) -> None:
    noise = drawn(THREE)
    planned = releases.noise_stds(QUESTION, TRUSTED)
    for number, (name, sample) in enumerate(
        [
            ("counts", noise[pair[0]][0] + noise[pair[1]][0]),
            ("items", noise[pair[0]][1] + noise[pair[1]][1]),
        ]
    ):
        std = planned[name]
        assert p_normal(sample, std) > P, number
        assert p_normal(sample, std * 2 / 3) < P
        assert p_normal(sample, std * 3 / 2) < P


def test_all_three_have_what_the_release_states_and_outsiders_calibration_is_the_trusted_noise() -> None:  # fmt: skip
    for plan, factor in ((THREE, math.sqrt(1.5)), (OUTSIDERS, 1.0)):
        total = [sum(blocks) for blocks in zip(*drawn(plan), strict=True)]
        answer, _ = releases.release(
            QUESTION, sums(), plan, Ledger(plan.guarantee), noise=Streams(3)
        )
        for block, sample in zip(QUESTION.blocks, total, strict=True):
            assert answer.values[block.name] == pytest.approx(sample, abs=1e-12)
        assert p_normal(answer.values["counts"], answer.noise_std["counts"]) > P
        trusted = releases.noise_stds(QUESTION, TRUSTED)
        assert answer.noise_std["counts"] == pytest.approx(factor * trusted["counts"], rel=1e-6)


def test_noise_off_the_diagonal_of_a_matrix_is_narrower_by_sqrt_2_for_each() -> None:
    std = releases.noise_stds(QUESTION, THREE)["items"] / math.sqrt(3)
    for party in drawn(THREE):
        diagonal = np.array([0, 3, 5])
        assert p_normal(party[2][:, diagonal], std) > P
        assert p_normal(np.delete(party[2], diagonal, axis=1), std / math.sqrt(2)) > P


def sums() -> list[np.ndarray]:
    return [np.zeros((block.rows, block.columns), np.int64) for block in QUESTION.blocks]


@pytest.mark.parametrize("source", [Streams(3), SystemStreams()])
def test_the_three_noises_are_independent(source: Streams | SystemStreams) -> None:
    """9,000 numbers: a correlation of 0.065 has a chance below 10^-9."""
    counts = np.column_stack([party[0].ravel() for party in drawn(THREE, source)])
    assert np.abs(np.corrcoef(counts.T) - np.eye(3)).max() < 0.065


def test_the_sum_of_two_discrete_gaussians_is_one_up_to_the_factor_of_the_proof() -> None:
    """At 6 steps, in exact-enough arithmetic: second code, by convolution."""
    import mpmath  # type: ignore[import-untyped]

    with mpmath.workdps(60):
        s = mpmath.mpf(6)
        reach = range(-120, 121)
        each = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / s**2) for k in reach}  # std s / sqrt(2)
        whole = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s**2)) for k in reach}
        norm_each = mpmath.fsum(each.values())
        norm_whole = mpmath.fsum(whole.values())
        for k in (0, 1, 5, 17):
            both = mpmath.fsum(each[j] * each[k - j] for j in range(-100, 101)) / norm_each**2
            assert abs(both / (whole[k] / norm_whole) - 1) < 1.1e-34
    with pytest.raises(ValueError, match="no sum of two"):
        calibration.party_std(5.9, coarsest_step=1.0)
    assert calibration.party_std(0.0, coarsest_step=1.0) == 0.0


def test_one_corrupt_calibration_keeps_the_epsilon_for_one_and_outsiders_have_less() -> None:
    assert (THREE.guarantee, THREE.releases) == (TRUSTED.guarantee, TRUSTED.releases)
    # the design's figures, of other code
    assert THREE.for_outsiders.epsilon == pytest.approx(3.95, abs=0.005)
    assert OUTSIDERS.guarantee.epsilon == pytest.approx(6.35, abs=0.005)
    assert OUTSIDERS.for_outsiders.epsilon == pytest.approx(5.0, rel=1e-9)
    nothing = calibrate(non_private(1e-5), {"counts": 1.0})
    assert not among_three(nothing, calibrated_for="outsiders").for_outsiders.private


@pytest.mark.parametrize("plan", [THREE, OUTSIDERS])
def test_pld_and_renyi_agree_on_both_epsilons_and_find_two_thirds_of_one_noise(plan: Plan) -> None:
    stds = {block.name: std for block, std in zip(QUESTION.blocks, _stds(plan), strict=True)}
    events = releases.priced(QUESTION, stds, plan)
    assert [event.mu for event in events] == pytest.approx(
        [release.mu for release in plan.releases], rel=1e-9
    )
    said = opinions(events, 1e-5)
    assert said.gdp == pytest.approx(plan.guarantee.epsilon, rel=1e-9)
    assert said.pld == pytest.approx(said.gdp, rel=1e-3)
    assert said.gdp <= said.rdp < 1.2 * said.gdp
    for_all = opinions([type(e)(e.name, e.mu / math.sqrt(1.5)) for e in events], 1e-5)
    assert for_all.pld == pytest.approx(plan.for_outsiders.epsilon, rel=1e-3)
    # one aggregator at two thirds of its std beside an honest one: (1 + 4/9) / 2 of the pair's
    # variance
    short = opinions(
        releases.priced(
            QUESTION, {name: std * math.sqrt((1 + 4 / 9) / 2) for name, std in stds.items()}, plan
        ),
        1e-5,
    )
    assert short.pld > 1.15 * plan.guarantee.epsilon


def _stds(plan: Plan) -> list[float]:
    by_release = releases.noise_stds(QUESTION, plan)
    return [by_release["counts"], by_release["items"], by_release["items"]]


def test_the_ledger_counts_what_one_aggregator_leaves() -> None:
    _, ledger = releases.release(QUESTION, sums(), THREE, Ledger(PROMISE), noise=Streams(1))
    assert ledger.epsilon == pytest.approx(5.0)
    with pytest.raises(BudgetExceededError):
        # outsiders' 5, but 6.35 with one aggregator
        releases.release(QUESTION, sums(), OUTSIDERS, Ledger(PROMISE), noise=Streams(1))


def test_a_trusted_plans_bytes_say_nothing_of_aggregation_and_a_three_party_plan_travels_whole() -> None:  # fmt: skip
    assert list(TRUSTED.content()) == ["guarantee", "releases"]
    for plan in (TRUSTED, THREE, OUTSIDERS):
        assert Plan.of(plan.content()) == plan
    assert (
        len(
            {
                plan.digest()
                for plan in (TRUSTED, THREE, among_three(TRUSTED, calibrated_for="outsiders"))
            }
        )
        == 3
    )
    with pytest.raises(PrivacyError, match="aggregation 'nobody'"):
        Plan.of(THREE.content() | {"aggregation": "nobody"})


def test_a_plan_that_claims_outsiders_epsilon_of_one_aggregator_is_no_plan() -> None:
    said = OUTSIDERS.content()
    with pytest.raises(PrivacyError, match="add up to more"):
        Plan.of(said | {"guarantee": said["guarantee"] | {"epsilon": 5.0}})
    assert compose([OUTSIDERS.event(r.name) for r in OUTSIDERS.releases]) > compose(
        [THREE.event(r.name) for r in THREE.releases]
    )
