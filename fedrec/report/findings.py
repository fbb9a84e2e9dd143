"""Content of a report from a finished run.

Messages that leave a device in a run, for its report: those of an invented user, byte for
byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.evaluation.als import ITEM_ITEM
from fedrec.evaluation.controls import in_one_line
from fedrec.evaluation.toplists import nearest
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.federation.messages import BlockReports, BlockSpec, Question, Reports
from fedrec.federation.releases import noise_stds
from fedrec.privacy.guarantee import non_private
from fedrec.report.content import (
    TO_THREE,
    BucketBars,
    BudgetLine,
    Convergence,
    CurvePoint,
    Departure,
    ExampleReport,
    Method,
    NeighbourCard,
    NeighbourList,
    Opinion,
    PrivacyCurve,
    Promise,
    ReportContent,
    Series,
)
from fedrec.run import statement
from fedrec.run.outcomes import BY_RULE, MOST_COMPARED, Outcome, Run, spread_of, versions
from fedrec.sharing.layout import layout, plain_numbers
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.shares import SEEDS, share
from fedrec.storage import Checkpoints

if TYPE_CHECKING:
    from fedrec.run.outcomes import Run


INVENTED_ITEMS = 20  # a history of ordinary length, of items spread over the catalogue
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "ratings": ("rmse", "mae", "ndcg@{k}"),
    "clicks": ("ndcg@{k}", "recall@{k}"),
}
"""Metrics of the table by kind of data; the first is the page's headline."""


def departed(
    run: Run, questions: list[Question]
) -> tuple[tuple[Departure, ...], ExampleReport | None]:
    """What an invented user would have sent in every round, byte for byte."""
    if run.main.prepared.curated is not None:
        words = "every rating as it is: the curator is trusted with all of them"
        return (Departure("ratings", "item and value of each", 0, words),), None
    invented = _invented_user(run.split.train)
    rows = list[Departure]()
    last = None
    for question in questions:
        reports = run.main.prepared.steps[question.step](question, invented)
        if last is None:
            which = (
                "which items the coefficients below belong to, in every round; the aggregator "
                "reads them, nobody else"
            )
            rows.append(
                Departure(
                    "item ids", f"{len(reports.items)} numbers", 4 * len(reports.items), which
                )
            )
        for spec, part in zip(question.blocks, reports.blocks, strict=True):
            rows.append(
                Departure(
                    spec.name,
                    _shape(spec, part),
                    2 * (len(part.coefficients) + part.vectors.size),
                    _words(spec),
                )
            )
        last = (question, reports)
    return tuple(rows), _example(*last) if last else None


def departed_in_shares(
    run: Run, questions: list[Question]
) -> tuple[tuple[Departure, ...], ExampleReport | None]:
    """Return what an invented user would have sent in every round where three aggregate: numbers
    that say nothing to any one of them.

    Seeds of an example are no secret."""
    invented = _invented_user(run.split.train)
    rows = list[Departure]()
    example = None
    for question in questions:
        reports = run.main.prepared.steps[question.step](question, invented)
        shape = layout(question)
        seeds = np.frombuffer(
            b"".join(sha256(b"example" + bytes([i])).digest() for i in range(SEEDS)), np.uint8
        ).reshape(1, SEEDS, -1)
        sent = share(plain_numbers(reports, shape), seeds)
        words = (
            "as many for one item as for all; two seeds, and what is left of the report without "
            "the numbers that they expand to"
        )
        rows.append(
            Departure(
                question.step,
                f"{shape.length} numbers",
                upload_bytes(shape.length),
                words,
                TO_THREE,
            )
        )
        numbers = {
            f"{question.step}: share 2, first of {shape.length}": tuple(
                map(int, sent.explicit[0, :40])
            )
        }
        payload = seeds.tobytes() + sent.explicit.astype("<u8").tobytes()
        example = ExampleReport(
            f"an invented user with {len(reports.items)} items, round {question.round}",
            numbers,
            payload,
        )
    return tuple(rows), example


def _invented_user(train: Interactions) -> Interactions:
    items = np.unique(
        np.linspace(0, train.num_items - 1, min(INVENTED_ITEMS, train.num_items)).astype(np.int64)
    )
    low, high = train.value_range
    values = (
        np.where(np.arange(len(items)) % 3 == 0, high, (low + high) / 2) if train.rated else None
    )
    users = np.zeros(len(items), np.int64)
    columns = {
        "num_users": 1,
        "num_items": train.num_items,
        "value_range": train.value_range,
        "kind": train.kind,
    }
    return Interactions.from_columns(users, items, values, **columns)  # type: ignore[arg-type]


