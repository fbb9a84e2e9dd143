"""Ratings and clicks as the workload of a run: read, trained, and set beside what needs no
privacy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.data.interactions import Dataset, FileDigest
from fedrec.data.kinds import KINDS
from fedrec.data.splits import Split
from fedrec.errors import SettingsError
from fedrec.evaluation.als import ALS, ITEM_ITEM, MOST_EVENTS, als_model, evenly, item_item
from fedrec.evaluation.controls import in_one_line
from fedrec.factorization.default_clicks.model import public_alone
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.factorization.rankers import Model
from fedrec.numerics.threads import peak_rss_mb
from fedrec.preparing import prepare
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes.public_directions import public_sources
from fedrec.registry import require
from fedrec.report.content import ReportContent
from fedrec.report.findings import report_content
from fedrec.run import statement
from fedrec.run.data.datasets import beside, load_dataset, load_split
from fedrec.run.input_digests import inputs_of
from fedrec.run.job import Job, RuntimeChoice, loopback
from fedrec.run.model_folder import keep_model
from fedrec.run.outcomes import BY_RULE, Outcome, Run, baselines, evaluate, ranked, ranked_fold
from fedrec.run.progress import stage
from fedrec.run.training import Trained, Work, train_each, train_published
from fedrec.run.workload import Setting, cautions
from fedrec.serving.exporting import Export
from fedrec.serving.model_bundles import bundle_of
from fedrec.settings import RecipeScenario, Scenario, validated
from fedrec.settings_tables.data import EvaluationSettings
from fedrec.storage import finite, write_bytes, write_json

PUBLIC_ALONE = "public sides alone"
SIMPLE = {"ratings": "dp-bias", "clicks": "dp-item-item"}
"""Simple private recipe that a model is set beside, by kind of data. `dp-popularity` is left out:
popularity without privacy, which is never clearly worse, stands there already."""
MOST_SIMPLE = 2_000_000
"""Training events beyond which they are left out: they would take minutes."""


@dataclass(frozen=True)
class Ratings:
    """See `workload.Workload`."""

    dataset: Dataset
    split: Split
    facts: PublicFacts

    @staticmethod
    def require_carried(scenario: RecipeScenario, choice: RuntimeChoice) -> None:
        """See `Workload`."""
        if require(scenario.recipe).curated and choice.runtime != "loopback":
            raise SettingsError(
                f'recipe = "{scenario.recipe}" is trained by one curator with everybody\'s data: '
                f"there is no --runtime {choice.runtime} of it",
                "Leave --runtime out, or choose another recipe.",
            )
        if scenario.privacy.horizon and choice.runtime != "loopback":
            raise SettingsError(
                f"privacy.horizon: parties of --runtime {choice.runtime} keep no stream yet",
                "Leave --runtime out, or the horizon.",
            )
        if scenario.privacy.shares == "real" and choice.runtime != "loopback":
            raise SettingsError(
                f"privacy.shares has no effect with --runtime {choice.runtime}, "
                "which always shares",
                "Leave one of the two out.",
            )
        if scenario.privacy.limits and choice.runtime in {"parties", "flower", "processes"}:
            cause = (
                f"privacy.personal_epsilons: clients of --runtime {choice.runtime} have one limit "
                "each, their own setting"
            )
            raise SettingsError(
                cause, "Leave --runtime out, or give machines privacy.personal_epsilon."
            )

    @classmethod
    def load(cls, scenario: Scenario, given: Dataset | None) -> Ratings:
        """See `Workload`."""
        dataset = load_dataset(scenario) if given is None else beside(given, scenario)
        split = load_split(scenario, dataset)
        facts = public_facts(scenario.seed, dataset, split)
        times = split.train.times
        if scenario.privacy.horizon and times is None and not facts.rated:
            raise SettingsError(
                "privacy.horizon divides the time of clicks into weeks: these have no times",
                "Name the column of times (data.columns.timestamp), or leave the horizon out.",
            )
        if scenario.privacy.horizon and times is not None:
            facts = replace(facts, period=(int(times.min()), int(times.max())))
            said = "the first and last time of the training rows, between which weeks are counted"
            split = replace(split, not_covered=(*split.not_covered, said))
        return cls(dataset, split, facts)

    @property
    def files(self) -> Sequence[FileDigest]:
        """See `Workload`."""
        return self.dataset.provenance.files

    @property
    def people(self) -> Dataset:
        """See `Workload`."""
        return self.dataset

    @property
    def inputs(self) -> Mapping[str, Any]:
        """See `Workload`."""
        return inputs_of(self.dataset) | {
            "training data": self.split.train,
            "validation data": self.split.validation,
            "test data": self.split.test,
        }

    def described(self) -> Mapping[str, object]:
        """See `Workload`."""
        return {"provenance": self.dataset.provenance.describe(), "split": self.split.describe()}

    def train(self, setting: Setting) -> dict[float, Trained]:
        """See `Workload`."""
        return train_each(setting.scenario, self._work(setting))

    def evaluate(self, setting: Setting, trained: dict[float, Trained]) -> FinishedRun:
        """See `Workload`."""
        scenario = setting.scenario
        split = self.split
        console = setting.console
        rivals, models, limits = rivals_of(scenario, split, console, self.facts)
        published = {
            e: (t, _evaluate(scenario.evaluation, t.model, split, rivals))
            for e, t in train_published(scenario, self._work(setting)).items()
        }
        beside = {e: {BY_RULE: outcome} for e, (_, outcome) in published.items()}
        simple = dict[str, tuple[Guarantee, Outcome]]()
        if scenario.compare.als:
            with stage(console, "simple private methods"):
                simple = simple_of(
                    split,
                    self.facts,
                    epsilon=scenario.privacy.epsilon,
                    delta=scenario.privacy.delta,
                    seed=scenario.seed,
                    cutoffs=scenario.evaluation.cutoffs,
                    recipe=scenario.recipe,
                )
            own = {name: outcome for name, (_, outcome) in simple.items()}
            beside[scenario.privacy.epsilon] = beside.get(scenario.privacy.epsilon, {}) | own
        with stage(console, "evaluating"):
            outcomes = {
                e: _evaluate(scenario.evaluation, t.model, split, rivals | beside.get(e, {}))
                for e, t in trained.items()
            }
        shown = {
            name: rival
            for name, rival in rivals.items()
            if scenario.compare.baselines or name in {ALS, ITEM_ITEM, PUBLIC_ALONE}
        }
        done = Run(
            scenario,
            setting.choice,
            setting.folder,
            self.dataset,
            split,
            trained,
            outcomes,
            shown,
            models,
            published,
            setting.budget,
            limits,
            simple=simple,
        )
        return FinishedRun(done, self.facts)

    def _work(self, setting: Setting) -> Work:
        return Work(
            self.facts,
            self.split,
            setting.folder,
            setting.console,
            setting.choice.carrier(self.dataset.catalogue),
            setting.budget,
            setting.on_round,
        )


@dataclass(frozen=True)
class FinishedRun:
    """See `workload.Finished`. facts: of the training data."""

    run: Run
    facts: PublicFacts

    def keep(self) -> None:
        """See `Finished`."""
        done = self.run
        keep_model(
            done.folder / "model",
            done.scenario,
            done.dataset,
            self.facts,
            done.main,
            name=done.folder.name.removesuffix(done.choice.suffix),
            not_covered=done.split.not_covered,
            released=done.main.released(),
            spent=statement.spent_words(done.budget),
        )
        rows: list[dict[str, object]] = [
            {"name": f"epsilon {e:g}", **outcome.metrics()} for e, outcome in done.outcomes.items()
        ]
        rows += [
            {"name": f"{BY_RULE}, epsilon {e:g}", **outcome.metrics()}
            for e, (_, outcome) in done.published.items()
        ]
        rows += [{"name": name, **outcome.metrics()} for name, outcome in done.rivals.items()]
        lines = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        write_bytes(done.folder / "metrics.jsonl", lines.encode())

    def bundle(self) -> Export:
        """See `Finished`."""
        if "counts" not in self.run.main.state:
            raise SettingsError(
                f'recipe = "{self.run.scenario.recipe}" releases no counts, which a bundle is made '
                "with",
                'Serve a model of recipe = "default".',
            )
        return bundle_of(self.run.folder / "model")

    def report(self, serving: Mapping[str, object]) -> ReportContent:
        """See `Finished`."""
        return report_content(self.run)

    def result(self, serving: Mapping[str, object]) -> dict[str, Any]:
        """See `Finished`."""
        done = self.run
        plan = self.run.main.prepared.plan
        opinions = done.main.opinions()
        guarantee = asdict(plan.guarantee)
        stated = statement.stated(
            plan.guarantee, done.budget, done.split.not_covered
        ) | statement.three_party(plan)
        stated |= statement.personal(plan, done.scenario.privacy.limits)
        about = {
            "noise": done.scenario.privacy.noise,
            "accountants": asdict(opinions),
            "plan": plan.digest(),
        }
        write_json(done.folder / "guarantee.json", {**guarantee, **about, **stated})
        comparison = {name: outcome.metrics() for name, outcome in done.rivals.items()}
        curve = [
            {
                "epsilon": e,
                "metrics": outcome.metrics(),
                "verdicts": [verdict.as_dict() for verdict in outcome.verdicts],
                "verdicts_by_popularity": [beside.as_dict() for beside in outcome.by_popularity],
            }
            for e, outcome in done.outcomes.items()
        ]
        published = [
            {
                "epsilon": e,
                "metrics": outcome.metrics(),
                "verdicts": [verdict.as_dict() for verdict in outcome.verdicts],
            }
            for e, (_, outcome) in done.published.items()
        ]
        rounds = done.main.rounds
        evaluation = {name: one.as_dict() for name, one in done.evaluation.items()}
        return {
            "metrics": done.outcome.metrics(),
            **({"evaluation": evaluation} if evaluation else {}),
            "guarantee": guarantee,
            **stated,
            "noise": done.scenario.privacy.noise,
            "second_opinion": {"pld": opinions.pld, "rdp": opinions.rdp},
            "answer": in_one_line(done.outcome.verdicts),
            "verdicts": [verdict.as_dict() for verdict in done.outcome.verdicts],
            "verdicts_by_popularity": [beside.as_dict() for beside in done.outcome.by_popularity],
            "curve": curve,
            "published": published,
            "baselines": comparison,
            "bytes_up_per_client": sum(r.bytes_up for r in rounds),
            "bytes_down_per_client": done.terms_bytes + sum(r.bytes_down for r in rounds),
            "training_seconds": sum(r.seconds for r in rounds),
            "peak_rss_mb": peak_rss_mb(),
            "run_dir": str(done.folder),
            "serving": serving,
        }

    def lines(self) -> list[str]:
        """See `Finished`."""
        done = self.run
        plan = self.run.main.prepared.plan
        privacy = self.run.scenario.privacy
        said = done.words_of_data
        return [
            *([f"data       {'; '.join(said)}"] if said else []),
            *(f"{name:<10} {one.words}" for name, one in done.evaluation.items()),
            *cautions(
                done.budget,
                [
                    *statement.three_party_lines(statement.three_party(plan)),
                    *statement.personal_lines(statement.personal(plan, privacy.limits)),
                ],
                seeded=plan.guarantee.private and privacy.noise == "seeded",
            ),
        ]


def simple_of(
    split: Split,
    facts: PublicFacts,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    cutoffs: tuple[int, ...],
    recipe: str,
) -> dict[str, tuple[Guarantee, Outcome]]:
    """`SIMPLE` beside a model of `recipe` at this (epsilon, delta) per user, with its guarantee;
    none without privacy or on large data.

    Its model is dropped, so nothing is charged, and its noise is seeded. What is measured of it is
    no more private than the numbers of the controls without privacy.
    """
    name = SIMPLE[split.train.kind]
    if not math.isfinite(epsilon) or len(split.train) > MOST_SIMPLE or name == recipe:
        return {}
    privacy = {"epsilon": epsilon, "delta": delta, "noise": "seeded"}
    scenario = validated({"recipe": name, "seed": seed + 1, "privacy": privacy}, source="compare")
    prepared = prepare(scenario, facts)
    *_, last = loopback(Job(scenario, facts, split.train, prepared, Path()))
    model = prepared.recipe.model(last.state)
    outcome = evaluate(model, split.test, split.train, cutoffs=cutoffs, ranking=False)
    return {name: (prepared.plan.guarantee, outcome)}


def _evaluate(
    chosen: EvaluationSettings, model: Model, split: Split, rivals: Mapping[str, Outcome] | None
) -> Outcome:
    """Ranked too where that is chosen; with verdicts beside `rivals` where there are any."""
    return evaluate(
        model,
        split.test,
        split.train,
        cutoffs=chosen.cutoffs,
        ranking=chosen.ranking,
        rivals=rivals,
    )


def rivals_of(
    scenario: Scenario, split: Split, console: Console, facts: PublicFacts
) -> tuple[dict[str, Outcome], dict[str, Model], dict[str, str]]:
    """Everything without privacy that a model is set beside, the models among it whose item vectors
    are shown, and their limits."""
    chosen = scenario.evaluation
    cutoffs = chosen.cutoffs
    models = dict[str, Model]()
    limits = dict[str, str]()
    ranking = KINDS[split.train.kind].ranked(chosen.ranking)
    with stage(console, "baselines"):
        rivals = baselines(split.test, split.train, cutoffs=cutoffs, ranking=ranking)
    if scenario.compare.als and ranking:
        with stage(console, "item-item without privacy"):
            similar = item_item(split.train, split.validation)
            fold = ranked_fold(split.test)
            limits |= {ITEM_ITEM: similar.limits} if similar.limits else {}
            rivals[ITEM_ITEM] = Outcome(
                None, (), ranked(similar.scores(fold.history), fold, split.train, cutoffs=cutoffs)
            )
    if scenario.compare.als and not split.train.rated and facts.features is not None:
        with stage(console, "public sides alone"):
            if directions := public_sources(scenario, facts)[1]:
                rivals[PUBLIC_ALONE] = _evaluate(chosen, public_alone(directions), split, None)
    if scenario.compare.als:
        with stage(console, "ALS without privacy"):
            models[ALS] = als_model(
                split.train, split.validation, seed=scenario.seed, ranking=ranking
            )
            rivals[ALS] = _evaluate(chosen, models[ALS], split, None)
        learned = evenly(split.train, most_events=MOST_EVENTS).num_users
        if ranking and split.train.rated and learned < split.train.num_users:
            limits[ALS] = f"its lists learned from {learned:,} users"
    return rivals, models, limits
