"""Content of a report from a finished news run.

Training and serving are two guarantees, and both are printed with their unit. Beside the run stands
what the PrivateRec paper prints for MIND (Liu et al. 2022, Tables 1 and 2), in shares of 1 instead
of percent: its promises are nominal, with Laplace noise, one round, a sensitivity and a gradient
whose errata are in fedrec/NOTATION.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedrec.evaluation.controls import in_one_line
from fedrec.evaluation.impressions import ImpressionMetrics
from fedrec.news.sensitivity import exempt
from fedrec.news.variant import of, require
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.report.content import (
    TO_THE_AGGREGATOR,
    TO_THREE,
    CurvePoint,
    Departure,
    Method,
    Opinion,
    PrivacyCurve,
    Promise,
    ReportContent,
)
from fedrec.report.news_person import ForAPerson, tables
from fedrec.run import statement
from fedrec.run.news_run import NewsRun, answer_promise
from fedrec.run.outcomes import versions

_COLUMNS = {"auc": "AUC", "mrr": "MRR", "ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"}
_FREE = math.inf


def report_content(run: NewsRun, person: ForAPerson | None = None) -> ReportContent:
    """Everything the report shows; what a run does not have is left out."""
    central = TO_THE_AGGREGATOR if run.scenario.privacy.aggregation == "trusted" else TO_THREE
    goes = (
        central
        if of(run.scenario).plan is not None
        else "All of it goes to the server, which is not trusted."
    )
    return ReportContent(
        title=f"PrivateRec, variant {run.scenario.news.variant}, on {run.data.name}",
        data=run.data.sentence(),
        promises=tuple(_promises(run)),
        persons=() if person is None else tuple(tables(person)),
        methods=(*_methods(run), *_published(run)),
        curve=_curve(run),
        departures=tuple(
            Departure(s.name, s.shape, round(s.bytes), s.contains, goes) for s in run.main.sent
        ),
        answer=in_one_line(run.verdicts),
        details=tuple(verdict.sentence for verdict in run.verdicts),
        seeded=run.scenario.privacy.noise == "seeded",
        settings=json.dumps(run.scenario.model_dump(mode="json"), indent=2),
        versions=versions(),
    )


def serving_words(epsilon: float) -> str:
    """How an answer was served."""
    return (
        "served without noise"
        if math.isinf(epsilon)
        else f"served at ε = {epsilon:g} per click (replace)"
    )


def _promises(run: NewsRun) -> Iterator[Promise]:
    main = run.main
    checked = (
        (Opinion("the dearest ledger of a client", main.spent),)
        if main.guarantee.established
        else ()
    )
    seconds = checked if main.guarantee.private else ()
    yield Promise(
        main.guarantee,
        covers=statement.COVERS,
        accountant="exact, by unit",
        second_opinions=seconds,
        name="Training",
        compared=statement.compared(main.guarantee),
        not_covered=(*statement.NOT_COVERED, *run.data.not_covered),
        spent=tuple(statement.spent_words(run.budget)),
    )
    private = [e for e in run.scenario.news.serving_epsilons if math.isfinite(e)]
    if private:
        words = (
            "one served answer at the largest serving ε, remembered until a public date: a fresh "
            "one costs as much again"
        )
        one = answer_promise(max(private), run.scenario)
        open_to_all = exempt(run.scenario.news.open_categories)
        one = replace(one, note="; ".join(filter(None, (one.note, open_to_all))))
        yield Promise(one, covers=words, name="Serving")


def _methods(run: NewsRun) -> Iterator[Method]:
    nothing = non_private(
        run.scenario.privacy.delta, run.main.guarantee.unit, run.main.guarantee.neighbours
    )
    for name, metrics in run.baselines.items():
        yield Method(
            name,
            nothing,
            _shown(metrics),
            instead="spends nothing in training" if name.startswith("untrained") else "",
        )
    for epsilon, trained in sorted(run.trained.items()):
        main = trained is run.main
        for at, (serving, metrics) in enumerate(run.outcomes[epsilon].served.items()):
            if main or at == 0:
                name = f"{run.scenario.news.variant}, {_in_short(serving)}"
                sizes = (round(trained.bytes_up), round(trained.bytes_down))
                yield Method(
                    name,
                    trained.guarantee,
                    _shown(metrics),
                    *sizes,
                    ours=main and at == 0,
                    note=serving_words(serving),
                )
    yield Method(
        "… with another’s history", run.main.guarantee, _shown(run.outcome.swapped), note="control"
    )


def _in_short(serving: float) -> str:
    return "served bare" if math.isinf(serving) else f"served at {serving:g}"


def _published(run: NewsRun) -> Iterator[Method]:
    for row in published_rows(run.data.name, run.scenario.news.variant, run.scenario.news.model):
        yield Method(
            row.name, row.guarantee(run.scenario.privacy.delta), row.metrics, note=row.note
        )


def _shown(metrics: ImpressionMetrics) -> dict[str, float]:
    return {_COLUMNS[name]: value for name, value in metrics.means().items()}


def _curve(run: NewsRun) -> PrivacyCurve | None:
    """AUC against the epsilon of training where there are several, else against that of serving."""
    baselines = tuple(
        (name, metrics.auc) for name, metrics in run.baselines.items() if ", served at" not in name
    )
    training = tuple(
        CurvePoint(e, o.headline.auc) for e, o in sorted(run.outcomes.items()) if math.isfinite(e)
    )
    promised = run.main.guarantee
    privacy = run.scenario.privacy
    if len(training) > 1:
        name = f"{run.scenario.news.variant}, {_in_short(run.scenario.news.serving_epsilons[0])}"
        words = {"lower_is_better": False, "levels": "controls"}
        return PrivacyCurve(
            "AUC",
            {name: training},
            baselines,
            privacy.delta,
            promised.unit,
            promised.neighbours,
            **words,  # type: ignore[arg-type]
        )
    serving = {e: m.auc for e, m in sorted(run.outcome.served.items())}
    points = tuple(CurvePoint(e, auc) for e, auc in serving.items() if math.isfinite(e))
    if len(points) < 2:
        return None
    bare = (("the model, served bare", serving[math.inf]),) if math.inf in serving else ()
    words = {
        "lower_is_better": False,
        "each": "the same model serving answers of that ε",
        "levels": "controls, and the model served bare",
    }
    name = f"{run.scenario.news.variant}, served"
    return PrivacyCurve(
        "AUC",
        {name: points},
        baselines + bare,
        privacy.delta,
        "click",
        "replace",
        **words,  # type: ignore[arg-type]
    )


# --- the paper ---


@dataclass(frozen=True)
class PublishedRow:
    """One row: epsilons of training and serving, and the four metrics."""

    model: str
    method: str
    training: float
    serving: float
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        """Name in a table of methods; FedRec stands in both of the paper's."""
        table = 1 if math.isinf(self.serving) else 2
        return f"paper's Table {table}, on MIND: {self.method}, {self.model.upper()}"

    @property
    def note(self) -> str:
        """How it was served."""
        return (
            "served without noise"
            if math.isinf(self.serving)
            else f"served at nominal ε = {self.serving:g}"
        )

    def guarantee(self, delta: float) -> Guarantee:
        """What the paper claims."""
        if math.isinf(self.training):
            return non_private(delta, "click", "replace")
        return Guarantee(
            self.training, delta, "click", "replace", established=False, note="published, per round"
        )