def _shape(spec: BlockSpec, part: BlockReports) -> str:
    if spec.rows == 1:
        return f"{part.vectors.size} number{'' if part.vectors.size == 1 else 's'}"
    return (
        f"{len(part.coefficients)} coefficients, {len(part.vectors)} "
        f"vector{'s' if spec.folds > 1 else ''} of {spec.width}"
    )


def _words(spec: BlockSpec) -> str:
    what = spec.form.words
    where = (
        "for the whole user"
        if spec.rows == 1
        else "with one coefficient for each of the user's items"
    )
    if spec.folds > 1:
        what = f"{spec.folds} vectors, one for each fold of the items"
    return f"{what}, {where}; bounded, summed with everybody's, then noised"


def _example(question: Question, reports: Reports) -> ExampleReport:
    groups = {"item ids": reports.items}
    for spec, part in zip(question.blocks, reports.blocks, strict=True):
        groups |= {
            f"{spec.name}: coefficients": part.coefficients,
            f"{spec.name}: vector": part.vectors[: spec.folds].ravel(),
        }
    payload = b"".join(
        array.astype("<i4" if name == "item ids" else "<i2").tobytes()
        for name, array in groups.items()
    )
    integers = {name: tuple(int(x) for x in array) for name, array in groups.items()}
    return ExampleReport(
        f"an invented user with {len(reports.items)} items, round {question.round}",
        integers,
        payload,
    )


def report_content(run: Run) -> ReportContent:
    """Everything the report shows; what a run does not have is left out."""
    questions = list(_questions(run))
    trusted = run.main.prepared.plan.aggregation == "trusted"
    departures, example = (
        departed(run, questions) if trusted else departed_in_shares(run, questions)
    )
    k = max(run.scenario.evaluation.cutoffs)
    metric = _SHOWN[run.split.train.kind][0].format(k=k)
    ranked = metric == "rmse" and run.outcome.ranking
    return ReportContent(
        title=(
            f"The {run.scenario.recipe} recipe on "
            f"{Path(run.scenario.data.path).name or 'planted data'}"
        ),
        data=_data(run),
        promises=(_promise(run),),
        methods=tuple(_methods(run)),
        curve=_curve(run, metric),
        lists_curve=_curve(run, f"ndcg@{k}") if ranked else None,
        buckets=tuple(_buckets(run)),
        budget=tuple(_budget(run, questions)),
        convergence=_convergence(run, metric),
        departures=departures,
        example=example,
        neighbours=tuple(_neighbours(run)),
        answer=in_one_line(run.outcome.verdicts),
        details=tuple(_details(run)),
        seeded=run.scenario.privacy.noise == "seeded",
        settings=json.dumps(run.scenario.model_dump(mode="json"), indent=2),
        versions=versions(),
    )


def _details(run: Run) -> Iterator[str]:
    """Every verdict of the main model, in all and by popularity; of others their line."""
    yield from (verdict.sentence for verdict in run.outcome.verdicts)
    yield from (beside.sentence for beside in run.outcome.by_popularity)
    others = [("", e, run.trained[e], outcome) for e, outcome in sorted(run.outcomes.items())]
    others += [(f"{BY_RULE}, ", e, t, o) for e, (t, o) in sorted(run.published.items())]
    for name, _, trained, outcome in others:
        if outcome is not run.outcome and outcome.verdicts:
            promise = statement.promise_in_short(trained.prepared.plan.guarantee)
            yield f"{name}{promise}: {in_one_line(outcome.verdicts)}"
    yield from _popular_lists(run)
    for name, said in run.evaluation.items():
        yield f"What people say of rows that the model was not trained on, {name}: {said.words}."
    for name, words in run.limits.items():
        yield f"{name}: {words}."
    ranked = run.outcome.ranking.users if run.outcome.ranking else run.sizes.able
    if ranked < run.sizes.able:
        yield f"Lists were measured on a sample of {ranked:,} of {run.sizes.able:,} users."


