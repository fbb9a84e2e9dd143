"""The verb `fedrec bench`: which benchmark, on which data, and where its result goes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from fedrec.cli.flags import Json, one_blas_thread
from fedrec.errors import SettingsError
from fedrec_simulations.bench import options
from fedrec_simulations.bench.options import Bench

app = typer.Typer(rich_markup_mode=None)

_OF = {
    "--jobs": (
        Bench.paper,
        Bench.study,
        Bench.search,
        Bench.sizes,
        Bench.simple,
    ),
    "--only": (Bench.study, Bench.search, Bench.news_paper),
    "--likes": (Bench.study, Bench.search),
    "--seeds": (Bench.study, Bench.sizes, Bench.simple, Bench.news_paper),
    "--users": (Bench.sizes, Bench.simple),
    "--items": (Bench.sizes, Bench.simple),
    "--epsilons": (Bench.sizes, Bench.simple),
    "--set": (Bench.paper, Bench.simple),
    "--html": (Bench.paper,),
    "--protocol": (Bench.submit,),
    "--system": (Bench.submit,),
}
"""What a flag is for; the others are for all."""
_SEEDS = {Bench.study: 5, Bench.news_paper: 1}
_OTHER_SEEDS = 3
_NAMED = {
    Bench.paper: ("the name of a paper", "fedrec bench paper dp-cmf/figure1 --data PATH"),
    Bench.submit: ("run folders", "fedrec bench submit runs/a runs/b"),
    Bench.leaderboard: ("folders of rows", "fedrec bench leaderboard leaderboard"),
}
"""What takes names, what they are, and an example."""
_LEADERBOARD = {Bench.submit, Bench.leaderboard}
ROWS = Path("leaderboard")
"""Where `submit` writes, and `leaderboard` reads, unless told."""


def _sizes(text: str) -> list[int]:
    parts = text.split(",") if text else []
    if not all(part.isdigit() and int(part) for part in parts):
        raise SettingsError(
            f"sizes are whole numbers with commas between, found {text!r}",
            "For example --users 2000,20000.",
        )
    return [int(part) for part in parts]


def _epsilons(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(value > 0 for value in found):
        raise SettingsError(
            f"epsilons are positive numbers or inf with commas between, found {text!r}",
            "For example --epsilons 1,5,inf.",
        )
    return found


@app.command(short_help="Measure quality; print one JSON object.", help=options.HELP)
def bench(
    what: options.What,
    names: options.Names = None,
    data: options.Data = None,
    quick: options.Quick = False,
    jobs: options.Jobs = 1,
    only: options.Only = None,
    likes: options.Likes = False,
    seeds: options.Seeds = None,
    users: options.Users = "",
    items: options.Items = "",
    epsilons: options.Epsilons = "",
    overrides: options.Overrides = None,
    protocol: options.Protocol = "",
    system: options.System = "",
    output: options.Output = None,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """See `options.HELP`."""
    flags: dict[str, object] = {
        "--jobs": jobs > 1,
        "--only": only,
        "--likes": likes,
        "--set": overrides,
        "--html": html,
    }
    flags |= {
        "--protocol": protocol,
        "--system": system,
        "--seeds": seeds,
        "--users": users,
        "--items": items,
        "--epsilons": epsilons,
    }
    _check(what, names or (), data or (), {flag for flag, given in flags.items() if given})
    if what in _LEADERBOARD:
        if data or quick:
            raise SettingsError(
                f"--data and --quick are not for {what.value}",
                "It reads finished runs, or their rows.",
            )
        folders = [Path(name) for name in names or ()]
        typer.echo(
            _submit(folders, output, protocol, system)
            if what is Bench.submit
            else _leaderboard(folders, output, as_json=as_json)
        )
        return
    grid: dict[str, Any] = {
        "users": _sizes(users),
        "items": _sizes(items),
        "epsilons": _epsilons(epsilons),
    }
    some = _Told(
        quick,
        jobs,
        seeds or _SEEDS.get(what, _OTHER_SEEDS),
        tuple(only or ()),
        likes,
        tuple(overrides or ()),
        output,
        as_json,
        grid,
    )
    result = _measured(what, names or [""], data or [], some, html)
    from fedrec.storage import finite, write_json

    if output:
        write_json(output, result)
    typer.echo(json.dumps(finite(result), indent=None if as_json else 2))


@dataclass(frozen=True)
class _Told:
    """What several benchmarks are told."""

    quick: bool
    jobs: int
    seeds: int
    only: tuple[str, ...]
    likes: bool
    overrides: tuple[str, ...]
    output: Path | None
    silent: bool
    grid: dict[str, Any]


def _check(what: Bench, names: Sequence[str], data: Sequence[str], flags: set[str]) -> None:
    """Raises SettingsError on a flag, a name or a folder that is for another benchmark."""
    if what in _NAMED and not names and what is not Bench.leaderboard:
        raise SettingsError(f"{what.value} needs {_NAMED[what][0]}", _NAMED[what][1])
    if names and (what not in _NAMED or (what is Bench.paper and len(names) > 1)):
        one = "one name" if what is Bench.paper else "no names"
        raise SettingsError(
            f"{what.value} takes {one}, found {' '.join(names)}",
            "; ".join(example for _, example in _NAMED.values()),
        )
    for flag in _OF:
        if flag in flags and what not in _OF[flag]:
            raise SettingsError(
                f"{flag} is not for {what.value}", f"It is for: {', '.join(_OF[flag])}."
            )
    if len(data) > 1 and what is not Bench.simple:
        raise SettingsError(
            f"{what.value} takes one --data, found {len(data)}", "Measure one at a time."
        )


def _measured(
    what: Bench,
    names: Sequence[str],
    data: Sequence[str],
    some: _Told,
    html: Path | None,
) -> dict[str, Any]:
    """One JSON object."""
    one_blas_thread()
    from fedrec_simulations.bench.verbs import paper, run, told

    path = "".join(data[:1])
    shared: dict[str, Any] = {"quick": some.quick, "jobs": some.jobs, "silent": some.silent}
    if what is Bench.paper:
        return paper(names[0], data=path, overrides=some.overrides, html=html, **shared)
    if what is Bench.study:
        return told(
            "study",
            data=path,
            likes=some.likes,
            only=some.only,
            seeds=some.seeds,
            output=some.output,
            **shared,
        )
    if what is Bench.search:
        return told(
            "search",
            data=path,
            likes=some.likes,
            only=some.only,
            jobs=some.jobs,
            output=some.output,
            silent=some.silent,
        )
    if what is Bench.news_paper:
        return told(
            "news-paper",
            data=path,
            only=some.only,
            seeds=some.seeds,
            quick=some.quick,
            silent=some.silent,
        )
    if what is Bench.sizes:
        return told("sizes", output=some.output, seeds=some.seeds, **some.grid, **shared)
    if what is Bench.simple:
        return told(
            "simple",
            data=data,
            overrides=some.overrides,
            output=some.output,
            seeds=some.seeds,
            **some.grid,
            **shared,
        )
    return run(what.value, data=path, quick=some.quick)


def _submit(runs: list[Path], output: Path | None, protocol: str, system: str) -> str:
    from fedrec_simulations.leaderboard.submitting import submit

    return "\n".join(map(str, submit(runs, output or ROWS, protocol=protocol, system=system)))


def _leaderboard(folders: list[Path], output: Path | None, *, as_json: bool) -> str:
    from fedrec_simulations.leaderboard import drawing
    from fedrec_simulations.leaderboard.board import sections
    from fedrec_simulations.leaderboard.protocol import protocols
    from fedrec_simulations.leaderboard.published import published_rows
    from fedrec_simulations.leaderboard.rows import read_rows

    known, rows = protocols(folders), read_rows(folders)
    found = sections([*rows, *published_rows(known)], known)
    if output is not None:
        drawing.write(output, found)
    return json.dumps(drawing.as_json(found)) if as_json else drawing.as_text(found)
