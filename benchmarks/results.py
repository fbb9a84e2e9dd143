"""Results: tables of rows as JSON, and benchmarks/README.md, which a template draws from them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent
KEPT = PLACE / "results"

Row = dict[str, Any]
"""Figures, and what they are of, by the name of its column; `_` stands for a space."""
Tables = dict[str, list[Row]]
"""Rows by the caption of their table; those of one table have the same columns."""

BENCHMARKS = {
    "first-touch": "",
    "small-processes": "",
    "kernels": "",
    "als": "",
    "sgld": "",
    "encoder": "",
    "sums": "",
    "readers": "",
    "scale": "",
    "cluster": "--data PATH/ml-1m --data PATH/yelp2018",
    "processes": "--data PATH/ml-1m",
    "runtimes": "",
    "intake": "",
    "enrolment": "",
    "nodes": "--seconds 3600",
    "device": "",
    "light-devices": "",
    "sharing": "",
    "serving": "",
    "catalogues": "",
    "serving-endurance": "",
    "serving-overload": "",
    "torch-modules": "",
}
"""By name, in the order of the page: options of the result that is kept."""


def words_of(name: str) -> tuple[str, list[str]]:
    """The first sentence of a benchmark's docstring, and the paragraphs after it; what it needs is
    not loaded."""
    said = ast.get_docstring(ast.parse((PLACE / f"{name.replace('-', '_')}.py").read_text())) or ""
    first, *rest = (" ".join(part.split()) for part in said.split("\n\n"))
    return first.removesuffix("."), rest


def made(tables: Tables, *, quick: bool) -> dict[str, Any]:
    """A result with where it was made: processor, cores, load and commit."""
    from fedrec.storage import finite  # it loads NumPy, whose threads the command decides before

    processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, cwd=PLACE, capture_output=True, text=True).stdout.strip()
    told = {
        "processor": processor.group(1) if processor else "unknown",
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "commit": commit,
        "quick": quick,
    }
    return dict(finite({"made": told, "tables": tables}))


def table(rows: Sequence[Row]) -> str:
    """Markdown; a column of words is set to the left, one of figures to the right."""
    names = list(rows[0])
    rule = ["---" if isinstance(rows[0][name], str) else "---:" for name in names]
    lines = [[cell(row[name]) for name in names] for row in rows]
    head = [name.replace("_", " ") for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def cell(value: str | float | bool | None) -> str:
    """Three figures of a number, more of a large one and of one below 1."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "nan":
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 1:
        return f"{value:.4f}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def page() -> str:
    """benchmarks/README.md from the kept results."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from fedrec.storage import read_json

    kept = {name: KEPT / f"{name}.json" for name in BENCHMARKS}
    sections = [
        {
            "name": name,
            "words": words_of(name),
            "options": BENCHMARKS[name],
            "note": "",
            **read_json(path),
        }
        for name, path in kept.items()
        if path.exists()
    ]
    environment = Environment(
        loader=FileSystemLoader(PLACE), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["table"] = table
    return environment.get_template("README.md.j2").render(
        sections=sections, others=[name for name, path in kept.items() if not path.exists()]
    )