def _popular_lists(run: Run) -> Iterator[str]:
    """How popular listed items are at each epsilon and in exact item-item's lists, how many items
    are listed at all, and how much of their lists two people share."""
    k = max(run.scenario.evaluation.cutoffs)
    shown = [(f"epsilon {e:g}", outcome) for e, outcome in sorted(run.outcomes.items())]
    shown += [(name, run.rivals[name]) for name in (ITEM_ITEM,) if name in run.rivals]
    for name, outcome in shown:
        # no number where fewer than two people have lists
        if outcome.ranking is not None and math.isfinite(
            (lists := outcome.ranking.lists[k]).diversity
        ):
            yield (
                f"Lists of {k}, {name}: a listed item has {lists.mean_popularity:,.0f} "
                f"{run.split.train.kind} on average, an item of a training row "
                f"{lists.train_popularity:,.0f}; {lists.coverage:.0%} of the catalogue is listed, "
                f"and two people share {1 - lists.diversity:.0%} of their lists."
            )


def _named(metric: str) -> str:
    """Return the metric's name as people write it: RMSE, MAE, NDCG@20, recall@20."""
    return metric if metric.startswith("recall") else metric.upper()


def _data(run: Run) -> str:
    train = run.split.train
    split = run.split
    sizes = run.sizes
    events = f"{sizes.events:,} {train.kind} of {sizes.users:,} users on {train.num_items:,} items"
    return f"trained on {events}; {split.kind} split, seed {split.seed}; tested on {sizes.tests:,}"


def _promise(run: Run) -> Promise:
    plan = run.main.prepared.plan
    said = run.main.opinions()
    others = (
        Opinion("exact Gaussian (GDP), of the noise drawn", said.gdp, exact=True),
        Opinion("privacy loss distribution (PLD), of the noise drawn", said.pld),
        Opinion("Renyi (RDP), of the noise drawn", said.rdp),
    )
    return Promise(
        plan.guarantee,
        covers=statement.COVERS,
        second_opinions=others if plan.guarantee.private else (),
        compared=statement.compared(plan.guarantee),
        not_covered=(*statement.NOT_COVERED, *run.split.not_covered),
        spent=tuple(statement.spent_words(run.budget)),
        against=tuple((one.against, one.promise) for one in statement.promises(plan)),
        warnings=(statement.NOT_REVIEWED, statement.SIMULATED)
        if plan.aggregation == "three-party"
        else (),
    )


def _methods(run: Run) -> Iterator[Method]:
    nothing = non_private(run.scenario.privacy.delta)
    k = max(run.scenario.evaluation.cutoffs)
    for name, outcome in run.rivals.items():
        yield Method(
            name, nothing, _shown(outcome, k, run.split.train.kind), note=run.limits.get(name, "")
        )
    for name, (guarantee, outcome) in run.simple.items():
        yield Method(f"fedrec {name}", guarantee, _shown(outcome, k, run.split.train.kind))
    rows = [(BY_RULE, e, t, o) for e, (t, o) in sorted(run.published.items())]
    rows += [(_ours(run), e, t, run.outcomes[e]) for e, t in sorted(run.trained.items())]
    for name, epsilon, trained, outcome in rows:
        up = round(sum(r.bytes_up for r in trained.rounds))
        down = run.terms_bytes + sum(r.bytes_down for r in trained.rounds)
        ours = epsilon == run.scenario.privacy.epsilon and trained is run.main
        yield Method(
            name,
            trained.prepared.plan.guarantee,
            _shown(outcome, k, run.split.train.kind),
            up,
            down,
            ours=ours,
        )


def _shown(outcome: Outcome, k: int, kind: str) -> dict[str, float]:
    metrics = outcome.metrics()
    names = [name.format(k=k) for name in _SHOWN[kind]]
    return {
        _named(name): float(value) for name in names if (value := metrics.get(name)) is not None
    }


def _curve(run: Run, metric: str) -> PrivacyCurve | None:
    privacy = run.scenario.privacy
    points = _points(run.outcomes, metric)
    if len(points) < 2:
        return None
    rivals = [(name, o.metrics().get(metric)) for name, o in run.rivals.items()]
    baselines = tuple((name, float(value)) for name, value in rivals if value is not None)
    lines = {_ours(run): points}
    if run.published:
        lines[BY_RULE] = _points({e: outcome for e, (_, outcome) in run.published.items()}, metric)
    unit = privacy.unit
    neighbours = run.main.prepared.plan.guarantee.neighbours
    return PrivacyCurve(
        _named(metric),
        lines,
        baselines,
        privacy.delta,
        unit,
        neighbours,
        lower_is_better=metric == "rmse",
    )


