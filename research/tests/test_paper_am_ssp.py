"""The figures of AM-SSP: blind to test until the end, labelled where a guarantee is not
established, and their costs counted a second time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.kinds import Kind
from fedrec.data.splits import Fold
from fedrec.encoders import items as encoder
from fedrec.recipes.ssp_choices import WITH_FEATURES
from fedrec.settings import load
from fedrec.shipped import path_of
from fedrec_research import runner
from fedrec_research.papers import am_ssp_costs, am_ssp_runs
from fedrec_research.papers.ada_dpals_runs import metric_of
from fedrec_research.papers.am_ssp_runs import (
    LOOPBACK,
    PRINTED,
    SSP,
    SSP1,
    best_rate,
    one_run,
    prepared,
    resampled,
    scenario_of,
)
from fedrec_research.papers.starts import Start
from fedrec_research.sealed import SealedSplit, load_sealed
from research.tests.paper_rows import paper_rows

EPSILONS = (0.5, 1.0, 5.0, 10.0, 20.0, math.inf)


def start_of(kind: Kind = "ratings") -> Start:
    return Start("am_ssp_figure1" if kind == "ratings" else "am_ssp_figure2", "planted")


@pytest.mark.slow
def test_the_paper_s_own_calibration_is_labelled_wherever_it_stands(tmp_path: Path) -> None:
    rows = paper_rows("am-ssp/figure1", tmp_path)
    doubtful = {row["series"] for row in rows if "NOT ESTABLISHED" in row["guarantee"]}
    assert doubtful == {PRINTED.label}
    assert "as printed" in PRINTED.label


@pytest.mark.parametrize("name", ["am_ssp_figure1", "am_ssp_figure2"])
def test_settings_are_there_for_every_epsilon_and_the_file_s_own_point_is_one_of_them(
    name: str,
) -> None:
    scenario = Start(name)
    assert {line.epsilon for line in scenario.figure.settings if line.curve == "AM-SSP"} == set(
        EPSILONS
    )
    own = scenario.settings("AM-SSP", scenario.scenario.privacy.epsilon)["model"]
    assert own.items() <= scenario.scenario.model.model_dump().items()


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_test_events_do_not_show_before_the_end(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the targets of test replaced, only what is measured on test changes: not the model, and
    not the learning rate of Figure 4."""
    start = start_of(kind)
    honest = load_sealed
    found = one_run(start, SSP, 5.0, 1)
    rate = best_rate(start, resampled(2, 0.5), 5.0, 1)

    def with_other_test(scenario: Any) -> Any:
        dataset, sealed = honest(scenario)
        split = sealed._split
        targets = split.test.targets
        other = (
            targets.select(np.arange(len(targets)) % 2 == 0)
            if kind == "clicks"
            else replace(targets, values=6 - targets.values)
        )
        return dataset, SealedSplit(replace(split, test=Fold(split.test.history, other)))

    for module in (am_ssp_runs, runner):
        monkeypatch.setattr(module, "load_sealed", with_other_test)
    changed = one_run(start, SSP, 5.0, 1)
    assert changed["model_sha256"] == found["model_sha256"]
    assert changed[metric_of(kind)] != found[metric_of(kind)]
    assert best_rate(start, resampled(2, 0.5), 5.0, 1) == rate


def test_every_resample_of_ssp1_is_a_release_that_the_plan_pays_for() -> None:
    once, often = (prepared(start_of(), curve, 5.0, 1).plan for curve in (SSP, SSP1))
    assert len(often.releases) - 2 == 16 * (len(once.releases) - 2)
    assert often.guarantee == once.guarantee
    assert math.fsum(r.mu**2 for r in often.releases) == pytest.approx(
        math.fsum(r.mu**2 for r in once.releases)
    )


def test_the_model_without_features_gets_none() -> None:
    scenario = scenario_of(start_of(), LOOPBACK, 5.0, 1)
    assert scenario.model.encoder == "id"
    assert not scenario.data.features


