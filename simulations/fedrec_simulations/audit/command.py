"""`fedrec audit`: every attack that fits a scenario, a table of what was claimed and what was shown, and an exit code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedrec.data.impressions import Impressions
from fedrec.errors import PrivacyError, SettingsError
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import randomised_response, subset_selection
from fedrec.privaterec import attention, central, federated
from fedrec.privaterec.trained import Catalogue, promised, topics_of
from fedrec.recipes import prepare
from fedrec.settings import Scenario
from fedrec.streams import Streams
from fedrec_simulations.audit import canaries, coupling, label_table, membership, one_click, recovery
from fedrec_simulations.audit.finding import Finding, Recovery
from fedrec_simulations.audit.uploads import clients_of, gradient_distance
from fedrec_simulations.datasets import load_dataset, load_split, public_facts
from fedrec_simulations.news_data import catalogue_of, load_news


@dataclass(frozen=True)
class Effort:
    """How often mechanisms run, how many users are attacked, how often one of them uploads."""

    draws: int = 40_000
    users: int = 100
    uploads: int = 20


QUICK = Effort(draws=4_000, users=8, uploads=6)


@dataclass(frozen=True)
class Audit:
    """All findings on one scenario."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 where no bound exceeds its claim and no step of a proof is refuted; else that of a privacy limit."""
        return PrivacyError.exit_code if any(finding.failed for finding in self.findings) else 0

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per attack."""
        return [dict(finding.row()) for finding in self.findings]

    def table(self) -> str:
        """The same at 80 columns, what the columns mean, and why the exit code is not 0 where it is not."""
        head = f"{'attack':23} {'per':5} {'claimed':>8} {'at least':>8} {'by':>8} {'recovered':>11}  verdict"
        lines = [head, *(_line(finding) for finding in self.findings), "", *_key(self.findings)]
        reasons = [f"{f.verdict}: {f.attack}: {f.note}" for f in self.findings if f.failed]
        return "\n".join([*lines, "", *reasons] if reasons else lines)


def run(scenario: Scenario, *, quick: bool = False) -> Audit:
    """Attack what the scenario would send and release. Raises what reading its data raises.

    Everything comes from the scenario's seed, whatever `privacy.noise` says: the same audit twice is the same audit.
    """
    attacks = _news if scenario.recipe == "privaterec" else _factorisation
    return Audit(tuple(attacks(scenario, QUICK if quick else Effort())))


def _factorisation(scenario: Scenario, effort: Effort) -> Iterator[Finding]:
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    prepared = prepare(scenario, public_facts(scenario, dataset, split))
    yield from membership.membership(prepared, split.train, variant=scenario.recipe, draws=effort.draws, streams=Streams(scenario.seed))


def _news(scenario: Scenario, effort: Effort) -> Iterator[Finding]:
    torch.set_num_threads(1)  # sums depend on their number, and uploads are compared bit for bit
    data = load_news(scenario)
    if scenario.news.open_categories:
        raise SettingsError(
            "the attacks exchange any click for any other, and open ones are not covered", "Audit without news.open_categories."
        )
    catalogue = catalogue_of(scenario, data)
    attacks = {"additive": _additive, "central": _central, "centralized": _centralized}.get(scenario.news.variant, _in_rounds)
    yield from attacks(scenario, catalogue, data.log.train, effort)


def _additive(scenario: Scenario, catalogue: Catalogue, train: Impressions, effort: Effort) -> Iterator[Finding]:
    claim, topics, streams, H = promised(scenario), topics_of(scenario, catalogue), Streams(scenario.seed), scenario.news.history
    aims = recovery.targets(train, topics, history=H, users=effort.users, streams=streams)
    mu = mu_for(claim.epsilon, claim.delta)
    yield recovery.report_finding("additive", claim, topics, aims, mu=mu, streams=streams)
    yield coupling.report_finding("additive", claim, train, topics, history=H, streams=streams)
    yield label_table.table_finding("additive", subset_selection, claim, candidates=_usual(train))
    if claim.private:
        shown = _usual(train)
        yield label_table.drawn_finding("additive", subset_selection, claim, candidates=shown, draws=effort.draws, streams=streams)
    yield one_click.report_finding("one click: training", "additive", topics, claim, history=H, draws=effort.draws, streams=streams)
    yield from _served_reports(scenario, catalogue, effort)


def _central(scenario: Scenario, catalogue: Catalogue, train: Impressions, effort: Effort) -> Iterator[Finding]:
    claim, topics, news = promised(scenario), topics_of(scenario, catalogue), scenario.news
    chosen = {"rounds": news.rounds, "clip": news.clip, "learning_rate": news.learning_rate}
    settings = replace(central.CentralSettings(), **{name: value for name, value in chosen.items() if value})  # type: ignore[arg-type]
    plan, streams = central.plan_of(claim, settings), Streams(scenario.seed)
    shared = {"history": news.history, "draws": effort.draws, "streams": streams}
    yield from canaries.canaries(train, topics, catalogue.vectors, plan, settings, **shared)  # type: ignore[arg-type]
    yield from _served_reports(scenario, catalogue, effort)


def _centralized(scenario: Scenario, catalogue: Catalogue, train: Impressions, effort: Effort) -> Iterator[Finding]:
    everything = Recovery(1.0, 0.0)
    yield Finding("clicked news", "centralized", promised(scenario), math.inf, "exact", 1.0, recovery=everything, note="all data is sent")


def _in_rounds(scenario: Scenario, catalogue: Catalogue, train: Impressions, effort: Effort) -> Iterator[Finding]:
    variant, streams = scenario.news.variant, Streams(scenario.seed)
    clients, topics = clients_of(scenario, catalogue, train), topics_of(scenario, catalogue)
    aims = recovery.targets(train, topics, history=scenario.news.history, users=effort.users, streams=streams)
    yield recovery.gradient_finding(variant, clients, aims, draws=effort.uploads)
    if variant in {"local", "printed"}:
        yield coupling.gradient_finding(variant, clients, aims)
        yield from _labels(variant, clients.claim, train, effort, streams)
        yield from _attention(scenario, clients.claim, effort)
    if variant == "dp-fedrec":
        mu = max(gradient_distance(clients, aim.user, aim.decoy) for aim in aims)
        measured = epsilon_of(mu, clients.claim.delta)
        yield Finding(
            "one history: gradients", variant, clients.claim, measured, "exact", 1.0, note="all clicks exchanged, noise as declared"
        )


def _labels(variant: str, claim: Guarantee, train: Impressions, effort: Effort, streams: Streams) -> Iterator[Finding]:
    usual = {"candidates": _usual(train)}
    drawn = {"draws": effort.draws, "streams": streams, **usual}
    if not claim.private:
        return
    if variant == "printed":
        yield from label_table.printed_findings(variant, claim, negatives=federated.NEGATIVES, **drawn)  # type: ignore[arg-type]
        return
    yield label_table.table_finding(variant, randomised_response, claim, **usual)
    yield label_table.drawn_finding(variant, randomised_response, claim, **drawn)  # type: ignore[arg-type]


def _attention(scenario: Scenario, claim: Guarantee, effort: Effort) -> Iterator[Finding]:
    """One answer of training, as the variant calibrates it, and one of serving at every finite epsilon, which is sound in both."""
    news, streams = scenario.news, Streams(scenario.seed)
    chosen = {"theta": news.clip or federated.THETA, "padding": news.padding}
    shared = {"basis": news.basis or federated.BASIS, "draws": effort.draws, "streams": streams}
    if claim.private:
        plan = (attention.gaussian_plan_as_printed if news.variant == "printed" else attention.gaussian_plan)(claim, **chosen)
        yield one_click.attention_finding("one click: training", news.variant, plan, **shared)  # type: ignore[arg-type]
    for served in _serving(scenario):
        plan = attention.gaussian_plan(served, **chosen)
        yield one_click.attention_finding(f"one click: serving {served.epsilon:g}", news.variant, plan, **shared)  # type: ignore[arg-type]


def _served_reports(scenario: Scenario, catalogue: Catalogue, effort: Effort) -> Iterator[Finding]:
    topics, streams, news = topics_of(scenario, catalogue), Streams(scenario.seed), scenario.news
    for served in _serving(scenario):
        name = f"one click: serving {served.epsilon:g}"
        yield one_click.report_finding(name, news.variant, topics, served, history=news.history, draws=effort.draws, streams=streams)


def _serving(scenario: Scenario) -> list[Guarantee]:
    delta, finite = scenario.privacy.delta, [e for e in scenario.news.serving_epsilons if math.isfinite(e)]
    return [Guarantee(epsilon, delta, "click", "replace") for epsilon in finite]


def _usual(train: Impressions) -> int:
    """The most frequent number of candidates."""
    return int(np.bincount(np.diff(train.candidate_ptr)).argmax())


def _line(finding: Finding) -> str:
    recovered = "" if finding.recovery is None else str(finding.recovery)
    measured = "-" if finding.by == "none" else f"{finding.measured:.4g}"
    claim = finding.claim
    return f"{finding.attack:23} {claim.unit:5} {claim.epsilon:8.4g} {measured:>8} {finding.by:>8} {recovered:>11}  {finding.verdict}"


def _key(findings: tuple[Finding, ...]) -> list[str]:
    neighbours = " and ".join(sorted({f.claim.compared for f in findings}))
    deltas = ", ".join(f"{delta:g}" for delta in sorted({f.claim.delta for f in findings}))
    confidence = min(finding.confidence for finding in findings)
    return [
        f"epsilon at delta {deltas} {neighbours};",
        f'claimed, and "at least" as shown by the attack, each with {confidence:.1%} confidence.',
        "by region: nothing assumed; gaussian: of mu-GDP; exact, support: no estimate.",
        "recovered: share of private facts named (and by who cannot know).",
    ]
