"""Chart of attacks beside the claims that they test."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedrec.report.charts import LINE_HEIGHT, both_widths
from fedrec.report.svg import Scale, decimals, element, line, picture, sparse, text, ticks


@dataclass(frozen=True)
class Attacked:
    """One attack: the claimed epsilon, and what was found to be at least it; None where nothing
    was."""

    attack: str
    claimed: float
    found: float | None


def claims(attacks: Sequence[Attacked], *, axis: str, name: str) -> Markup:
    """A row for each attack: a dot at the bound, a stroke at the claim.

    A dot to the right of its stroke refutes the claim."""
    return both_widths(lambda width, at: _claims(attacks, axis, width, at), name)


def _claims(attacks: Sequence[Attacked], axis: str, width: float, name: str) -> Markup:
    wide = width > 500
    left = 188.0 if wide else 118.0
    right = width - 48.0
    letters = 30 if wide else 14
    top = 30.0
    shown = [a for a in attacks if math.isfinite(a.claimed)]
    lines = max((len(textwrap.wrap(a.attack, letters)) for a in shown), default=1)
    lane = max(28.0 if wide else 40.0, LINE_HEIGHT * lines + 8)
    x = Scale(
        0.0,
        1.08 * max((v for a in shown for v in (a.claimed, a.found or 0.0)), default=1.0),
        left,
        right,
    )
    marks = ticks(x.low, x.high)
    height = top + lane * len(shown)
    parts = [line(x(v), top - 4, x(v), height, class_="grid") for v in marks]
    parts += [
        text(x(v), height + 18, f"{v:.{decimals(marks)}f}", anchor="middle", class_="tick")
        for v in sparse(marks, x, gap=36.0)
    ]
    # Keys and the axis' name are wider than a narrow picture's axis: they take its whole width.
    keys, middle = (left, (left + right) / 2) if wide else (6.0, width / 2)
    parts.append(text(middle, height + 38, axis, anchor="middle", class_="axis"))
    parts += [line(keys, 4.0, keys, 18.0, class_="line s2"), text(keys + 8, 15.0, "claimed")]
    parts += [
        element("circle", cx=keys + 76, cy=11.0, r=4.5, class_="dot f1"),
        text(keys + 86, 15.0, "at least, as the attack proves"),
    ]
    for row, attack in enumerate(shown):
        parts += _attack(x, attack, top + lane * (row + 0.5), letters=letters)
    spoken = " ".join(
        (
            f"{a.attack}: claimed {a.claimed:.4g}, at least "
            f"{'–' if a.found is None else f'{a.found:.4g}'}."
        )
        for a in shown
    )
    return picture(
        parts,
        width=width,
        height=height + 46,
        name=name,
        title="Claimed ε and what attacks prove",
        description=spoken,
    )


def _attack(x: Scale, attack: Attacked, middle: float, *, letters: int) -> Iterator[Markup]:
    """Its name in lines, the claim as a stroke, and what it proves as a dot with its number."""
    words = textwrap.wrap(attack.attack, letters)
    first = middle + 4 - LINE_HEIGHT * (len(words) - 1) / 2
    for n, part in enumerate(words):
        yield text(x.start - 12, first + LINE_HEIGHT * n, part, anchor="end", class_="tick")
    claimed = x(attack.claimed)
    yield line(claimed, middle - 9, claimed, middle + 9, class_="line s2")
    if attack.found is None:
        return
    yield element("circle", cx=x(attack.found), cy=middle, r=4.5, class_="dot f1")
    side, anchor = (-9, "end") if attack.found < attack.claimed else (9, "start")
    number = f"{attack.found:.3g}"
    yield text(x(attack.found) + side, middle + 4, number, anchor=anchor, class_="value halo")