def published_rows(data: str, variant: str, model: str) -> tuple[PublishedRow, ...]:
    """Rows of Tables 1 and 2 for MIND: beside any run on MIND, and beside the paper's own variants
    on other data too."""
    beside = data == "MIND" or require(variant).encoders
    return tuple(row for row in TABLES if row.model == model) if beside else ()


def _row(model: str, method: str, training: float, serving: float, *percent: float) -> PublishedRow:
    names = ("AUC", "MRR", "nDCG@5", "nDCG@10")
    return PublishedRow(
        model, method, training, serving, {n: p / 100 for n, p in zip(names, percent, strict=True)}
    )


TABLES = (
    _row("naml", "centralized", _FREE, _FREE, 65.35, 31.36, 33.82, 39.55),
    _row("naml", "FedRec", _FREE, _FREE, 63.04, 29.93, 32.08, 37.75),
    _row("naml", "DP-FedRec", 10, _FREE, 55.31, 24.88, 25.91, 31.52),
    _row("naml", "PrivateRec", 10, _FREE, 57.51, 26.27, 27.76, 33.34),
    _row("naml", "FedRec", _FREE, 10, 50.32, 22.75, 23.41, 28.94),
    _row("naml", "DP-FedRec", 10, 10, 50.11, 22.69, 23.31, 28.83),
    _row("naml", "PrivateRec", 10, 10, 57.52, 26.39, 27.88, 33.45),
    _row("nrms", "centralized", _FREE, _FREE, 65.82, 31.68, 34.29, 39.99),
    _row("nrms", "FedRec", _FREE, _FREE, 62.80, 29.59, 31.66, 37.32),
    _row("nrms", "DP-FedRec", 10, _FREE, 54.59, 24.75, 25.64, 31.28),
    _row("nrms", "PrivateRec", 10, _FREE, 58.32, 26.56, 27.93, 33.67),
    _row("nrms", "FedRec", _FREE, 10, 50.23, 22.79, 23.44, 28.98),
    _row("nrms", "DP-FedRec", 10, 10, 50.19, 22.71, 23.34, 28.87),
    _row("nrms", "PrivateRec", 10, 10, 57.00, 26.15, 27.49, 32.74),
    _row("plm-nr", "centralized", _FREE, _FREE, 67.08, 32.49, 35.21, 40.94),
    _row("plm-nr", "FedRec", _FREE, _FREE, 66.05, 31.72, 34.28, 40.05),
    _row("plm-nr", "DP-FedRec", 10, _FREE, 54.87, 24.45, 25.51, 31.18),
    _row("plm-nr", "PrivateRec", 10, _FREE, 58.75, 26.70, 28.22, 33.90),
    _row("plm-nr", "FedRec", _FREE, 10, 50.59, 22.61, 23.18, 28.78),
    _row("plm-nr", "DP-FedRec", 10, 10, 50.03, 22.17, 22.70, 28.26),
    _row("plm-nr", "PrivateRec", 10, 10, 58.69, 26.37, 27.75, 33.57),
)
"""All rows for MIND. FedRec is the paper's DP-FedRec at infinite epsilon."""
