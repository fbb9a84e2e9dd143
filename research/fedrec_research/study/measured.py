"""Words for what was measured: data and code behind the rows of a group of systems, and means with
their intervals."""

from __future__ import annotations

import math
from collections import defaultdict

from fedrec.data.kinds import KINDS
from fedrec.evaluation.intervals import Interval
from fedrec_research.study.results import Study
from fedrec_research.study.systems import Group

WHY_NOT = "#not-measured-and-why"
"""The section of the page that says which rows were made before the code that they are of."""


def about(study: Study, group: Group) -> str:
    """Sizes of the data, how they are split, the metric, and which code made which rows."""
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
        f"{better}. {_codes(study, group)}"
    )


def _codes(study: Study, group: Group) -> str:
    """Whose rows these are, by the digest of the code."""
    made = defaultdict[str, list[str]](list)
    for (name, _), cell in study.cells.items():
        system = study.system(name)
        label = system.label.removesuffix(f", {system.form}")
        if system.group == group and label not in made[code := cell.get("code", "")]:
            made[code].append(label)
    known = [
        f"`{code}`: {'; '.join(labels)}."
        for code, labels in sorted(made.items(), key=lambda found: found[1])
        if code and labels
    ]
    earlier = made[""]
    if not known:
        return "All rows are of earlier code."
    told = [
        f"Digests of the code that the rows are of, made by it or, [as said below]({WHY_NOT}), "
        f"carried over to it: {' '.join(known)}"
    ]
    return " ".join([*told, *([f"Of earlier code: {'; '.join(earlier)}."] if earlier else [])])


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
    return f"{found.mean:{form}}" + (f" ± {found.half:.4f}" if math.isfinite(found.half) else "")
