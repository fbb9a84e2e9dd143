"""Each attack on a mechanism that keeps its promise, and on one that breaks it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrec.auditing import (
    attention_click,
    canaries,
    coupling,
    label_probabilities,
    label_table,
    one_click,
    recovery,
)
from fedrec.auditing.recovery import Target
from fedrec.auditing.uploads import Clients, clients_of
from fedrec.news import attention, central, local_update
from fedrec.news.trained import Catalogue, topics_of
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import (
    Selection,
    largest_log_ratio,
    output_table,
    randomised_response,
    subset_selection,
)
from fedrec.randomness import Streams
from fedrec.run.data.news import NewsData
from fedrec.settings import Scenario, load

NEWS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.unit=click",
    "privacy.epsilon=5",
]
STREAMS = Streams(1)
DRAWS = 8_000


def claim(epsilon: float = 5.0) -> Guarantee:
    return Guarantee(epsilon, 1e-5, "click", "replace")


@pytest.fixture(scope="module")
def aims(scenario: Scenario, data: NewsData, catalogue: Catalogue) -> list[Target]:
    return recovery.targets(
        data.log.train, topics_of(scenario, catalogue), history=50, users=6, streams=STREAMS
    )


def clients(variant: str, data: NewsData, catalogue: Catalogue, *more: str) -> Clients:
    return clients_of(
        load(None, [*NEWS, f"news.variant={variant}", *more]), catalogue, data.log.train
    )


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 10.0])
def test_one_click_of_the_report_holds_at_its_noise_and_half_of_it_is_caught(
    scenario: Scenario, catalogue: Catalogue, epsilon: float
) -> None:
    """False alarm 0.1%."""
    topics = topics_of(scenario, catalogue)
    shared = {"history": 50, "draws": DRAWS, "streams": STREAMS}
    sound = one_click.report_finding("report", "additive", topics, claim(epsilon), **shared)
    broken = one_click.report_finding(
        "report", "additive", topics, claim(epsilon), mu=2 * mu_for(epsilon, 1e-5), **shared
    )
    assert (sound.verdict, broken.verdict) == ("holds", "EXCEEDED")
    assert epsilon < 5 or sound.tightness > 0.8


def test_the_farthest_items_are_as_far_as_the_table_says(
    scenario: Scenario, catalogue: Catalogue
) -> None:
    topics = topics_of(scenario, catalogue)
    i, j = one_click.farthest(topics)
    rows = np.vstack([topics.weights, np.zeros(topics.topics)])
    assert np.linalg.norm(rows[i] - rows[j]) == pytest.approx(topics.diameter, rel=1e-9)


@pytest.mark.parametrize("padding", [0.0, 0.3])
def test_one_answer_of_attention_holds_as_calibrated_and_with_half_the_noise_is_caught(
    padding: float,
) -> None:
    """False alarm 0.1%; with padding the bound is by the region, which assumes nothing but needs
    more draws."""
    plan = attention.gaussian_plan(claim(2.0), theta=0.5, padding=padding)
    shared = {"basis": 5, "draws": 5 * DRAWS, "streams": STREAMS}
    assert attention_click.attention_finding("answer", "local", plan, **shared).verdict == "holds"
    weak = replace(plan, noise_std=plan.noise_std / 3)
    assert (
        attention_click.attention_finding("answer", "local", weak, **shared).verdict == "EXCEEDED"
    )


def test_the_printed_noise_is_caught_at_epsilon_10_and_laplace_with_half_of_its_own() -> None:
    shared = {"basis": 5, "draws": DRAWS, "streams": STREAMS}
    printed = attention.gaussian_plan_as_printed(claim(10.0), theta=0.5)
    assert (
        attention_click.attention_finding("answer", "printed", printed, **shared).verdict
        == "EXCEEDED"
    )
    laplace = attention.laplace_plan(claim(2.0), theta=0.5)
    assert (
        attention_click.attention_finding("answer", "local", laplace, **shared).verdict == "holds"
    )
    assert attention_click.attention_finding(
        "answer", "local", replace(laplace, parameter=laplace.parameter / 2), **shared
    ).failed


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("mechanism", [randomised_response, subset_selection])
def test_the_largest_ratio_of_the_label_table_is_e_to_the_epsilon(
    mechanism: label_table.Mechanism, epsilon: float
) -> None:
    for candidates in (2, 10, 37, 38):
        found = label_probabilities.table_finding(
            "additive", mechanism, claim(epsilon), candidates=candidates
        )
        assert found.measured == pytest.approx(epsilon, rel=1e-9)
        assert found.verdict == "holds"


def test_classes_of_answers_say_what_the_exhaustive_table_says() -> None:
    for selection in (Selection(8, 3, 1.0), Selection(8, 1, 2.0), Selection(8, 7, 0.3)):
        assert largest_log_ratio(label_probabilities.class_table(selection)) == pytest.approx(
            largest_log_ratio(output_table(selection)), rel=1e-12
        )


def test_label_answers_hold_and_a_mechanism_that_spends_double_is_caught() -> None:
    shared = {"candidates": 10, "draws": DRAWS, "streams": STREAMS}
    sound = label_table.drawn_finding("additive", subset_selection, claim(2.0), **shared)
    assert sound.verdict == "holds"
    assert sound.tightness > 0.8

    def double(symbols: int, epsilon: float) -> Selection:
        return subset_selection(symbols, 2 * epsilon)

    assert label_table.drawn_finding("additive", double, claim(2.0), **shared).verdict == "EXCEEDED"
    assert (
        label_probabilities.table_finding("additive", double, claim(2.0), candidates=10).verdict
        == "EXCEEDED"
    )


def test_the_printed_permutation_has_infinite_epsilon_unless_all_is_sent() -> None:
    shared = {"draws": DRAWS, "streams": STREAMS}
    table, ratio = label_table.printed_findings(
        "printed", claim(5.0), candidates=10, negatives=4, **shared
    )
    assert math.isinf(table.measured)
    assert (table.verdict, ratio.verdict) == ("EXCEEDED", "EXCEEDED")
    everything, sent = label_table.printed_findings(
        "printed", claim(5.0), candidates=10, negatives=9, **shared
    )
    assert everything.measured == pytest.approx(5.0, rel=1e-9)
    assert (everything.verdict, sent.verdict) == ("holds", "holds")


@pytest.mark.parametrize(("model", "draws"), [("nrms", 4), ("naml", 2)])
def test_printed_gradients_name_the_clicked_news_and_local_ones_do_not(
    data: NewsData, catalogue: Catalogue, aims: list[Target], model: str, draws: int
) -> None:
    chosen = f"news.model={model}"
    printed = recovery.gradient_finding(
        "printed", clients("printed", data, catalogue, chosen), aims, draws=draws
    )
    assert printed.recovery is not None
    assert printed.recovery.rate >= 0.95
    assert printed.recovery.chance < 0.05
    assert (printed.by, printed.verdict) == ("support", "EXCEEDED")
    local = recovery.gradient_finding(
        "local", clients("local", data, catalogue, chosen), aims, draws=draws
    )
    assert local.recovery is not None
    # the upload does not depend on the history but through noised weights
    assert local.recovery.rate == local.recovery.chance
    assert local.recovery.rate < 0.06
    assert (local.by, local.verdict) == ("none", "holds")


def test_the_row_space_of_a_first_dense_layer_holds_the_vectors_it_multiplied() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((300, 100)).astype(np.float32)
    used = np.arange(0, 60, 3)
    gradient = vectors[used].T @ rng.standard_normal((len(used), 64)).astype(np.float32)
    found = recovery.row_space_evidence(gradient, vectors)
    assert recovery.named(found, used, np.array([1, 2])) == 1.0
    assert recovery.named(found, np.arange(1, 61, 3), np.array([2])) < 0.2


def test_whole_gradients_under_noise_name_nothing_and_bare_ones_all(
    data: NewsData, catalogue: Catalogue, aims: list[Target]
) -> None:
    noised = recovery.gradient_finding(
        "dp-fedrec", clients("dp-fedrec", data, catalogue), aims[:4], draws=5
    )
    bare = recovery.gradient_finding(
        "fedrec", clients("fedrec", data, catalogue, "privacy.epsilon=inf"), aims[:4], draws=5
    )
    assert noised.recovery is not None
    assert bare.recovery is not None
    assert (noised.verdict, bare.verdict) == ("holds", "no claim")
    assert noised.recovery.rate < 0.1 < 0.99 < bare.recovery.rate


def test_from_a_report_no_more_clicks_are_named_than_taste_names(
    scenario: Scenario, catalogue: Catalogue, data: NewsData
) -> None:
    """Within 5 standard errors of paired differences; without noise the report does name more."""
    topics = topics_of(scenario, catalogue)
    many = recovery.targets(data.log.train, topics, history=50, users=200, streams=STREAMS)
    found = recovery.report_finding(
        "additive", claim(), topics, many, mu=mu_for(5.0, 1e-5), streams=STREAMS
    )
    assert found.recovery is not None
    assert abs(found.recovery.rate - found.recovery.chance) < 0.04
    assert found.verdict == "holds"


def test_with_the_same_released_values_another_history_gives_the_same_bytes_and_printed_ones_differ(
    scenario: Scenario, data: NewsData, catalogue: Catalogue, aims: list[Target]
) -> None:
    topics = topics_of(scenario, catalogue)
    report = coupling.report_finding(
        "additive", claim(), data.log.train, topics, history=50, streams=STREAMS
    )
    local = coupling.gradient_finding("local", clients("local", data, catalogue), aims[:6])
    printed = coupling.gradient_finding("printed", clients("printed", data, catalogue), aims[:6])
    assert (report.verdict, local.verdict, printed.verdict) == ("holds", "holds", "REFUTED")


def test_a_local_update_that_looks_at_the_history_after_all_is_caught(
    data: NewsData, catalogue: Catalogue, aims: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that scales its gradient by how long its history is."""
    honest = local_update.released_gradient

    def telling(model, devices, users, released):  # type: ignore[no-untyped-def]
        gradient, loss = honest(model, devices, users, released)
        return gradient * np.float32(1 + devices.history[users].max() / 1000), loss

    monkeypatch.setattr(local_update, "released_gradient", telling)
    assert (
        coupling.gradient_finding("local", clients("local", data, catalogue), aims[:5]).verdict
        == "REFUTED"
    )


def test_canaries_hold_at_the_right_noise_and_half_of_it_is_caught(
    scenario: Scenario, data: NewsData, catalogue: Catalogue
) -> None:
    """False alarm 0.1% for the ratio test, none for the length."""
    settings = replace(central.CentralSettings(), rounds=3)
    topics = topics_of(scenario, catalogue)
    plan = central.plan_of(Guarantee(5.0, 1e-5), settings)
    weak = replace(plan, releases=tuple(replace(r, mu=2 * r.mu) for r in plan.releases))
    done = central.train(
        data.log.train, topics, catalogue.vectors, plan, settings, history=50, noise=STREAMS
    )
    models = [step.model for step in done]

    def verdicts(used: central.Plan) -> list[str]:
        found = canaries.attacked(
            models, data.log.train, topics, used, settings, draws=DRAWS, streams=STREAMS
        )
        assert found[1].tightness > 0.8
        return [finding.verdict for finding in found]

    assert verdicts(plan) == ["holds", "holds"]
    assert verdicts(weak) == ["EXCEEDED", "EXCEEDED"]
