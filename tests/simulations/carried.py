"""A shipped scenario as every runtime carries it: on small planted data, and what comes of it.

Scenarios run as shipped, comparisons included, on a planted data set of the kind that they are
about: a data file cannot be shipped. Seeded noise, since system noise is never the same twice. What
was changed is said (`reduced`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import FedRecError
from fedrec.registry import require
from fedrec.run.job import LOOPBACK, RuntimeChoice
from fedrec.settings import Scenario, load
from fedrec.storage import read_arrays

CLIENTS = 2
CASTS: Mapping[str, RuntimeChoice] = {
    "loopback": LOOPBACK,
    "parties": RuntimeChoice("parties", CLIENTS),
    "processes": RuntimeChoice("processes", CLIENTS),
}
RATINGS = ("data.path=", "data.format=auto", "data.preset=small")
NEWS = ("data.path=", "data.format=planted-news", "data.preset=small")
COMPARED = ("metrics", "curve", "published", "baselines", "verdicts", "guarantee", "second_opinion")
"""Parts of a result that no runtime may change."""


def reduced(path: Path, *more: str) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario on small planted data, and the words of --set that make it so.

    Raises SettingsError on a wrong file."""
    chosen = load(path)
    news = chosen.learns_news
    changes = [*(NEWS if news else RATINGS), "privacy.noise=seeded"]
    if chosen.data.keep_users or chosen.data.keep_items:  # of more people than there are here
        changes += ["data.keep_users=0", "data.keep_items=0"]
    if chosen.split.own_test:
        changes += ["split.kind=random", "split.validation_share=0"]
    if require(chosen.recipe).kinds == ("clicks",):  # its data are clicks by their format
        changes += ["data.kind=clicks"]
    if chosen.collective.categories:  # of films; planted items have others
        changes += ['collective.categories=["genre"]']
    words = (*changes, *more)
    scenario = load(path, words)
    # planted clicks have no values for a threshold
    said = scenario.data.model_dump(exclude_unset=True, exclude={"click_threshold"})
    data = type(scenario.data).model_validate(said)
    return scenario.model_copy(update={"data": data}), words


@dataclass(frozen=True)
class Came:
    """What came of one scenario on one runtime: the arrays of its models, and what is said of them.
    why it does not run there, or ""."""

    models: Mapping[str, npt.NDArray[Any]]
    said: Any
    seconds: float
    why: str = ""

    def same_as(self, other: Came, *, rounded: bool = False) -> bool:
        """Whether both hold the same, byte for byte; `rounded`: up to rounding, of models alone."""
        if self.models.keys() != other.models.keys() or not self.models:
            return False
        pairs = [(self.models[name], other.models[name]) for name in self.models]
        if rounded:
            return all(np.allclose(one, two, rtol=1e-3, atol=1e-4) for one, two in pairs)
        return all(one.tobytes() == two.tobytes() for one, two in pairs) and self.said == other.said


def carried(scenario: Scenario, choice: RuntimeChoice, folder: Path) -> Came:
    """Run a scenario on a runtime, in a folder of its own."""
    from fedrec.run import simulate

    here = scenario.model_copy(
        update={"run": scenario.run.model_copy(update={"directory": str(folder)})}
    )
    started = time.perf_counter()
    try:
        result = simulate.run(here, name="r", choice=choice, quiet=True)
    except FedRecError as failure:
        return Came({}, None, time.perf_counter() - started, why=failure.cause)
    left = Path(result["run_dir"])
    files = [
        path for path in sorted(left.glob("**/model/*.safetensors")) if "server" not in path.parts
    ]
    models = {
        f"{path.relative_to(left)}/{name}": array
        for path in files
        for name, array in read_arrays(path).items()
    }
    said = {name: result[name] for name in COMPARED if name in result}
    return Came(models, json.loads(json.dumps(said)), time.perf_counter() - started)


def families(paths: Sequence[Path]) -> list[Path]:
    """The first file of every recipe, kind of data, variant of news and set of comparisons."""
    first = dict[tuple[Any, ...], Path]()
    for path in paths:
        chosen, _ = reduced(path)
        sides = tuple(chosen.collective.sides) if chosen.collective.chosen() else ()
        compared = (len(chosen.compare.epsilons) > 0, chosen.compare.published)
        variant = chosen.news.variant if chosen.learns_news else ""
        first.setdefault(
            (
                chosen.recipe,
                chosen.data.kind,
                chosen.split.kind,
                variant,
                sides,
                chosen.model.encoder,
                compared,
            ),
            path,
        )
    return list(first.values())
