"""The audit attacks what the registered variant ships: its own plan, its schedule, its charges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from fedrec.auditing import drawn_noise, label_table
from fedrec.auditing.finding import Finding
from fedrec.auditing.uploads import Clients, clients_of, gradient_distance, told_labels
from fedrec.news import local_update
from fedrec.news.trained import Catalogue, topics_of
from fedrec.news.variant import NewsVariant, promised, require
from fedrec.privacy.click_accounting import Costs
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
PASSES = ["news.users_per_round=100000", "news.rounds=3"]


def chosen(variant: str) -> Scenario:
    return load(None, [*NEWS, f"news.variant={variant}", *PASSES])


def attacked(variant: str, data: NewsData, catalogue: Catalogue) -> Finding:
    clients = clients_of(chosen(variant), catalogue, data.log.train)
    assert clients.passes == 3
    users = np.arange(24) if variant == "local" else np.arange(2)
    return drawn_noise.finding(variant, clients, users, rounds=4 if variant == "local" else 2)


@pytest.mark.parametrize("variant", ["local", "dp-fedrec"])
def test_the_noise_of_the_devices_themselves_holds_and_is_nearly_all_that_is_claimed(
    variant: str, data: NewsData, catalogue: Catalogue
) -> None:
    found = attacked(variant, data, catalogue)
    assert found.verdict == "holds"
    assert found.tightness > 0.8


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_laplace_noise_as_drawn_holds_and_half_of_it_does_not(
    share: float, data: NewsData, catalogue: Catalogue
) -> None:
    clients = clients_of(
        load(None, [*NEWS, "news.variant=local", "news.attention_noise=laplace", *PASSES]),
        catalogue,
        data.log.train,
    )
    assert isinstance(clients.update, local_update.Behind)
    plan = replace(clients.update.plan, parameter=clients.update.plan.parameter * share)
    found = drawn_noise.finding(
        "local",
        replace(clients, update=replace(clients.update, plan=plan)),
        np.arange(24),
        rounds=8,
    )
    assert (found.verdict == "holds") == (share == 1.0)
    assert found.measured > 0.75 * found.claim.epsilon


def _with_device(variant: NewsVariant, device: Callable[..., Any]) -> NewsVariant:
    assert variant.in_rounds is not None
    return replace(variant, in_rounds=replace(variant.in_rounds, device=device))


def _device(variant: NewsVariant) -> Callable[..., Any]:
    assert variant.in_rounds is not None
    return variant.in_rounds.device


def _noise_halved(variant: NewsVariant) -> NewsVariant:
    def device(*arguments: Any) -> Any:
        made = _device(variant)(*arguments)
        if isinstance(made, local_update.Behind):
            return replace(made, plan=replace(made.plan, noise_std=made.plan.noise_std / 2))
        return replace(made, noise_std=made.noise_std / 2)

    return _with_device(variant, device)


def _one_pass_charged(variant: NewsVariant) -> NewsVariant:
    def costs(scenario: Scenario, passes: int) -> Costs:
        assert variant.costs is not None
        honest = variant.costs(scenario, passes)
        return Costs(honest.history[:1], honest.labels)

    return replace(variant, costs=costs)


def _noise_of_one_pass(variant: NewsVariant) -> NewsVariant:
    return _with_device(
        variant, lambda scenario, data, passes, noise: _device(variant)(scenario, data, 1, noise)
    )


def _one_key_for_all_rounds(variant: NewsVariant) -> NewsVariant:
    class Stuck(local_update.DeviceNoise):
        def key(self, user: int, purpose: str, *, round: int = 0) -> bytes:
            return super().key(user, purpose)

    return _with_device(
        variant,
        lambda s, data, passes, noise: _device(variant)(
            s, data, passes, Stuck(noise.source, noise.users)
        ),
    )


@pytest.mark.parametrize("variant", ["local", "dp-fedrec"])
@pytest.mark.parametrize(
    "broken", [_noise_halved, _one_pass_charged, _noise_of_one_pass, _one_key_for_all_rounds]
)
def test_a_registered_variant_that_draws_or_charges_too_little_is_caught(
    variant: str,
    broken: Callable[[NewsVariant], NewsVariant],
    data: NewsData,
    catalogue: Catalogue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        import_module(f"fedrec.news.variants.{variant.replace('-', '_')}"),
        "VARIANT",
        broken(require(variant)),
    )
    assert attacked(variant, data, catalogue).verdict == "EXCEEDED"


def test_half_of_the_noise_of_reports_is_caught(
    data: NewsData, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load(None, [*NEWS, "news.variant=additive"])
    claim = promised(scenario)
    topics = topics_of(scenario, catalogue)
    shared: dict[str, Any] = {"history": scenario.news.history, "streams": Streams(1)}
    found = drawn_noise.report_finding(claim, data.log.train, topics, **shared)
    assert (found.verdict, found.tightness > 0.9) == ("holds", True)
    honest = drawn_noise.collect

    def half(part: Any, table: Any, plan: Any, **more: Any) -> Any:
        got = honest(part, table, plan, **more)
        exact = drawn_noise.bounded_mean.coefficients(part.last_clicks(more["history"]), table)
        return replace(
            got,
            coefficients=replace(got.coefficients, values=(got.coefficients.values + exact) / 2),
        )

    monkeypatch.setattr(drawn_noise, "collect", half)
    assert drawn_noise.report_finding(claim, data.log.train, topics, **shared).verdict == "EXCEEDED"


def test_labels_are_attacked_as_the_devices_tell_them(
    data: NewsData, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False alarm 0.1%; a device that answers at twice its epsilon is caught, and so is a gradient
    whose labels nobody is charged for."""
    scenario = load(None, [*NEWS, "news.variant=local", "privacy.epsilon=1"])
    clients = clients_of(scenario, catalogue, data.log.train)
    shown = [label_table.repeated_impression(click, 10, 1_000) for click in (0, 1)]

    def found(epsilon: float) -> Finding:
        asked = scenario.model_copy(
            update={"privacy": scenario.privacy.model_copy(update={"epsilon": epsilon})}
        )
        return drawn_noise.label_finding(
            "local", clients, [told_labels(asked, part, asked.seed) for part in shown]
        )

    assert found(1.0).verdict == "holds"
    assert found(2.0).verdict == "EXCEEDED"


def test_a_gradient_moves_with_a_label_and_its_clicks_are_charged_for_it(
    data: NewsData, catalogue: Catalogue
) -> None:
    clients: Clients = clients_of(chosen("dp-fedrec"), catalogue, data.log.train)
    user = int(data.log.train.users[0])
    assert (
        gradient_distance(clients, user, clients.with_labels(user))
        > 0.1 * clients.costs.history[0].mu
    )  # type: ignore[union-attr]
    assert drawn_noise.charged(clients.claim, clients.costs.labels).epsilon == pytest.approx(
        5.0, rel=1e-6
    )