@pytest.mark.parametrize("batch", [50, 400])
def test_visits_of_an_item_are_what_batches_show(batch: int) -> None:
    """Mean over 200 drawn epochs; the formula lies within five standard errors (chance of a false
    alarm below 1e-6)."""
    rng = np.random.default_rng(1)
    counts = np.array([600, 300, 80, 15, 5])
    items = np.repeat(np.arange(5), counts)
    seen = [
        np.mean([len(set(rng.choice(items, batch))) for _ in range(1000 // batch)])
        / 5
        * (1000 // batch)
        for _ in range(200)
    ]
    expected = am_ssp_costs.visits(counts, batch) * (1000 // batch * batch) / 1000
    assert abs(np.mean(seen) - expected) < 5 * np.std(seen) / math.sqrt(200)
    counted = [am_ssp_costs.counted_visits(items, batch, 5, rng=rng) for _ in range(200)]
    assert abs(np.mean(counted) - expected) < 5 * np.std(counted) / math.sqrt(200)


def test_visits_are_as_many_as_the_paper_prints() -> None:
    """App. C: beta = D in batches of one, about m in one batch of all, and more than a hundred
    visits up to a few thousand examples."""
    counts = am_ssp_costs.power_law(0.3)
    assert counts.sum() == pytest.approx(1e6)
    assert am_ssp_costs.visits(counts, 1) == pytest.approx(1_000)
    assert 0.9 < am_ssp_costs.visits(counts, 1_000_000) <= 1
    assert am_ssp_costs.visits(counts, 5_000) > 100


def test_the_cost_ratio_is_that_of_proposition_2() -> None:
    D = 1e6
    d = 8
    e = 30
    m = 1e3
    c = 50.0
    beta = 4e5
    found = am_ssp_costs.cost_ratio(
        visits=beta / m, epochs=e, pass_cost=c, dimension=d, examples_per_item=D / m
    )
    assert found == pytest.approx((D * d**2 + e * m * (c + d**2)) / (c * e * beta))


class Silent:
    """A generator whose noise is zero."""

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype)


def test_the_shared_step_is_the_sum_of_clipped_gradients_of_examples() -> None:
    """Against one backward pass per example, with items that repeat: second code for the norm and
    for the sharing."""
    rng = np.random.default_rng(3)
    d = 4
    bags = {
        name: FeatureBag(
            tuple("abc"), sparse.csr_matrix(rng.integers(0, 3, (6, 3)).astype(np.float32))
        )
        for name in ("kind", "cast")
    }
    inputs = encoder.prepare(PublicFeatures(bags))
    theta = encoder.init(inputs, d, rng=rng)
    items = np.array([0, 3, 3, 5, 0, 3])
    U = rng.standard_normal((6, d)).astype(np.float32)
    y = rng.standard_normal(6).astype(np.float32)
    found = am_ssp_costs.shared_step(theta, inputs, items, U, y, radius=0.7, rng=Silent())  # type: ignore[arg-type]
    totals = [np.zeros_like(a) for a in (theta.embeddings, theta.dense, theta.bias)]
    norms = list[float]()
    for j, u, target in zip(items, U, y, strict=True):
        one = inputs.batch(np.array([j]))
        residual = (encoder.forward(theta, one)[0] @ u - target) * u
        g = encoder.pullback(theta, one, residual[None])
        embeddings = np.zeros_like(theta.embeddings)
        embeddings[g.features] = g.embeddings
        norms.append(
            math.sqrt(sum(float((part**2).sum()) for part in (embeddings, g.dense, g.bias)))
        )
        for total, part in zip(totals, (embeddings, g.dense, g.bias), strict=True):
            total += part * min(1, 0.7 / norms[-1])
    assert min(norms) < 0.7 < max(norms)
    for total, part in zip(totals, (found.embeddings, found.dense, found.bias), strict=True):
        np.testing.assert_allclose(part, total, rtol=1e-4, atol=1e-5)


def test_the_paper_s_figure_and_the_rule_have_one_set_of_settings() -> None:
    start = Start("am_ssp_figure1")
    for epsilon, rule in WITH_FEATURES.items():
        said = start.settings("AM-SSP", epsilon)["model"]
        assert {name: getattr(rule, name) for name in rule.__dataclass_fields__} == {
            name: said[name] for name in rule.__dataclass_fields__
        }


def test_the_shipped_scenario_of_ssp2_has_the_settings_of_the_figure_at_its_epsilon() -> None:
    ssp2 = load(path_of("ml1m_ssp2"))
    figure = Start("am_ssp_figure1").scenario
    assert (ssp2.model, ssp2.privacy.epsilon) == (figure.model, figure.privacy.epsilon)
