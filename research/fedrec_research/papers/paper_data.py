"""Data that a paper took for a figure, and whether the given data is the same: the official files
are known by their format and number of ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedrec.data.read import read
from fedrec.errors import DataError
from fedrec_research.papers.starts import Start

OFFICIAL = {("ml-10m", 10_000_054): "ML-10M", ("ml-20m", 20_000_263): "ML-20M"}
"""By format and number of ratings, as GroupLens states them."""
MADE_UP = "tasks that are made up as the paper says"

_ADA = dict.fromkeys(
    ("figure2", "figure4b", "figure7", "figure8b", "figure9", "tables"), ("ML-20M",)
)
_AM = dict.fromkeys(("figure2", "figure8", "figure9b"), ("ML-20M",))
USED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ada-dpals": {"": ("ML-10M",), "figure5": (MADE_UP,), **_ADA},
    "am-ssp": {"": ("ML-10M",), "figure5": ("power laws",), "figure6": ("power laws",), **_AM},
    "dp-cmf": {"": ("ML-10M",)},
    "fast-dpmf": {"": ("Netflix", "Yahoo")},
    "convex-ssp": {"": ()},
    "privaterec": {"": ("MIND", "NewsFeeds")},
}
"""By paper and figure ("" all others)."""


@dataclass(frozen=True)
class Provenance:
    """What the paper took, what this is, whether they are the same, and that in one sentence."""

    used: tuple[str, ...]
    here: str
    same: bool
    words: str


def provenance(paper: str, figure: str, start: Start) -> Provenance:
    """Return the provenance of one figure's data. Raises DataError where the data cannot be
    read."""
    used = USED[paper].get(figure, USED[paper][""])
    if used == (MADE_UP,):
        return Provenance(used, MADE_UP, True, f"The paper's data: {MADE_UP}.")
    here = named(start)
    if not used:
        return Provenance(used, here, False, f"Nobody has published this figure. Data: {here}.")
    if here not in used:
        return Provenance(
            used,
            here,
            False,
            (
                f"NOT the paper's data ({' and '.join(used)}): this is {here}. Compare orders, "
                "not values."
            ),
        )
    if "own people" in (people := _people(start)):
        return Provenance(
            used,
            here,
            False,
            f"The paper's private data ({here}), but {people}: compare orders, not values.",
        )
    return Provenance(used, here, True, f"The paper's data: {here}{people}.")


def _people(start: Start) -> str:
    """Who is public, for the figures that have public people: the paper's come from ML-20M."""
    chosen = start.scenario.collective
    if chosen.users_share:
        return f"{chosen.users_share:.0%} of its own people are public"
    return f", with public people from {_described(chosen.users_file)}" if chosen.users_file else ""


def named(start: Start) -> str:
    """The data's name: "ML-10M", "planted data", or its folder with the number of its events."""
    path = start.scenario.data.path
    if not path:
        return "planted data"
    return _described(path)


@lru_cache(maxsize=4)
def _described(path: str) -> str:
    name = Path(path).resolve().name
    try:
        found = read(path).provenance
    except DataError:
        return name  # it needs more of the scenario to be read; the figure reads it with all of it
    kept = OFFICIAL.get((found.format, found.report.rows_read))
    return kept or f"{name}, {found.report.rows_read:,} events"
