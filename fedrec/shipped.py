"""Scenarios that come with the package, by name: `fedrec simulate planted` needs no file of one's
own.

In the repository they lie in simulations/; a built wheel carries them as fedrec/scenarios
(hatch_build.py).
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import fedrec
from fedrec.errors import SettingsError


def shipped() -> dict[str, Path]:
    """Every shipped scenario's file by its name without .toml, in alphabetical order."""
    package = Path(fedrec.__file__).parent
    folder = (
        package / "scenarios"
        if (package / "scenarios").is_dir()
        else package.parent / "simulations"
    )
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def path_of(name: str) -> Path:
    """The file of the shipped scenario of this name (.toml may follow).

    Raises SettingsError that names a near one, and all there are."""
    known = shipped()
    bare = name.removesuffix(".toml")
    if bare in known:
        return known[bare]
    near = get_close_matches(bare, known, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    if Path(name).is_dir():
        meant = f"Data? fedrec simulate --data {name}. "
    here = "a folder, and" if Path(name).is_dir() else "there is no such file, and"
    raise SettingsError(
        f"{name}: {here} no scenario of this name comes with fedrec",
        f"{meant}Give a scenario file, or one of: "
        f"{', '.join(known) or 'none, for this installation lacks them'}; "
        "`fedrec scenarios` lists all.",
    )


def require_data(path: Path) -> None:
    """Raises SettingsError where a file of data is asked for and a scenario was named."""
    if path.suffix == ".toml" or (not path.exists() and str(path) in shipped()):
        raise SettingsError(
            f"{path} is a scenario, not data", f"Run it by `fedrec simulate {path}`."
        )


def scenario_path(given: Path | None) -> Path | None:
    """What a SCENARIO argument stands for: the file where there is one, otherwise the shipped
    scenario of that name.

    A folder of that name is no file. A path with folders that leads nowhere is no name, but the
    error says which shipped scenario may be meant. Raises SettingsError.
    """
    if given is None or given.is_file():
        return given
    if len(given.parts) == 1:
        return path_of(given.name)
    bare = given.name.removesuffix(".toml")
    meant = (
        f"Without its folder, {bare} is a scenario that comes with fedrec."
        if bare in shipped()
        else "Give a scenario file or name."
    )
    raise SettingsError(
        f"{given}: {'a folder' if given.is_dir() else 'there is no such file'}", meant
    )
