"""The command `python -m benchmarks NAME`: which one, how large, and where its result goes."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.results import BENCHMARKS, PLACE, made, page, words_of
from fedrec.cli.flags import one_blas_thread
from fedrec.errors import FedRecError

ALL_CORES = {"kernels", "als", "encoder"}
"""Beside BLAS on all cores; the others have one BLAS thread, as trainings do."""


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name every benchmark")
    parser.add_argument("--page", action="store_true", help="make README.md of the kept results")
    parser.add_argument("--quick", action="store_true", help="the smallest size: no figure")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the result here")
    parser.add_argument("--data", action="append", metavar="PATH", help="may be repeated")
    parser.add_argument("--users", action="append", type=int, metavar="N", help="may be repeated")
    parser.add_argument("--items", action="append", type=int, metavar="N", help="may be repeated")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long, of what has a length")
    told = vars(parser.parse_args())
    name = told.pop("name")
    output = told.pop("output")
    if told.pop("list"):
        sys.stdout.writelines(f"{each:18} {words_of(each)[0]}\n" for each in BENCHMARKS)
    elif told.pop("page"):
        (PLACE / "README.md").write_text(page())
    elif name is None:
        parser.error("no NAME: --list says which there are")
    else:
        chosen = {key: value for key, value in told.items() if value is not None}
        result = measured(name, parser, **chosen)
        text = f"{json.dumps(result, indent=2, ensure_ascii=False)}\n"
        if output:
            output.write_text(text)
        sys.stdout.write(text)


def measured(name: str, parser: argparse.ArgumentParser, **chosen: object) -> dict[str, object]:
    """One benchmark; an option that is not for it is an error."""
    if name not in ALL_CORES:
        one_blas_thread()
    run = import_module(f"benchmarks.{name.replace('-', '_')}").run
    takes = inspect.signature(run).parameters
    for option in chosen:
        if option not in takes:
            parser.error(f"--{option} is not for {name}")
    try:
        return made(run(**chosen), quick=bool(chosen["quick"]))
    except FedRecError as failure:
        parser.exit(1, f"{failure.cause}\n{failure.remedy}\n")


if __name__ == "__main__":
    main()
