"""Start of a figure: `research/scenarios/PAPER_FIGURE.toml`, a scenario with a [figure] table, and
what the command says beside it.

[figure] names split seeds, epsilons and other points, and the keys that a curve has at each
epsilon; the other tables are a scenario of `fedrec simulate`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from fedrec.errors import SettingsError
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import apply, load_content
from fedrec_research.papers.figure_settings import FigureSettings
from fedrec_research.trials import Row, merged

SCENARIOS = next(
    folder / "scenarios"
    for folder in Path(__file__).parents[1:3]  # a wheel has them in the package, a clone beside it
    if (folder / "scenarios").exists()
)


@dataclass(frozen=True)
class Start:
    """A scenario file by its name without .toml, data ("" as the file says, "planted", or a path),
    and `table.key=value` overrides."""

    name: str
    data: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """Scenario as the file and the overrides say. Raises SettingsError naming a wrong key."""
        return _loaded(self)[0]

    @property
    def figure(self) -> FigureSettings:
        """What the figure varies."""
        return _loaded(self)[1]

    def seeds(self, quick: bool) -> tuple[int, ...]:
        """Split seeds; `quick`: the first."""
        return self.figure.seeds[:1] if quick else self.figure.seeds

    def laid_over(self, *tables: Row, leave: frozenset[str] = frozenset()) -> Scenario:
        """The scenario with these tables over it and without those to leave out.

        Raises SettingsError where they contradict."""
        own = self.scenario.model_dump(exclude_unset=True, exclude={"compare", "run", *leave})
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


def path_of(name: str) -> Path:
    """The scenario file of a figure, by its name without .toml."""
    return SCENARIOS / f"{name}.toml"


@lru_cache(maxsize=64)
def _loaded(start: Start) -> tuple[Scenario, FigureSettings]:
    content = load_content(path_of(start.name))
    if start.data == "planted":
        news = content.get("recipe") == "privaterec"
        told = ('data.path=""', f"data.format={'planted-news' if news else 'auto'}")
        first: tuple[str, ...] = (*told, "data.preset=small")
    else:
        first = (f"data.path={start.data!r}",) if start.data else ()
    for override in (*first, *start.overrides):
        apply(content, override)
    try:
        figure = FigureSettings.model_validate(content.pop("figure", {}))
    except ValidationError as failure:
        said = failure.errors()[0]
        key = ".".join(map(str, ("figure", *said["loc"])))
        raise SettingsError(f"{start.name}: {key}: {said['msg']}", "Correct it.") from None
    return validated(content, source=f"{start.name}.toml"), figure


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
