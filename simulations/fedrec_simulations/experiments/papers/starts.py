"""Where a figure starts: `simulations/PAPER_FIGURE.toml`, a scenario with a [figure] table, and
what the command says beside it.

The file's own tables make one point with `fedrec simulate`. [figure] names split seeds, epsilons
and other points, and the keys that a curve has at each epsilon. In the repository the files lie in
simulations/; an installed package carries them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedrec.errors import SettingsError
from fedrec.settings import Scenario, load, validated
from fedrec.settings_tables.figure import FigureSettings
from fedrec.shipped import path_of
from fedrec_simulations.experiments.rows import Row, merged


@dataclass(frozen=True)
class Start:
    """A scenario file by its name without .toml, data ("" as the file says, "planted", or a path),
    and `table.key=value` overrides."""

    name: str
    data: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """As the file and the overrides say. Raises SettingsError naming a wrong key."""
        return _loaded(self)

    @property
    def figure(self) -> FigureSettings:
        """What the figure varies."""
        return self.scenario.figure

    def seeds(self, quick: bool) -> tuple[int, ...]:
        """Split seeds; `quick`: the first."""
        return self.figure.seeds[:1] if quick else self.figure.seeds

    def laid_over(self, *tables: Row, leave: frozenset[str] = frozenset()) -> Scenario:
        """The scenario with these tables over it and without those to leave out.

        Raises SettingsError where they contradict."""
        own = self.scenario.model_dump(
            exclude_unset=True, exclude={"figure", "compare", "run", *leave}
        )
        return validated(merged(own, *tables), source=f"{self.name}.toml")

    @property
    def key(self) -> str:
        """Eight letters of all that it says but which seeds, epsilons and points are asked for:
        rows of another key are other rows."""
        lines = [line.model_dump(mode="json") for line in self.figure.settings]
        return hashlib.sha256(json.dumps([self.scenario.digest(), lines]).encode()).hexdigest()[:8]

    def settings(self, curve: str, epsilon: float) -> Row:
        """Tables of the curve's line at the nearest epsilon; empty where it has none."""
        lines = [line for line in self.figure.settings if line.curve in {curve, ""}]
        if not lines:
            return {}
        best = min(lines, key=lambda line: (_distance(line.epsilon, epsilon), not line.curve))
        return {
            table: keys
            for table in ("model", "collective")
            if (keys := getattr(best, table).model_dump(exclude_unset=True))
        }


def _distance(a: float, b: float) -> float:
    if math.isfinite(a) and math.isfinite(b):
        return abs(math.log(a / b))
    return 0.0 if a == b else 1e9 - min(a, b)  # of finite ones the largest is nearest to infinity


@lru_cache(maxsize=64)
def _loaded(start: Start) -> Scenario:
    path = path_of(start.name)
    if start.data != "planted":
        return load(
            path, (*([f"data.path={start.data!r}"] if start.data else []), *start.overrides)
        )
    made_up = "planted-news" if load(path).learns_news else "auto"
    return load(
        path, ('data.path=""', f"data.format={made_up}", "data.preset=small", *start.overrides)
    )


def started(name: str, data: str, overrides: tuple[str, ...] = ()) -> Start:
    """The start of a figure that needs data.

    Raises SettingsError where there is none: neither given nor where the file expects it."""
    start = Start(name, data, overrides)
    path = start.scenario.data.path
    if not path and data != "planted":
        raise SettingsError(f"{name} needs a data folder", "Give one, e.g. --data PATH/ml-1m.")
    if path and not Path(path).exists():
        raise SettingsError(
            f"{name} needs a data folder: there is no {path}", "Give one, e.g. --data PATH/ml-1m."
        )
    return start


def heading(name: str) -> str:
    """The first line of the scenario file's comment: which figure of which paper it is, and what it
    shows."""
    with path_of(name).open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()


def how_chosen(name: str) -> str:
    """What the scenario file's comment says of how settings were chosen; empty where it says
    nothing."""
    with path_of(name).open(encoding="utf-8") as file:
        comment = [line.strip() for line in file if line.startswith("# ")][1:]
    said = " ".join(line[2:] for line in comment if not line.startswith("#   "))
    return " ".join(
        sentence
        for sentence in re.split(r"(?<=[.:])\s+(?=[A-Z])", said)
        if re.search(r"[Ss]ettings|chosen|search|tunes|rewrite|Found by", sentence)
    )
