"""Pages in Markdown from templates, and the numbers and tables in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedrec.evaluation.intervals import interval
from fedrec.storage import write_bytes

_ENVIRONMENT = Environment(
    loader=PackageLoader("fedrec_research"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)


def render(template: str, **values: Any) -> str:
    """A template of `templates/` as text: at most one empty line at a time, none at the ends."""
    text = _ENVIRONMENT.get_template(f"{template}.md").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def write(path: Path, template: str, **values: Any) -> None:
    """Render the template to a file. Raises OSError."""
    write_bytes(path, f"{render(template, **values)}\n".encode())


def table(header: Sequence[str], lines: Sequence[Sequence[str]], *, text: bool = False) -> str:
    """Markdown; all columns but the first hold numbers, or `text`."""
    rule = ["---"] + ["---" if text else "---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines])


def in_order(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items by name, numbers in names by size: epsilon 5 before epsilon 20, and inf after them."""
    return sorted(
        named.items(),
        key=lambda item: [
            float(part) if part.isdigit() else part for part in re.split(r"(\d+)", item[0])
        ],
    )


def figure(value: Any, digits: int = 4) -> str:
    """A number of a row as text: a dash where there is none, "inf" as it is."""
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:.{digits}f}"
    return "inf" if value in ("inf", math.inf) else "–"


def number(value: Any) -> str:
    """Four significant digits at least, a dash where there is none."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "–"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"


def words(value: Any) -> str:
    """What a paper says, however it is kept: a sentence, an order, or values by something."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(words, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def cell(row: Mapping[str, Any]) -> str:
    """The value of a row with half of its interval, where it has one."""
    half = f" ± {(row['interval'][1] - row['interval'][0]) / 2:.4f}" if "interval" in row else ""
    return f"{number(row['value'])}{half}"


def shown(value: Any) -> str:
    """A number in as few digits as it needs."""
    return f"{float(value):g}"


def over_seeds(values: Sequence[float], digits: int = 4) -> str:
    """The mean with half of its 95% interval; of a single value, the value."""
    found = interval(values)
    return figure(found.mean, digits) + (
        f" ± {found.half:.{digits}f}" if math.isfinite(found.half) else ""
    )


def by_number(named: Mapping[str, Any], reverse: bool = False) -> list[tuple[str, Any]]:
    """Items whose names are numbers, by size."""
    return sorted(named.items(), key=lambda item: float(item[0]), reverse=reverse)


def falling(names: Iterable[str]) -> list[str]:
    """Those that are numbers, the largest first."""
    return sorted(
        (name for name in names if name.replace(".", "").isdigit() or name == "inf"),
        key=float,
        reverse=True,
    )


def by_first_number(names: Iterable[str]) -> list[str]:
    """ "6" before "10-19"."""
    return sorted(names, key=lambda name: int(name.partition("-")[0]))


_ENVIRONMENT.globals |= {
    "table": table,
    "in_order": in_order,
    "isinf": math.isinf,
    "inf": math.inf,
}
_ENVIRONMENT.filters |= {
    "figure": figure,
    "shown": shown,
    "words": words,
    "cell": cell,
    "over_seeds": over_seeds,
    "by_number": by_number,
    "falling": falling,
    "sort_groups": by_first_number,
    "at": lambda mapping, key: mapping[key],
    "values": lambda mapping: list(mapping.values()),
    "sum_keys": lambda mappings: {key for mapping in mappings for key in mapping},
    "over_zero": lambda mapping: [key for key, value in mapping.items() if value > 0],
}
_ENVIRONMENT.tests |= {
    "containing": lambda text, part: part in text,
    "same_number": lambda one, other: float(one) == other,
}