def _points(outcomes: dict[float, Outcome], metric: str) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(e, float(o.metrics()[metric] or 0))
        for e, o in sorted(outcomes.items())
        if math.isfinite(e)
    )


def _buckets(run: Run) -> Iterator[BucketBars]:
    shown = {
        str(e_name): outcome for e_name, outcome in [*run.rivals.items(), (_ours(run), run.outcome)]
    }
    if run.outcome.ratings:
        bars = {
            name: tuple(b.rmse for b in o.rating_buckets)
            for name, o in shown.items()
            if o.rating_buckets and name != "global mean"
        }
        yield BucketBars("RMSE", bars)
    if run.outcome.ranking:
        k = max(run.scenario.evaluation.cutoffs)
        ranked = {name: o.ranking for name, o in shown.items() if o.ranking}
        yield BucketBars(
            f"recall@{k}",
            {n: tuple(b[k].recall_capped for b in r.buckets) for n, r in ranked.items()},
            lower_is_better=False,
        )


def _ours(run: Run) -> str:
    return f"fedrec {run.scenario.recipe}"


def _budget(run: Run, questions: list[Question]) -> Iterator[BudgetLine]:
    plan = run.main.prepared.plan
    if not plan.guarantee.private:
        return
    stds = {name: std for question in questions for name, std in noise_stds(question, plan).items()}
    for release in plan.releases:
        yield BudgetLine(release.name, release.share, stds[release.name])


def _convergence(run: Run, metric: str) -> Convergence | None:
    rounds = [r for r in run.main.rounds if math.isfinite(r.validation)]
    if len(rounds) < 2:
        return None
    line = Series(
        _ours(run), tuple(float(r.round + 1) for r in rounds), tuple(r.validation for r in rounds)
    )
    return Convergence(f"validation {'RMSE' if metric == 'rmse' else 'NDCG@20'}", (line,))


def _questions(run: Run) -> Iterator[Question]:
    """Every question of the main training again, from its checkpoints: they are public."""
    recipe = run.main.prepared.recipe
    plan_folder = run.folder / f"epsilon-{run.scenario.privacy.epsilon:g}"
    states = [recipe.begin(), *Checkpoints(plan_folder / "checkpoints").all()]
    for state in states:
        if (question := recipe.ask(state)) is not None:
            yield question


def _neighbours(run: Run) -> Iterator[NeighbourCard]:
    titles = run.dataset.catalogue.titles or run.dataset.catalogue.item_ids
    counts = run.sizes.counts
    popular = np.argsort(-counts, kind="stable")
    queries = popular[
        np.unique(
            np.geomspace(1, max(len(popular) // 3, 1), run.scenario.run.examples).astype(np.int64)
            - 1
        )
    ]
    models: dict[str, Model] = {_ours(run): run.main.model, **run.rival_models}
    spreads = {name: one.spread for name, one in {**run.rivals, _ours(run): run.outcome}.items()}
    found = {
        name: nearest(_taste(model, run.split.train, spreads.get(name)), queries)
        for name, model in models.items()
    }
    for q, query in enumerate(queries):
        lists = [
            NeighbourList(
                n, tuple((titles[j], s) for j, s in zip(f[q].items, f[q].similarities, strict=True))
            )
            for n, f in found.items()
        ]
        yield NeighbourCard(titles[query], f"{counts[query]:,} in train", tuple(lists))


def _taste(
    model: Model, history: Interactions, spread: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.float64]:
    """Item vectors in which cosine is the correlation of scores over people: centred, in the metric
    of users' covariance `spread`, where it is known.

    What is the same for everybody, an item's bias or a user's, then says nothing, and the scale of
    a factor does not matter.
    """
    ranker = ranker_of(model)
    V = np.asarray(ranker.item_vectors, np.float64)
    if history.num_users < 2:  # one person has no covariance
        return np.asarray(V - V.mean(axis=0))
    if spread is None:
        some = history.users_subset(np.arange(min(history.num_users, MOST_COMPARED)))
        spread = spread_of(ranker.user_vectors(some))
    moments, axes = np.linalg.eigh(spread)
    return np.asarray((V - V.mean(axis=0)) @ (axes * np.sqrt(np.maximum(moments, 0))))
