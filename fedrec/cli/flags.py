"""Flags that several verbs share, and what must be settled before a verb loads NumPy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.shipped import scenario_path

Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object as the last line of stdout, and nothing else there."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Override one scenario key; may be repeated.",
    ),
]
ScenarioFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCENARIO",
        show_default=False,
        callback=scenario_path,
        help=(
            "Scenario file (TOML), or the name of one that comes with fedrec. Without one: every "
            "key at its default."
        ),
    ),
]


def scenario_option() -> Any:
    """`--scenario`, of verbs that do not train by themselves.

    Typed for Annotated, which typer reads."""
    words = "The scenario to be trained: a file (TOML), or the name of one that comes with fedrec."
    return typer.Option(
        "--scenario", metavar="SCENARIO", show_default=False, callback=scenario_path, help=words
    )


def one_blas_thread() -> None:
    """Before NumPy is loaded. OpenBLAS threads spin while they wait, which on a busy machine made a
    decomposition 20 times slower.

    Their sums depend on their number, too: with one, the same scenario gives the same bytes on 2
    cores and on 64. Kernels and everything large use the cores through `fedrec.numerics.threads`.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
