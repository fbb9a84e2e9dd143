"""Start of a new training from the last one's release, kept in its own folder so that going on
after a crash begins with the same.

runs/<run>/earlier.safetensors    rows of `factorization.facts.Earlier` in the order of this
                                  training's catalogue, and num_users
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrec.errors import RunError
from fedrec.factorization.facts import Earlier
from fedrec.storage import Checkpoints, read_arrays, read_json, write_arrays
from fedrec_server.runs import Runs

_FILE = "earlier.safetensors"


def earlier_of(runs: Runs, folder: Path, items: tuple[str, ...]) -> Earlier | None:
    """The start of the training in `folder`: what it began with, or, before it begins, what the
    last finished one released.

    None where there is none, where it is no start for this recipe, or where the catalogue has items
    that it did not know.
    """
    if (folder / _FILE).exists():
        arrays = read_arrays(folder / _FILE)
        return Earlier(
            {name: array for name, array in arrays.items() if name != "num_users"},
            int(arrays["num_users"]),
        )
    last = runs.finished
    if (folder / "run.json").exists() or last is None:
        return None
    try:
        state = Checkpoints(runs.folder(last.run) / "checkpoints").latest()
        known = read_json(runs.folder(last.run) / "model" / "manifest.json").get("items")
        users = int(read_json(runs.folder(last.run) / "run.json")["num_users"])
    except (RunError, KeyError, AttributeError):
        return None
    if state is None or not isinstance(known, list) or users < 1:
        return None
    earlier = Earlier.of(state, users, items=known, now=items)
    if earlier is not None:
        write_arrays(folder / _FILE, {**earlier.state, "num_users": np.array(users)})
    return earlier
