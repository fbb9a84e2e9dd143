"""Colour of each method: one everywhere, in the pages' charts and in matplotlib's pictures.

A page has colours of its own for light and dark (`--c1` ... in page.css); pictures take those of
the light page. All have a contrast of 4.5:1 or more against the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SLOTS: Mapping[str, int] = {
    "fedrec default": 1,
    "default": 1,
    "MatrixFactorization": 1,
    "non-private ALS": 2,
    "item + user bias": 3,
    "ItemBias": 3,
    "fedrec dp-bias": 3,
    "dp-bias": 3,
    "fedrec published": 4,
    "published": 4,
    "item-item": 5,
    "non-private item-item": 5,
    "ItemItem": 5,
    "fedrec dp-item-item": 5,
    "dp-item-item": 5,
    "popularity": 6,
    "Popularity": 6,
    "fedrec dp-popularity": 6,
    "dp-popularity": 6,
    "global mean": 6,
    "item mean": 5,
    "published recipe, settings by rule": 4,
    "public sides alone": 4,
    "untrained public directions": 2,
    "untrained public topics": 3,
    "untrained public categories": 4,
}
"""Number of the colour of the methods that stand beside each other most often."""
LIGHT = ("#0067a5", "#b34a06", "#00806a", "#a8558a", "#6a4fb0", "#756000")
"""The light page's colours, from the first on; page.css has the same."""


def chosen(names: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Number of each line's colour, and whether the line is dashed because a line before it has
    that colour.

    Known methods have their own, and so has the model of a run; others take the first that no line
    has.
    """
    listed = list(dict.fromkeys(names))
    known = {**{name: 1 for name in listed if name.startswith("fedrec ")}, **SLOTS}
    own = {known[name] for name in listed if name in known}
    free = [slot for slot in range(1, len(LIGHT) + 1) if slot not in own]
    slots = dict[str, tuple[int, bool]]()
    used = set[int]()
    others = 0
    for name in listed:
        slot = known.get(name) or (free.pop(0) if free else others % len(LIGHT) + 1)
        others += name not in known
        slots[name] = (slot, slot in used)
        used.add(slot)
    return slots
