"""docs/benchmarks.md: the kept results as tables, each with the command that makes it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.storage import read_json, write_bytes
from fedrec_simulations.bench.sections import SECTIONS, Section

INTRODUCTION = """Made by `fedrec docs docs/reference.md --results docs/results` from the files in
docs/results, which these commands write. Every ε is at δ =
10⁻⁵. Of ratings and clicks it is per user (add/remove), with the privacy loss distribution (PLD)
and Renyi (RDP) as second opinions. The tables of news state the unit and neighbours of each line:
their epsilons do not compare."""


def write(target: Path, results: Path) -> None:
    """Write the page from the JSON files in `results`; a section whose file is absent is left out.

    Raises RunError on a damaged file."""
    parts = ["# Benchmarks", INTRODUCTION]
    for section in SECTIONS:
        if (path := results / f"{section.result}.json").exists():
            result = read_json(path)
            # of rows that would be made otherwise now
            note = [f"**Note.** {result['note']}"] if result.get("note") else []
            command = f"```sh\n{section.command} --output {path.as_posix()}\n```"
            parts += [f"## {section.title}", section.words, command, *note, _table(section, result)]
    write_bytes(target, ("\n\n".join(parts) + "\n").encode())


def _table(section: Section, result: dict[str, Any]) -> str:
    if isinstance(section.table, str):
        return str(import_module(f"fedrec_simulations.{section.table}").markdown(result))
    return section.table(result)
