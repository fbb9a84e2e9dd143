"""What is a news model worth to people who ask a real server? AUC over test impressions, at many
epsilons of a query, beside evaluation.

Protocol: models and division of users are those of `fedrec bench news`. Every test user makes one
query with the client's code (`serving.asking` on the run's bundle, with evaluation's key), sends it
over gRPC to a `fedrec serve` process, and gets every item with its score; the scores are put on the
candidates of the user's impressions. "in evaluation" is what `fedrec simulate` measured without a
server. Epsilons are per click (replace), of one query. Other sizes of B are trained and served the
same way, one seed.
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
from fedrec.randomness import Streams
from fedrec.serving.asking import ask
from fedrec.serving.bundle import FILE, Bundle, read
from fedrec.storage import finite
from fedrec_client.serving_connection import connect
from fedrec_client.serving_link import GrpcServer, Query, Trust
from fedrec_simulations.bench.serving_process import served
from fedrec_simulations.data.news import load_news
from fedrec_simulations.experiments.news import SERVED, Method, news_trial, scenario_of
from fedrec_simulations.experiments.row_queue import rows_of
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error, table
from fedrec_simulations.experiments.trials import RowFiles
from fedrec_simulations.news_run import serving_guarantee

EPSILONS = (math.inf, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.1)
METHODS = (
    Method("additive", 5.0),
    *(Method("additive", 5.0, {"basis": B}, seeds=(1,)) for B in (8, 16, 64)),
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
    test, bundle = load_news(scenario).log.test, read(run_dir / FILE)
    streams, rows, difference = Streams(seed), dict[str, dict[str, float]](), 0.0
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
                evaluate_impressions(on_candidates(test, scores), test).means()
            )
        link.close()
    answers = {
        f"{answer['epsilon']}": answer["metrics"] for answer in evaluated["serving"]["answers"]
    }
    about = {"users": test.num_users, "impressions": len(test), "coefficients": bundle.coefficients}
    about |= {"popularity": evaluated.get("baselines", {}).get("popularity")}
    return {**about, "served": rows, "evaluated": answers, "most_score_difference": difference}


def through(link: GrpcServer, bundle: Bundle, sent: npt.NDArray[np.float32]) -> Scores:
    """(n, m) scores of every item by a server, for n queries.

    Raises RunError where an item is missing."""
    scores = np.full((len(sent), bundle.size), np.nan, np.float32)
    for row, one in zip(scores, sent, strict=True):
        reply = link.recommend(Query(bundle.version, one, bundle.size))
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
    rows = {
        f"{epsilon}": {
            "server": _auc(row["served"].get(f"{epsilon}") for row in seeds),
            "evaluation": _auc(row["evaluated"].get(f"{epsilon}") for row in seeds),
            "mrr": float(np.mean([row["served"][f"{epsilon}"]["mrr"] for row in seeds])),
            "ndcg@10": float(np.mean([row["served"][f"{epsilon}"]["ndcg@10"] for row in seeds])),
        }
        for epsilon in EPSILONS
    }
    about = {name: first[name] for name in ("users", "impressions", "coefficients", "popularity")}
    return {
        **about,
        "seeds": len(seeds),
        "served": rows,
        "most_score_difference": max(row["most_score_difference"] for row in seeds),
    }


def _auc(rows: Iterator[Row | None]) -> Row | None:
    found = [row["auc"] for row in rows if row]
    return dict(zip(("mean", "stderr"), mean_and_error(found), strict=True)) if found else None


def markdown(result: Row) -> str:
    """AUC and nDCG@10 through the server against epsilon, the default also as evaluated, other
    sizes of B, and popularity."""
    methods, lines = result["methods"], []
    epsilons = sorted(next(iter(methods.values()))["served"], key=float, reverse=True)
    first, *others = sorted(
        methods.values(), key=lambda found: (-found["seeds"], found["coefficients"])
    )
    for place, found in enumerate([first, *others]):
        name = f"B = {found['coefficients']}, {found['seeds']} seed{'s' * (found['seeds'] > 1)}"
        for words, key in (("through the server", "server"), ("in evaluation", "evaluation"))[
            : 1 if place else 2
        ]:
            lines.append(
                [f"{name}, {words}", *(_percent(found["served"][e][key]) for e in epsilons)]
            )
        if not place:
            lines.append(
                [
                    f"{name}, through the server, nDCG@10",
                    *(f"{100 * found['served'][e]['ndcg@10']:.2f}" for e in epsilons),
                ]
            )
    words = (
        f"AUC where nothing else is said. {first['users']:,} test users, "
        f"{first['impressions']:,} impressions; a dash: not evaluated."
    )
    if popular := first.get("popularity"):
        words += (
            f" Popularity: AUC {100 * popular['auc']:.2f}, nDCG@10 {100 * popular['ndcg@10']:.2f}."
        )
    heads = ("additive, trained at ε = 5", *(f"ε = {float(e):g}" for e in epsilons))
    return f"{table(heads, lines)}\n\n{words}"


def _percent(auc: Row | None) -> str:
    return f"{100 * auc['mean']:.2f}" if auc else "–"
