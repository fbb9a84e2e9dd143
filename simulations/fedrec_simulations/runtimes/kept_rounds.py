"""Rounds that a server has kept: a party runtime reads them while, or after, its server trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from fedrec.run.job import Carried
from fedrec.storage import read_arrays, read_json
from fedrec_server.runs import run_folder


def kept_rounds(server: Path, *, after: int) -> Iterator[Carried]:
    """The rounds that a server's newest training holds from number `after` on, as far as their
    checkpoint is there too."""
    parties, server = server.parent, run_folder(server)
    lines = server / "rounds.jsonl"
    for text in lines.read_text().splitlines()[after:] if lines.exists() else ():
        line = json.loads(text)
        path = server / "checkpoints" / f"round-{line['round'] + 1:03d}.safetensors"
        if not path.exists():
            return
        names, up = tuple(line["releases"]), _bytes_sent(parties, line["round"])
        drawn = _stated_noise(server / "releases" / f"round-{line['round']:03d}.safetensors")
        yield Carried(
            line["round"],
            line["step"],
            names,
            up,
            line["bytes_down"],
            line["seconds"],
            read_arrays(path),
            drawn,
        )


def _stated_noise(release: Path) -> dict[str, float]:
    """Noise std by block, as a kept release states it (`wire.pack_release`)."""
    with safe_open(release, framework="np") as file:
        return {
            name: float.fromhex(std)
            for name, std in json.loads((file.metadata() or {})["noise_std"]).items()
        }


def _bytes_sent(parties: Path, round: int) -> int:
    """By all clients in a round; each keeps its own count, and the server hears of none."""
    return sum(
        read_json(note)["bytes_sent"]
        for note in parties.glob(f"client-*/sent/*/round-{round:03d}.json")
    )
