"""From a finished news run to what its report says.

Training and serving are two guarantees, and both are printed with their unit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from fedrec.evaluation.impressions import ImpressionMetrics
from fedrec.news.sensitivity import exempt
from fedrec.news.variant import of
from fedrec.privacy.guarantee import non_private
from fedrec.report.content import (
    TO_THE_AGGREGATOR,
    TO_THREE,
    CurvePoint,
    Departure,
    Fact,
    Method,
    Opinion,
    PrivacyCurve,
    Promise,
    ReportContent,
)
from fedrec.report.news_person import ForAPerson, tables
from fedrec.report.news_published import published_rows
from fedrec.report.wording import size
from fedrec.run import statement
from fedrec.run.finished import versions
from fedrec.run.news_run import NewsRun, serving_guarantee

_COLUMNS = {"auc": "AUC", "mrr": "MRR", "ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"}


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
        facts=tuple(_facts(run)),
        promises=tuple(_promises(run)),
        persons=() if person is None else tuple(tables(person)),
        methods=(*_methods(run), *_published(run)),
        curve=_curve(run),
        departures=tuple(
            Departure(s.name, s.shape, round(s.bytes), s.contains, goes) for s in run.main.sent
        ),
        verdicts=run.verdicts,
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


def _facts(run: NewsRun) -> Iterator[Fact]:
    ours, swapped = run.outcome.headline, run.outcome.swapped
    first = serving_words(run.scenario.news.serving_epsilons[0])
    yield Fact("Test AUC", f"{ours.auc:.4f}", first)
    yield Fact(
        "With another’s history", f"{swapped.auc:.4f}", f"what is not personal in {ours.auc:.4f}"
    )
    if run.main.bytes_up:
        yield Fact(
            "Sent by a client",
            size(round(run.main.bytes_up)),
            f"in {run.main.rounds} round{'s' * (run.main.rounds != 1)}, on average",
        )
    if run.main.guarantee.private and run.scenario.privacy.noise == "seeded":
        yield Fact("Noise", "seeded", "an experiment: whoever knows the seed can remove it")


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
        one = replace(
            serving_guarantee(max(private), run.scenario.privacy.delta),
            note=exempt(run.scenario.news.open_categories),
        )
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
                name, sizes = (
                    f"{run.scenario.news.variant}, {_in_short(serving)}",
                    (round(trained.bytes_up), round(trained.bytes_down)),
                )
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
    promised, privacy = run.main.guarantee, run.scenario.privacy
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
    bare = (
        ((f"{run.scenario.news.variant}, served bare", serving[math.inf]),)
        if math.inf in serving
        else ()
    )
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
