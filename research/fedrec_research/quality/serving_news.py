"""Quality of a news model for people who ask a real server: AUC, MRR and nDCG@10 over test
impressions, and lists of ten, at many epsilons of a query, beside evaluation and popularity.

Protocol: models and division of users are those of `fedrec research measure news`. Every test user
makes one query with the client's code (`serving.asking` on the run's bundle, with evaluation's
key), sends it over gRPC to a `fedrec serve` process, and gets every item with its score; the
scores, less what is in them for lists alone (`news.exposure`), are put on the candidates of the
user's impressions. "in evaluation" is what `fedrec simulate` measured without a server. Epsilons
are per click (replace), of one query; at an infinite one the list is the exact one, which the
device makes with its own model. Popularity (`news_popularity`) is clicks of train, counted without
privacy and released at training's epsilon. Differences to the counted form are paired by user, with
one standard error. Lists are of ten from the whole catalogue, the history left out; targets are the
clicks of the user's impressions. Other sizes of B are trained and served the same way.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.errors import RunError
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.evaluation.intervals import mean_and_error
from fedrec.news.prior import log_exposure, shown_counts
from fedrec.news.variant import of
from fedrec.randomness import Streams
from fedrec.run.data.news import load_news
from fedrec.run.news_run import serving_guarantee
from fedrec.serving.asking import ask
from fedrec.serving.bundle import FILE, Bundle, read
from fedrec.storage import finite
from fedrec_client.serving_http import connect
from fedrec_client.serving_link import GrpcServer, ServingQuery, Trust
from fedrec_research.news import SERVED, Method, news_row, scenario_of
from fedrec_research.quality.news_popularity import Metrics, Popularity, above, over_seeds
from fedrec_research.quality.served import served
from fedrec_research.trials import Asked, Row, paragraph, trial

EPSILONS = (math.inf, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.1)
METHODS = (
    Method("additive", 5.0),
    *(Method("additive", 5.0, {"basis": B}) for B in (8, 16, 64)),
)
_SETTINGS = ("[limits]", "most_items = 100000")

Scores = npt.NDArray[np.float32]


def run(asked: Asked) -> Row:
    """Every method; data "planted" is the small planted set."""
    methods = (Method("additive", 5.0, seeds=(1,)),) if asked.quick else METHODS
    found = {m.name: summary([one_model(asked, m, seed) for seed in m.seeds]) for m in methods}
    furthest = max(m["most_score_difference"] for m in found.values())
    about = {"protocol": paragraph(__doc__), "most_score_difference": furthest}
    return dict(finite(about | {"methods": found}))


def one_model(asked: Asked, method: Method, seed: int) -> Row:
    """One model: its run if it is not kept, then its bundle served."""
    data = asked.path
    evaluated = asked.rows({seed: trial(news_row, data, method, SERVED, seed)})[seed]
    run_dir = Path(evaluated["run_dir"])
    scenario = scenario_of(data, method, seed)
    log = load_news(scenario).log
    bundle = read(run_dir / FILE)
    test = log.test
    streams = Streams(seed)
    shown = shown_counts(log.train.candidates.astype(np.int64), items=log.train.num_news)
    variant = of(scenario)  # reports that are collected once come with what was shown
    exposure = log_exposure(shown) * (variant.in_rounds is None and variant.summed is None)
    rows = dict[str, dict[str, float]]()
    measured = dict[str, Metrics]()
    difference = 0.0
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
