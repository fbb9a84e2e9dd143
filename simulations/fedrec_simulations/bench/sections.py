"""Sections of docs/benchmarks.md: a kept result, its title and words, the command that makes it,
and what shows it as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedrec_simulations.bench import speed_tables


@dataclass(frozen=True)
class Section:
    """result: its file in docs/results, without .json. table: a function, or the module whose
    `markdown` it is."""

    result: str
    title: str
    words: str
    command: str
    table: str | Callable[[dict[str, Any]], str]


SECTIONS = (
    Section(
        "quality-ml1m",
        "Ratings: MovieLens 1M",
        (
            "Random 80/10/10, test RMSE, mean of three split seeds. Hyper-parameters of "
            "`default` were chosen on validation rows. Published figures without privacy, on "
            "a random 90% of the rows, are .82 to .83; `default` is linear in what a user rated, "
            "and without noise ends just above them."
        ),
        "fedrec bench quality --data PATH/ml-1m",
        "bench.quality",
    ),
    Section(
        "ablation-ml1m",
        "What each part of the default recipe is worth",
        "Validation RMSE on split seed 1; test is not read. Positive: the part helps.",
        "fedrec bench ablation --data PATH/ml-1m",
        "bench.ablation",
    ),
    Section(
        "sizes",
        "The default recipe on data of many sizes",
        "Planted ratings, 25 a user; test RMSE after the last round, in brackets that of item "
        "biases alone, by ε per user (add/remove). "
        "Means over seeds. The data is invented: the table looks for sizes at which the recipe "
        "fails, and does not say how good it is on real data.",
        "fedrec bench sizes",
        "bench.sizes",
    ),
    Section(
        "simple",
        "The default recipe beside simple private methods",
        (
            "All on the same data, split, ε and unit; means over seeds, test read once. "
            "Each data set is used whole and as subsets of users and items."
        ),
        (
            "fedrec bench simple --data PATH/ml-1m --data PATH/ml-100k --data PATH/yelp2018 "
            "--data PATH/amazon-book --users 300,1000 --items 100,300,1000"
        ),
        "bench.simple",
    ),
    Section(
        "simple-planted",
        "The same on planted data",
        "Ten shapes of users, items and events of each user, as ratings and as clicks; every seed "
        "plants its own data.",
        "fedrec bench simple --data planted",
        "bench.simple",
    ),
    Section(
        "clicks-yelp2018",
        "Clicks: yelp2018",
        "The split of LightGCN; trained on all given train events, means over noise seeds. "
        "ItemKNN of Open-CF-Benchmark has NDCG@20 .0531 on it, without privacy.",
        "fedrec bench clicks --data PATH/yelp2018",
        speed_tables.clicks,
    ),
    Section(
        "clicks-amazon-book",
        "Clicks: amazon-book",
        "The split of KGAT; trained on all given train events, means over noise seeds.",
        "fedrec bench clicks --data PATH/amazon-book",
        speed_tables.clicks,
    ),
    Section(
        "clicks-ml1m",
        "Clicks: MovieLens 1M, likes",
        "Ratings of at least 4 as clicks; a random split, 80% to train; means over noise seeds.",
        "fedrec bench clicks --data PATH/ml-1m",
        speed_tables.clicks,
    ),
    Section(
        "news-ml1m",
        "News: a click log of MovieLens 1M",
        "Candidates matched in popularity ([news.md](news.md)). All rows use one division of "
        "users; seeds change noise and initialisation. Public rows and schedules were chosen "
        "before, on validation users of other divisions: some test users here took part in that "
        "choice.",
        "fedrec bench news --data PATH/ml-1m",
        "experiments.news",
    ),
    Section(
        "news-paper-ml1m",
        "News: the paper's tables and figures",
        "The same click log, three seeds. Variants that train in rounds (PrivateRec Alg. 3): as "
        "printed, and in the form whose guarantee is proved (`local`), beside what the paper "
        "prints for MIND, which is other data.",
        "fedrec bench news-paper --data PATH/ml-1m --seeds 3",
        "experiments.news_paper",
    ),
    Section(
        "linkage-ml1m",
        "News: linking two noised answers of one person",
        "An ε per click does not hide a person. Two answers on one history, each with fresh noise, "
        "are matched by likelihood among all people of the training set. The table shows how often "
        "the match is right.",
        "fedrec bench linkage --data PATH/ml-1m",
        "bench.linkage",
    ),
    Section(
        "serving-news-ml1m",
        "Private queries: news through a real server",
        "Test users of the click log ask `fedrec serve` over gRPC with the client's code; its "
        "answers are scored as in evaluation. Popularity stands beside them. The log draws the "
        "others of an impression by how often train clicked them, so popularity among candidates "
        "is near chance by construction (chance is an AUC of 50). A lead over it there shows "
        "taste, not that the model makes better lists than popularity; the last table ranks the "
        "whole catalogue.",
        "fedrec bench serving-news --data PATH/ml-1m",
        "bench.serving_news",
    ),
    Section(
        "serving-attention-planted",
        "Private queries: the paper's attention through a real server",
        "`local` of PLM-NR, trained at ε = 10 per click on the small planted set, at the numbers "
        "of basis vectors B and the padding p of PrivateRec's Figures 5 and 7; one seed. It shows "
        "that the server answers as evaluation does, not how good the model is on real data.",
        "fedrec bench serving-attention --data planted",
        "bench.serving_attention",
    ),
    Section(
        "serving-lists-ml1m",
        "Private queries: lists through a real server",
        (
            "The default recipe at ε = 5 per user; ε of a question is per click (replace). "
            "NDCG@10 of held-out test likes. Three made-up readers show how different lists are. "
            "At ε = 1 per click noise leaves little of their twelve likes. Lists of the rating "
            "model are then mostly noise, and lists of the click model mostly what everybody "
            "likes, so that two readers share nearly as much as two draws of one."
        ),
        "fedrec bench serving-lists --data PATH/ml-1m",
        "bench.serving_lists",
    ),
    Section(
        "serving-basis-ml1m",
        "Private queries: ratings",
        (
            "What a factorisation model's users lose by asking privately, by form, B "
            "(numbers in a query) and "
            "ε of one query. The default B depends on the release."
        ),
        "fedrec bench serving-basis --data PATH/ml-1m",
        "bench.serving_utility",
    ),
    Section(
        "cohorts",
        "Sampled cohorts",
        (
            "The default recipe on planted ratings, with a new sample of users in every round. The "
            "noise is that of a round with all users. Validation rows, 3 seeds."
        ),
        "fedrec bench cohorts",
        "bench.cohorts",
    ),
    Section(
        "sharing-ml1m",
        "Three aggregators",
        "Shares among three aggregators, in one process (three-party.md; not yet reviewed from "
        "outside): bytes and CPU of synthetic users, "
        "and trainings of the default recipe on MovieLens 1M beside one trusted aggregator's. "
        "Test rows of one split.",
        "fedrec bench sharing --data ml-1m",
        "bench.sharing",
    ),
)
