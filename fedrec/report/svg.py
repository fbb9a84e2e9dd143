"""The few shapes that the charts are drawn from.

Colours are classes of the page, so that charts follow light and dark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

SLOTS: Mapping[str, int] = {
    "fedrec default": 1,
    "default": 1,
    "MatrixFactorization": 1,
    "the model, served bare": 1,
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


@dataclass(frozen=True)
class Scale:
    """Maps data [low, high] to pixels [start, stop], linearly or by logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; the middle where low equals high."""
        low, high, x = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (x - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


def element(tag: str, content: str | None = None, **attributes: object) -> Markup:
    """An SVG element, everything escaped; `class_` becomes class, underscores hyphens, numbers two
    decimals."""
    words = {
        name.rstrip("_").replace("_", "-"): f"{v:.2f}".rstrip("0").rstrip(".")
        if isinstance(v, float)
        else v
        for name, v in attributes.items()
    }
    inside = "".join(
        f' {name}="{escape(value)}"' for name, value in words.items() if value is not None
    )
    return Markup(
        f"<{tag}{inside}/>" if content is None else f"<{tag}{inside}>{escape(content)}</{tag}>"
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "start", class_: str | None = None
) -> Markup:
    """One line of text whose baseline starts, centres or ends at (x, y)."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, *, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], *, class_: str) -> Markup:
    """A line through points."""
    return element("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=class_)


def picture(
    parts: Sequence[Markup],
    *,
    width: float,
    height: float,
    name: str,
    title: str,
    description: str,
) -> Markup:
    """An accessible SVG; `name` must be unique on the page."""
    head = element("title", title, id=f"{name}-t") + element("desc", description, id=f"{name}-d")
    opening = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{escape(name)}-t '
        f'{escape(name)}-d">'
    )
    return Markup(opening) + head + Markup("").join(parts) + Markup("</svg>")


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / about))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(span / s - about))
    return [
        k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within [low, high], low > 0; over more than three decades the
    powers alone.

    >>> log_ticks(0.04, 13)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    """
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    steps = (1, 2, 5) if high <= 1000 * low else (1,)
    found = [float(f"{m}e{power}") for power in range(first, last + 1) for m in steps]
    return [value for value in found if low <= value <= high]


def sparse(values: Sequence[float], x: Scale, *, gap: float = 24.0) -> list[float]:
    """The values whose labels do not touch, the last one always."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or x(kept[-1]) - x(value) >= gap:
            kept.append(value)
    return kept


def decimals(values: Sequence[float]) -> int:
    """Digits after the point that tell neighbouring ticks apart."""
    gaps = [b - a for a, b in itertools.pairwise(values) if b > a]
    return max(0, -math.floor(math.log10(min(gaps)) + 1e-9)) if gaps else 2


def spread(
    wanted: Sequence[float], sizes: Sequence[float], *, low: float, high: float
) -> list[float]:
    """Tops of boxes of the given sizes, near the wanted tops, without overlap, in their order,
    within [low, high] if they fit.

    Each box is put where it wants to be or under the last one; then those that stick out below are
    pushed up again.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    tops = [0.0] * len(wanted)
    floor = low
    for i in order:
        tops[i] = max(wanted[i], floor)
        floor = tops[i] + sizes[i]
    ceiling = high
    for i in reversed(order):
        tops[i] = min(tops[i], ceiling - sizes[i])
        ceiling = tops[i]
    return tops


def chosen(names: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Number of each line's colour, and whether the line is dashed because a line before it has
    that colour.

    Known methods have their own, and so has the model of a run; others take the first that no line
    has.

    A page has colours of its own for light and dark (`--c1` ... in page.css); pictures take those
    of the light page. All have a contrast of 4.5:1 or more against the page.
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
