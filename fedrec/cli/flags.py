"""Flags that several verbs share, and what must be settled before a verb loads NumPy."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.errors import SettingsError
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


def option(flag: str, metavar: str, words: str, **more: Any) -> Any:
    """An option whose default is not shown. Typed for Annotated, which typer reads."""
    return typer.Option(flag, metavar=metavar, show_default=False, help=words, **more)


User = Annotated[
    str, option("--user", "COLUMN", "Column of who it was; guessed where the name is usual.")
]
Item = Annotated[
    str, option("--item", "COLUMN", "Column of what it was; guessed where the name is usual.")
]
Rating = Annotated[
    str,
    option(
        "--rating",
        "COLUMN",
        "Column of ratings, with --scale; or of plays or thumbs, with --clicks-from.",
    ),
]
Scale = Annotated[
    tuple[float, float] | None,
    option("--scale", "LOW HIGH", "Lowest and highest rating, which everybody may know: 1 5."),
]
ClicksFrom = Annotated[
    float | None,
    option(
        "--clicks-from", "LOWEST", "Count ratings, thumbs or plays of so much or more as clicks."
    ),
]
Time = Annotated[
    str,
    option(
        "--time",
        "COLUMN",
        "Column of times, guessed where the name is usual: lists follow the latest clicks, and the "
        "last of two ratings is kept.",
    ),
]
Decimal = Annotated[
    str, option("--decimal", "MARK", "Mark before the decimals of ratings: . or a comma.")
]
TimeFormat = Annotated[
    str, option("--time-format", "FORMAT", "How times are written, as in '%d.%m.%Y %H:%M'.")
]
Items = Annotated[str, option("--items", "FILE", "Table of public features, a row for each item.")]
EpsilonFlag = Annotated[
    float | None, option("--epsilon", "E", "Epsilon of the model, per user; 5 if not given.")
]
DeltaFlag = Annotated[
    float | None, option("--delta", "D", "Delta of that epsilon; 1e-5 if not given.")
]


def own_data(
    data: str,
    *,
    user: str = "",
    item: str = "",
    rating: str = "",
    scale: tuple[float, float] | None = None,
    clicks_from: float | None = None,
    time: str = "",
    items: str = "",
    decimal: str = "",
    time_format: str = "",
    epsilon: float | None = None,
    delta: float | None = None,
    overrides: Sequence[str] = (),
) -> list[str]:
    """What these flags set in a scenario, as --set has it. overrides: what --set says beside them.

    Raises SettingsError where both say the same key."""
    words = {
        "data.path": data,
        "data.columns.user": user,
        "data.columns.item": item,
        "data.columns.rating": rating,
        "data.columns.timestamp": time,
        "data.features_path": items,
        "data.decimal": decimal,
        "data.time_format": time_format,
    }
    numbers = {
        "data.click_threshold": clicks_from,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
    }
    said = [
        *(f"{key}={json.dumps(word, ensure_ascii=False)}" for key, word in words.items() if word),
        *(f"{key}={number}" for key, number in numbers.items() if number is not None),
        *([] if scale is None else [f"data.rating_range=[{scale[0]:g}, {scale[1]:g}]"]),
        *([] if clicks_from is None else ["data.kind=clicks"]),
    ]
    keys = {word.partition("=")[0] for word in said}
    if twice := [word for word in overrides if word.partition("=")[0].strip() in keys]:
        raise SettingsError(
            f"--set {twice[0]} says what a flag says, too", "Leave one of them out."
        )
    return said


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
