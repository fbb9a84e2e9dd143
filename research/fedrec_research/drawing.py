"""Pages in Markdown from templates, and the numbers and tables in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
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


def figure(value: Any, digits: int = 4) -> str:
    """A number of a row as text: a dash where there is none, "inf" as it is."""
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:.{digits}f}"
    return "inf" if value in ("inf", math.inf) else "–"


def shown(value: Any) -> str:
    """A number in as few digits as it needs."""
    return f"{float(value):g}"


def over_seeds(values: Sequence[float], digits: int = 4) -> str:
    """The mean with half of its 95% interval; of a single value, the value."""
    found = interval(values)
    return figure(found.mean, digits) + (
        f" ± {found.half:.{digits}f}" if math.isfinite(found.half) else ""
    )


_ENVIRONMENT.globals |= {"table": table}
_ENVIRONMENT.filters |= {"shown": shown, "over_seeds": over_seeds}
