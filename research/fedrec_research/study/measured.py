"""Words for what was measured: the data behind the rows of a group of systems, and means with
their intervals."""

from __future__ import annotations

import math

from fedrec.data.kinds import KINDS
from fedrec.evaluation.intervals import Interval
from fedrec_research.study.results import Study
from fedrec_research.study.systems import Group


def about(study: Study, group: Group) -> str:
    """Sizes of the data, how they are split, and the metric."""
    sizes = study.sizes[group]
    ratings = KINDS[study.kind].rated
    split = (
        "random 80/10/10, divided and noised by the seed"
        if ratings or study.likes
        else "the given split, noised by the seed"
    )
    whose = "private users (the others' events are public)" if group == "people" else "users"
    better = "lower is better" if study.lower_is_better else "higher is better"
    size = (
        f"{sizes['users']:,} {whose}, {sizes['items']:,} items, {sizes['train']:,} {study.kind} "
        "in train"
    )
    seeds = study.seeds[group]
    return (
        f"{size}; {split}, {seeds} seed{'s' if seeds != 1 else ''}. Test {study.metric.upper()}, "
        f"{better}."
    )


def cell(found: Interval | None) -> str:
    """Return the cell of a table: a mean with its interval."""
    if found is None:
        return "–"
    return with_interval(found, ".4f")


def shown(epsilon: float) -> str:
    """An epsilon."""
    return f"{epsilon:g}" if math.isfinite(epsilon) else "∞"


def with_interval(found: Interval, form: str) -> str:
    """A mean and half of its interval, in the format `form`; one seed has no interval."""
    return f"{found.mean:{form}}" + (f"±{found.half:.4f}" if math.isfinite(found.half) else "")
