"""Numbers in words a reader can trust: an epsilon always beside its unit and neighbours, bytes in
decimal units."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedrec.privacy.accounting import LARGEST_CHECKED
from fedrec.privacy.guarantee import Guarantee, compared
from fedrec.report.content import ExampleReport, Opinion, PrivacyCurve, Promise

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HEX_WIDTH = 8  # bytes a row: fits a phone
_AGREE = 1e-3  # relative; second opinions are computed on grids

_UNITS = {
    "user": "everything about any one person",
    "example": "any single rating or click of a person",
    "click": "any single click",
}


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as plain text, its columns as wide as their longest cells."""
    lines = [header, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def power(value: float) -> str:
    """1e-5 as 10⁻⁵ and 2.5e-6 as 2.5·10⁻⁶."""
    # as `:g` switches to powers of ten
    mantissa, _, exponent = (
        f"{value:.3g}".partition("e") if value >= 1e-4 else f"{value:.2e}".partition("e")
    )
    if not exponent:
        return mantissa
    number = f"{float(mantissa):g}"
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return ten if number == "1" else f"{number}·{ten}"


def unit(epsilon_of: Guarantee | PrivacyCurve) -> str:
    """The words that must stand beside every epsilon."""
    return compared(epsilon_of.unit, epsilon_of.neighbours)


def guarantee(promise: Guarantee) -> str:
    """ε = 5 per user (add/remove, number of users public), δ = 10⁻⁵; or that there is none."""
    if not promise.private:
        return "no privacy"
    words = f"ε = {promise.epsilon:.4g} {unit(promise)}, δ = {power(promise.delta)}"
    if promise.established:
        return f"{words}; {promise.note}" if promise.note else words
    return f"{words}: not established, {promise.note or 'kept for reproduction only'}"


def in_plain_words(promise: Guarantee) -> str:
    """What the guarantee says to somebody who never met one."""
    if not promise.private:
        return "Nothing is promised: whoever sees the output may learn what was in the data."
    change = "been exchanged for another" if promise.neighbours == "replace" else "been left out"
    factor = math.exp(promise.epsilon) if promise.epsilon < 700 else math.inf
    size = (
        power(factor) if factor >= 1e6 else f"{factor:,.3g}" if factor < 1000 else f"{factor:,.0f}"
    )
    return (
        f"Had {_UNITS[promise.unit]} {change}, no outcome would have become more than {size} times "
        f"as likely or unlikely, up to a probability of {power(promise.delta)}."
    )


def opinion(promise: Promise, second: Opinion) -> str:
    """How a second accountant's epsilon stands to the first's."""
    first = promise.guarantee.epsilon
    epsilon = second.epsilon
    if second.exact and epsilon > first * (1 + _AGREE):
        return "DISAGREES: what was drawn costs more than is promised. Do not release this model."
    if math.isinf(epsilon) and first > LARGEST_CHECKED:
        return f"not computed above epsilon = {LARGEST_CHECKED:g}"
    if math.isnan(epsilon) or epsilon < first * (1 - _AGREE):
        return (
            "DISAGREES: it lies below the first accountant. Trust neither until that is explained."
        )
    if epsilon <= first * (1 + _AGREE):
        return "agrees"
    return (
        f"not computed at delta = {promise.guarantee.delta:g}"
        if math.isinf(epsilon)
        else f"over-estimates by {epsilon / first - 1:.1%}"
    )


def number(value: float, *, digits: int = 4) -> str:
    """Fixed digits, a dash where there is no number."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def size(count: int | None) -> str:
    """Bytes in decimal units, three significant digits: 1.23 MB; a dash where nothing is sent."""
    if count is None:
        return "–"
    if count < 1000:
        return f"{count} B"
    value = float(count)
    at = 0
    while value >= 999.5 and at < 4:
        value = value / 1000
        at = at + 1
    return f"{value:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[at]}"


def hex_rows(example: ExampleReport, *, rows: int = 12, width: int = HEX_WIDTH) -> list[str]:
    """The first bytes of the payload as a hex dump: offset and bytes, `width` to a row."""
    shown = example.payload[: rows * width]
    return [f"{at:04x}  {shown[at : at + width].hex(' ')}" for at in range(0, len(shown), width)]
