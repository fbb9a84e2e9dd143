"""What is a news model worth to people who ask a real server? AUC, MRR and nDCG@10 over test
impressions, and lists of ten, at many epsilons of a query, beside evaluation and popularity.

Protocol: models and division of users are those of `fedrec bench news`. Every test user makes one
query with the client's code (`serving.asking` on the run's bundle, with evaluation's key), sends it
over gRPC to a `fedrec serve` process, and gets every item with its score; the scores, less what is
in them for lists alone (`news.exposure`), are put on the candidates of the user's impressions. "in
evaluation" is what `fedrec simulate` measured without a
server. Epsilons are per click (replace), of one query; at an infinite one the list is the exact
one, which the device makes with its own model. Popularity (`bench.news_popularity`) is clicks of
train, counted without privacy and released at training's epsilon. Differences to the counted form
are paired by user, with one standard error. Lists are of ten from the whole catalogue, the history
left out; targets are the clicks of the user's impressions. Other sizes of B are trained and served
the same way.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.errors import RunError, SettingsError
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.news.exposure import log_exposure, shown_counts
from fedrec.news.variant import of
from fedrec.randomness import Streams
from fedrec.run.data.news import load_news
from fedrec.run.news_run import serving_guarantee
from fedrec.serving.asking import ask
from fedrec.serving.bundle import FILE, Bundle, read
from fedrec.storage import finite
from fedrec_client.serving_connection import connect
from fedrec_client.serving_link import GrpcServer, ServingQuery, Trust
from fedrec_simulations.bench.news_popularity import (
    BARE,
    LIST,
    Metrics,
    Popularity,
    above,
    over_seeds,
)
from fedrec_simulations.bench.serving_process import served
from fedrec_simulations.experiments.news import SERVED, Method, news_trial, scenario_of
from fedrec_simulations.experiments.row_queue import rows_of
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error, table
from fedrec_simulations.experiments.trials import RowFiles

EPSILONS = (math.inf, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.1)
METHODS = (
    Method("additive", 5.0),
    *(Method("additive", 5.0, {"basis": B}) for B in (8, 16, 64)),
)
_SETTINGS = ("[limits]", "most_items = 100000")

Scores = npt.NDArray[np.float32]


def run(
    data: str,
    *,
    methods: Sequence[Method] = METHODS,
    quick: bool = False,
    folder: Path = Path("runs/bench-news"),
) -> dict[str, Any]:
    """Every method as a JSON-able dict.

    Data "planted" is the small planted set. Raises SettingsError without data."""
    if not data:
        raise SettingsError(
            "the serving-news benchmark needs a data folder",
            "Give MovieLens 1M: --data PATH/ml-1m.",
        )
    methods = [Method("additive", 5.0, seeds=(1,))] if quick else methods
    found = {
        m.name: summary([one_model(folder, data, m, seed) for seed in m.seeds]) for m in methods
    }
    protocol = " ".join((__doc__ or "").split("\n\n")[1].split())
    return dict(
        finite(
            {
                "protocol": protocol,
                "methods": found,
                "most_score_difference": max(m["most_score_difference"] for m in found.values()),
            }
        )
    )


def one_model(folder: Path, data: str, method: Method, seed: int) -> Row:
    """One model: its run if it is not kept, then its bundle served."""
    evaluated = rows_of(
        {seed: news_trial(data, method, SERVED, seed)}, RowFiles(folder_of(folder, data))
    )[seed]
    run_dir, scenario = Path(evaluated["run_dir"]), scenario_of(data, method, seed)
    log, bundle = load_news(scenario).log, read(run_dir / FILE)
    test, streams = log.test, Streams(seed)
    shown = shown_counts(log.train.candidates.astype(np.int64), items=log.train.num_news)
    variant = of(scenario)  # reports that are collected once come with what was shown
    exposure = log_exposure(shown) * (variant.in_rounds is None and variant.summed is None)
    rows, measured, difference = dict[str, dict[str, float]](), dict[str, Metrics](), 0.0
    popular = Popularity.of(
        log,
        serving_guarantee(method.epsilon, scenario.privacy.delta),
        key=streams.key("popularity"),
    )
    with tempfile.TemporaryDirectory() as name, served(run_dir, Path(name), _SETTINGS) as server:
        link = connect(f"grpc://{server.grpc}", Trust())
        assert isinstance(link, GrpcServer)
        for epsilon in EPSILONS:
            sent = ask(
                bundle,
                test.last_clicks(bundle.about.history),
                guarantee=serving_guarantee(epsilon, scenario.privacy.delta),
                key=streams.key(f"serving/{epsilon:g}"),
            ).sent
            scores = through(link, bundle, sent)
            difference = max(difference, _furthest(bundle, sent[:8], scores[:8]))
            rows[f"{epsilon}"] = dict(
                evaluate_impressions(
                    on_candidates(test, scores - exposure.astype(np.float32)), test
                ).means()
            )
            measured[f"{epsilon}"] = popular.beside(scores, exposure)
        link.close()
    answers = {
        f"{answer['epsilon']}": answer["metrics"] for answer in evaluated["serving"]["answers"]
    }
    about = {"users": test.num_users, "impressions": len(test), "coefficients": bundle.coefficients}
    return {
        **about,
        "epsilon": method.epsilon,
        "popularity": popular.rows(),
        "served": rows,
        "measured": measured,
        "evaluated": answers,
        "most_score_difference": difference,
    }


def through(link: GrpcServer, bundle: Bundle, sent: npt.NDArray[np.float32]) -> Scores:
    """(n, m) scores of every item by a server, for n queries.

    Raises RunError where an item is missing."""
    scores = np.full((len(sent), bundle.size), np.nan, np.float32)
    for row, one in zip(scores, sent, strict=True):
        reply = link.recommend(ServingQuery(bundle.version, one, bundle.size))
        row[reply.items] = reply.scores
        link.journal.clear()
    if np.isnan(scores).any():
        raise RunError("an answer lacks items that were asked for", "Look at the server's log.")
    return scores


def on_candidates(test: Impressions, scores: Scores) -> Scores:
    """One score a candidate, from (n, m)."""
    return scores[np.repeat(test.users, np.diff(test.candidate_ptr)), test.candidates]


def _furthest(bundle: Bundle, sent: npt.NDArray[np.float32], scores: Scores) -> float:
    """Between the server's scores and those of the bundle's own arithmetic here."""
    here = bundle.users(sent).astype(np.float64) @ bundle.items.T.astype(np.float64) + bundle.bias
    return float(np.abs(here - scores).max())


def summary(seeds: Sequence[Row]) -> Row:
    """What is shown of one model, by epsilon."""
    first = seeds[0]
    popular = {
        name: over_seeds([row["popularity"][name] for row in seeds])
        for name in ("counted", "released")
    }
    rows = {
        f"{epsilon}": {
            "server": _auc(row["served"].get(f"{epsilon}") for row in seeds),
            "evaluation": _auc(row["evaluated"].get(f"{epsilon}") for row in seeds),
            "mrr": float(np.mean([row["served"][f"{epsilon}"]["mrr"] for row in seeds])),
            "ndcg@10": float(np.mean([row["served"][f"{epsilon}"]["ndcg@10"] for row in seeds])),
            "beside_popularity": above(
                over_seeds([row["measured"][f"{epsilon}"] for row in seeds]), popular["counted"]
            ),
        }
        for epsilon in EPSILONS
    }
    about = {name: first[name] for name in ("users", "impressions", "coefficients")}
    return {
        **about,
        "popularity": {
            "epsilon": first["epsilon"],
            **{
                name: {metric: found.mean for metric, found in metrics.items()}
                for name, metrics in popular.items()
            },
        },
        "seeds": len(seeds),
        "served": rows,
        "most_score_difference": max(row["most_score_difference"] for row in seeds),
    }


def _auc(rows: Iterator[Row | None]) -> Row | None:
    found = [row["auc"] for row in rows if row]
    return dict(zip(("mean", "stderr"), mean_and_error(found), strict=True)) if found else None


def markdown(result: Row) -> str:
    """A table for each metric: every B through the server against epsilon, with the difference from
    popularity, and popularity itself."""
    methods = sorted(
        result["methods"].values(), key=lambda found: (-found["seeds"], found["coefficients"])
    )
    first = next((m for m in methods if m["coefficients"] == 32), methods[0])
    methods = [first, *(m for m in methods if m is not first)]
    epsilons = sorted(first["served"], key=float, reverse=True)
    popular, trained = first["popularity"], first["popularity"]["epsilon"]
    parts = [
        f"{first['users']:,} test users, {first['impressions']:,} impressions. Every ε is per "
        "click (replace): of training, of one query, and of popularity's release. ε = inf is the "
        "exact list, which a device makes with its own model. In brackets: the difference from "
        "counted popularity, ± one standard error, paired by user. A dash: not evaluated."
    ]
    for metric, words in _TABLES.items():
        lines = [
            [_named(m), *(_cell(m["served"][e]["beside_popularity"], metric) for e in epsilons)]
            for m in methods
        ]
        if metric == "auc":
            name = f"{_named(first).removesuffix('through the server')}in evaluation"
            lines.append([name, *(_percent(first["served"][e]["evaluation"]) for e in epsilons)])
        if metric == LIST:
            lines += [
                [
                    f"{_named(m)}, without how often items were shown",
                    *(_cell(m["served"][e]["beside_popularity"], BARE) for e in epsilons),
                ]
                for m in methods
            ]
        lines += [
            [name, *[f"{100 * popular[key][metric]:.2f}"] * len(epsilons)]
            for key, name in (
                ("counted", "popularity, counted: not private"),
                (
                    "released",
                    f"popularity, released at ε = {trained:g} per click",
                ),
            )
        ]
        heads = (
            f"trained at ε = {trained:g} per click",
            *(f"ε = {float(e):g} per click" for e in epsilons),
        )
        parts += [words, table(heads, lines)]
    return "\n\n".join(parts)


_TABLES = {
    "ndcg@10": "**nDCG@10** over the candidates of an impression, in percent.",
    "mrr": "**MRR** over the candidates of an impression, in percent.",
    "auc": "**AUC** over the candidates of an impression, in percent.",
    LIST: (
        "**NDCG@10 of a list of ten from the whole catalogue**, in percent. The model learns "
        "which of the candidates shown is clicked, and they are shown by popularity. A bundle "
        "therefore adds the log of how often each item was shown in training, which is public."
    ),
}


def _named(found: Row) -> str:
    seeds = found["seeds"]
    return f"B = {found['coefficients']}, {seeds} seed{'s' * (seeds > 1)}, through the server"


def _cell(found: Row, metric: str) -> str:
    one = found[metric]
    return f"{100 * one['mean']:.2f} ({100 * one['above']:+.2f} ± {100 * one['above_stderr']:.2f})"


def _percent(auc: Row | None) -> str:
    return f"{100 * auc['mean']:.2f}" if auc else "–"
