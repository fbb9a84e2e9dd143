"""Where a run keeps everything: named by its scenario, so that the same run finds its folder
again."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedrec.errors import RunError
from fedrec.settings import Scenario
from fedrec.storage import finite, read_json, write_json
from fedrec_simulations.runtimes.choice import RuntimeChoice

RESULT = "result.json"
SETTINGS = "settings.json"


def open_folder(scenario: Scenario, name: str, cast: RuntimeChoice, *, resume: bool) -> Path:
    """The scenario's run folder for this cast, fresh, or as an interrupted run left it where
    `resume`.

    Raises RunError where there is nothing to resume, where the folder belongs to another scenario,
    or cannot be written.
    """
    folder = Path(scenario.run.directory) / f"{name}-{scenario.digest()[:10]}{cast.suffix}"
    settings = finite(scenario.model_dump(mode="json"))  # as it will be read
    if resume:
        if not (folder / SETTINGS).exists():
            raise RunError(
                f"there is no run to resume in {folder}",
                "Run the command without --resume; the scenario must be the same.",
            )
        # a folder may have been moved
        if {**read_json(folder / SETTINGS), "run": None} != {**settings, "run": None}:
            raise RunError(
                f"{folder} belongs to another scenario",
                "Resume with the same file and the same --set values.",
            )
        return folder
    try:
        if folder.exists():
            shutil.rmtree(folder)
        write_json(folder / SETTINGS, settings)
    except OSError as failure:
        raise RunError(
            f"{folder} cannot be written: {failure.strerror or failure}",
            "Choose another folder: --set run.directory=...",
        ) from None
    return folder
