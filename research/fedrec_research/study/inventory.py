"""Inventory of the five papers' figures and tables: which `fedrec research figures` makes again, on
what data in place of the paper's, and why not where it does not."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec_research.drawing import table
from fedrec_research.papers.figures import paper

_DRAWING = "a drawing: nothing is measured"
_WORDS = "words and letters: nothing is measured"
_LIKES = "MovieLens 1M, ratings of 4 or more, for ML-20M"
_RATINGS = "MovieLens 1M for ML-10M"
_LOG = "a click log of MovieLens 1M for MIND and NewsFeeds"
_FILMS = "MovieLens 1M for Netflix and Yahoo music"
OPEN = """Rows of another code than today's: the digest of each is in its file. Seed 1 of the
default on MovieLens 1M, yelp2018 and amazon-book, of convex SSP, Ada-DPALS and three of
PrivateRec's trainings was made again later: the same to 0.00003 or better. Outside the sections
*on one model* the lines did not share one search: 15 settings for each line, ε and data set take
hours. Our default has no form on one model."""


@dataclass(frozen=True)
class Shown:
    """One figure or table of a paper. made: names of `fedrec research figures`; otherwise `why`
    none."""

    number: str
    what: str
    made: tuple[str, ...] = ()
    why: str = ""


PAPERS: dict[str, tuple[Shown, ...]] = {
    "ada-dpals": (
        Shown("Figure 1", "RMSE against ε per user", ("figure1",), _RATINGS),
        Shown("Figure 2", "Recall@20 against ε per user", ("figure2",), _LIKES),
        Shown("Figure 3", "RMSE against μ", ("figure3",), _RATINGS),
        Shown(
            "Figure 4",
            "quality by popularity at ε = 1 per user",
            ("figure4", "figure4b"),
            f"{_RATINGS}; {_LIKES}",
        ),
        Shown("Figure 5", "planted linear tasks", ("figure5",), "planted, as in the paper"),
        Shown("Figure 6", "Recall against ε per user", (), "the Million Song Data are not at hand"),
        Shown("Figure 7", "share of events of the head", ("figure7",), _LIKES),
        Shown(
            "Figure 8", "quality by popularity", ("figure8", "figure8b"), f"{_RATINGS}; {_LIKES}"
        ),
        Shown("Figure 9", "Recall@20 against μ", ("figure9",), _LIKES),
        Shown("Figure 10", "nearest neighbours kept", ("figure10",), _RATINGS),
        Shown("Table 1", "sizes of data sets", (), "of data sets that are not at hand"),
        Shown("Table 2", "names of the methods", (), _WORDS),
        Shown("Tables 3, 4", "neighbours of films", ("tables",), "MovieLens 1M for ML-20M"),
    ),
    "am-ssp": (
        Shown("Figure 1", "RMSE against ε per user", ("figure1",), _RATINGS),
        Shown("Figure 2", "Recall@20 against ε per user", ("figure2",), _LIKES),
        Shown("Figure 3", "RMSE against seconds", ("figure3",), _RATINGS),
        Shown("Figure 4", "SSP1 and SSP2", ("figure4",), _RATINGS),
        Shown("Figure 5", "visits of an item", ("figure5",), "computed, as in the paper"),
        Shown("Figure 6", "cost of SSP over DP-SGD", ("figure6",), "computed, as in the paper"),
        Shown(
            "Figure 7",
            "density of features",
            (),
            "describes features from Wikidata that are not public",
        ),
        Shown("Figure 8", "Recall@20 against seconds", ("figure8",), _LIKES),
        Shown(
            "Figure 9", "quality by popularity", ("figure9", "figure9b"), f"{_RATINGS}; {_LIKES}"
        ),
        Shown("Figure 10", "federated SSP2", (), _DRAWING),
        Shown("Table 1", "letters for sizes", (), _WORDS),
        Shown("Table 2", "sizes of data sets", (), "of data sets that are not at hand"),
    ),
    "dp-cmf": (
        Shown("Figure 1", "RMSE against ε per user, with public sources", ("figure1",), _RATINGS),
        Shown("Figure 2", "popularity of public sources", ("figure2",), _RATINGS),
        Shown("Figure 3", "parts of the metadata", ("figure3",), _RATINGS),
        Shown("Figure 4", "similar items", ("figure4",), _RATINGS),
        Shown("Figure 5", "how many public users", ("figure5",), _RATINGS),
    ),
    "fast-dpmf": (
        Shown(
            "Figure 1",
            "items by their number of ratings",
            (),
            "describes Netflix and Yahoo music, which are not at hand",
        ),
        Shown("Figure 2", "RMSE against seconds", ("figure2",), _FILMS),
        Shown("Figure 3", "seconds by dimension", ("figure3",), _FILMS),
        Shown("Figure 4", "convergence of the sampler", ("figure4",), _FILMS),
        Shown("Figure 5", "RMSE against ε per user", ("figure5",), _FILMS),
        Shown(
            "Table 1",
            "cache misses",
            (),
            "of C-SGD and GraphChi by hardware counters, which not every machine grants; "
            "the benchmark `sgld` times our sampler beside LIBMF",
        ),
    ),
    "privaterec": (
        Shown("Figures 1, 2, 3", "serving, training, the news model", (), _DRAWING),
        Shown("Table 1", "training, served without noise", ("table1",), _LOG),
        Shown("Table 2", "trained and served at ε = 10 per click", ("table2",), _LOG),
        Shown("Figure 4", "one model served at many ε per click", ("figure4",), _LOG),
        Shown("Figure 5", "padding", ("figure5",), _LOG),
        Shown("Figure 6", "AUC against ε of training, per click", ("figure6",), _LOG),
        Shown("Figure 7", "number of basis vectors", ("figure7",), _LOG),
    ),
}


def markdown() -> str:
    """Return those that are not made again, and why, as a table."""
    rows = [
        [f"{paper(name).name}, {one.number}", one.what, one.why]
        for name, shown in PAPERS.items()
        for one in shown
        if not one.made
    ]
    return table(("shown in the paper", "what", "why not"), rows, text=True)
