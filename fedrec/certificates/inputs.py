"""Public inputs of a training, as a certificate keeps them: from them and the scenario alone
follows the server's side of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.factorization.facts import Earlier
from fedrec.factorization.released import arrays_of
from fedrec.federation.messages import Recipe, State
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.public_data import PublicData, read_public
from fedrec.recipes import prepare
from fedrec.settings import Scenario
from fedrec.storage import finite, read_arrays, write_arrays

_EARLIER = "earlier.safetensors"
_NEWS = "news.safetensors"

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ServerSide:
    """A recipe, and the arrays of `model.safetensors` of a state."""

    recipe: Recipe
    released: Callable[[State], Arrays]


class PublicInputs(Protocol):
    """What is public of a training besides its scenario."""

    @property
    def users(self) -> int:
        """Number of users that a release stands for, 0 where none is scaled to it."""

    def write(self, folder: Path) -> None:
        """Keep them, as `read_inputs` reads them."""

    def server_side(self, scenario: Scenario) -> ServerSide:
        """The recipe that these inputs and the scenario make."""


@dataclass(frozen=True)
class FactorizationInputs:
    """Public inputs of ratings and clicks. earlier: what a warm start begins with."""

    public: PublicData
    users: int
    earlier: Earlier | None = None

    def write(self, folder: Path) -> None:
        """See `PublicInputs`."""
        self.public.write(folder)
        if self.earlier is not None:
            earlier = self.earlier
            arrays = {**earlier.state, "num_users": np.array(earlier.num_users)}
            write_arrays(folder / _EARLIER, arrays)

    def server_side(self, scenario: Scenario) -> ServerSide:
        """See `PublicInputs`."""
        facts = self.public.facts(num_users=self.users, seed=scenario.seed)
        recipe = prepare(scenario, replace(facts, earlier=self.earlier)).recipe
        return ServerSide(recipe, lambda state: arrays_of(recipe.model(state)))


@dataclass(frozen=True)
class NewsInputs:
    """Public inputs of news whose reports are summed: topics, and vectors (m, p) of the items."""

    topics: TopicTable
    vectors: npt.NDArray[np.float32]
    users: int = 0

    def write(self, folder: Path) -> None:
        """See `PublicInputs`."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "vectors": self.vectors,
            "rows": self.topics.rows,
            "diameter": np.array(self.topics.diameter, np.float64),
            "told": np.array(self.topics.told),
        }
        if self.topics.open_items is not None:
            arrays["open_items"] = self.topics.open_items
        write_arrays(folder / _NEWS, arrays)

    def server_side(self, scenario: Scenario) -> ServerSide:
        """See `PublicInputs`."""
        from fedrec.news.variant import of  # ratings and clicks do without news

        summed = of(scenario).summed
        if summed is None:
            raise ValueError(f"{scenario.news.variant} sums no reports")
        recipe: Any = summed.made(scenario, self.topics, self.vectors)
        return ServerSide(recipe, lambda state: _float32(recipe.model(state).arrays()))


def _float32(arrays: Arrays) -> Arrays:
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def read_inputs(folder: Path, users: int) -> PublicInputs:
    """What `write` kept.

    Raises DataError, RunError, KeyError or ValueError where it is damaged."""
    if (folder / _NEWS).exists():
        arrays: Mapping[str, npt.NDArray[Any]] = read_arrays(folder / _NEWS)
        topics = TopicTable(
            arrays["rows"], float(arrays["diameter"]), int(arrays["told"]), arrays.get("open_items")
        )
        return NewsInputs(topics, arrays["vectors"])
    earlier = None
    if (folder / _EARLIER).exists():
        state = read_arrays(folder / _EARLIER)
        earlier = Earlier(state, int(state.pop("num_users")))
    return FactorizationInputs(read_public(folder), users, earlier)


_ELSEWHERE = {"run", "compare", "evaluation"}
"""Tables that decide nothing of a training."""


def settings_of(scenario: Scenario) -> dict[str, Any]:
    """The scenario's keys that differ from their defaults, without paths of the trainer's machine
    and without what only its own ledgers read."""
    told = {name: table for name, table in scenario.written().items() if name not in _ELSEWHERE}
    privacy = {
        key: value for key, value in told.get("privacy", {}).items() if key not in scenario.unsaid
    }
    data = {key: value for key, value in told.get("data", {}).items() if key != "path"}
    named: dict[str, Any] = finite(_without_folders({**told, "privacy": privacy, "data": data}))
    return named


def _without_folders(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _without_folders(value) for key, value in content.items()}
    return Path(content).name if isinstance(content, str) and "/" in content else content
