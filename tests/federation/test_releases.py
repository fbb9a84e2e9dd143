"""What a release costs is read off the noise that is drawn and the norm that is checked, not off
what the plan calls it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrec.errors import BudgetExceededError
from fedrec.federation import releases
from fedrec.federation.messages import BlockSpec, Question, ReleaseSpec
from fedrec.privacy import gaussian
from fedrec.privacy.accounting import Ledger, compose, opinions
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams

PROMISE = Guarantee(5.0, 1e-5)
PLAN = calibrate(PROMISE, {"counts": 1.0, "items": 3.0})
LINEAR = BlockSpec("counts", "linear", 4, 1, 2.0**-14, 1.0)
OUTER = BlockSpec("gram", "outer", 4, 3, 2.0**-10, 2.0**-6)
MOMENT = BlockSpec("moment", "linear", 4, 3, 2.0**-10, 2.0**-8)
QUESTION = Question(
    0,
    "step",
    {},
    (ReleaseSpec("counts", (LINEAR,)), ReleaseSpec("items", (OUTER, MOMENT), radius=2.0)),
)
SUMS = [np.zeros((4, columns), np.int64) for columns in (1, 6, 3)]


def stds_of(question: Question, factor: float = 1.0) -> dict[str, float]:
    by_release = releases.noise_stds(question, PLAN)
    return {
        block.name: factor * by_release[spec.name]
        for spec in question.releases
        for block in spec.blocks
    }


def test_the_noise_of_a_plan_costs_what_the_plan_says() -> None:
    events = releases.priced(QUESTION, stds_of(QUESTION), PLAN)
    assert [event.mu for event in events] == pytest.approx(
        [PLAN["counts"].mu, PLAN["items"].mu], rel=1e-12
    )
    assert compose(events) == pytest.approx(math.hypot(*(r.mu for r in PLAN.releases)), rel=1e-12)


def test_half_of_the_noise_is_priced_at_more_than_twice_the_epsilon_by_every_accountant() -> None:
    said = opinions(releases.priced(QUESTION, stds_of(QUESTION, 0.5), PLAN), 1e-5)
    assert min(said.gdp, said.pld, said.rdp) > 11.4


def test_a_radius_that_is_checked_at_twice_the_length_costs_twice_the_mu() -> None:
    wide = replace(
        QUESTION,
        releases=tuple(replace(spec, radius=2 * spec.radius) for spec in QUESTION.releases),
    )
    once, twice = (releases.priced(asked, stds_of(QUESTION), PLAN) for asked in (QUESTION, wide))
    assert [event.mu for event in twice] == pytest.approx([2 * event.mu for event in once])


def test_one_block_with_less_noise_than_the_others_sets_the_price_of_its_release() -> None:
    drawn = stds_of(QUESTION) | {"moment": 0.5 * stds_of(QUESTION)["moment"]}
    counts, items = releases.priced(QUESTION, drawn, PLAN)
    assert counts.mu == pytest.approx(PLAN["counts"].mu)
    assert items.mu == pytest.approx(2 * PLAN["items"].mu, rel=1e-6)


@pytest.mark.parametrize("isometric", [True, False])
@pytest.mark.parametrize("blocks", [(OUTER,), (MOMENT,), (OUTER, MOMENT)])
@pytest.mark.parametrize("aggregation", ["trusted", "three-party"])
def test_the_price_is_that_of_the_shape_that_ships(
    aggregation: str, blocks: tuple[BlockSpec, ...], isometric: bool
) -> None:
    """Recomputed from what leaves alone: the noise of each number as it is drawn (50,000 rows,
    each std right to 2%, in all but 1 of 10^5 runs; the key is fixed), and what the longest report
    moves it by, over packed triangles along the axes and in 500 other directions.

    Where three aggregate, one of them may tell: two parts of noise are left."""
    plan = replace(PLAN, aggregation=aggregation)  # type: ignore[arg-type]
    items = ReleaseSpec("items", blocks, radius=2.0, isometric=isometric)
    asked = replace(QUESTION, releases=(QUESTION.releases[0], items))
    stds = releases.noise_stds(asked, plan)
    by_block = {block.name: stds[spec.name] for spec in asked.releases for block in spec.blocks}
    told = {event.name: event.mu for event in releases.priced(asked, by_block, plan)}
    shapes = [(50_000, block.columns) for block in asked.blocks]
    parties = releases.parties(Streams(3), plan)[-2:]
    drawn = [list(releases.party_noise(asked, plan, party, shapes)) for party in parties]
    rng = np.random.default_rng(1)
    for spec in asked.releases:
        dearest = 0.0
        for block in spec.blocks:
            noise = sum(part[asked.blocks.index(block)] for part in drawn) * block.step
            std = np.sqrt(np.mean(noise**2, axis=0))
            x = np.concatenate([np.eye(block.width), rng.standard_normal((500, block.width))])
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            if block.kind == "outer":
                row, column = np.triu_indices(block.width)
                x = x[:, row] * x[:, column]
            dearest = max(dearest, float(np.linalg.norm(spec.radius * x / std, axis=1).max()))
        assert told[spec.name] == pytest.approx(dearest, rel=0.03)


@pytest.mark.parametrize("round", [0, 1, 7])
def test_every_release_of_every_round_is_on_the_ledger_and_told(round: int) -> None:
    told = list[str]()
    _, ledger = releases.release(
        replace(QUESTION, round=round),
        SUMS,
        PLAN,
        Ledger(PROMISE),
        noise=Streams(1),
        charge=lambda events: told.extend(event.name for event in events),
    )
    assert [event.name for event in ledger.events] == told == ["counts", "items"]
    assert ledger.epsilon == pytest.approx(PROMISE.epsilon)


def test_a_halved_std_is_refused_by_the_ledger_before_noise_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoKeys(Streams):
        def key(self, name: str, *, round: int = 0) -> bytes:
            raise AssertionError("noise was drawn")

    honest, _ = releases.release(QUESTION, SUMS, PLAN, Ledger(PROMISE), noise=Streams(1))
    assert honest.noise_std == pytest.approx(stds_of(QUESTION))
    sound = gaussian.noise_std
    monkeypatch.setattr(gaussian, "noise_std", lambda **given: 0.5 * sound(**given))
    with pytest.raises(BudgetExceededError, match="would bring the total to epsilon"):
        releases.release(QUESTION, SUMS, PLAN, Ledger(PROMISE), noise=NoKeys(1))


def test_no_noise_or_a_grid_as_coarse_as_the_noise_costs_infinity() -> None:
    assert gaussian.mu_of(radius=1.0, std=0.0, coarsest_step=2.0**-14) == math.inf
    assert gaussian.mu_of(radius=1.0, std=2.0, coarsest_step=1.0) == math.inf
    std = gaussian.noise_std(radius=1.0, mu=0.3, coarsest_step=0.25)
    assert gaussian.mu_of(radius=1.0, std=std, coarsest_step=0.25) == pytest.approx(0.3, rel=1e-12)
