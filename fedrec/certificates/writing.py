"""Certificate of a model: written beside it when a training has ended.

    certificate/certificate.json     scenario, plan, digests of code, questions and
                                     releases, what aggregators sign, digests of all files
    certificate/round-000.safetensors    every noised release, as it left the aggregator
    certificate/round-000-1.output       of three aggregators, each one's share of it
    certificate/public.json ...      public inputs

Everything in it is public: releases are what the guarantee covers, the rest is public input. Three
outputs say to the public no more than their sum, and to an aggregator what the server with it has:
they are masked with keys of two aggregators each (`sharing.servers`). Its size is that of the
releases, about 8 bytes for each number of the model and round, four times that of three
aggregators.

Certificate of a recommender of news whose reports are summed.

Public inputs of a training, as a certificate keeps them: from them and the scenario alone
follows the server's side of a recipe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.factorization.facts import Earlier
from fedrec.factorization.held_out import sent, sent_model
from fedrec.factorization.rankers import Model
from fedrec.factorization.released import arrays_of
from fedrec.federation.messages import Recipe, State
from fedrec.federation.wire import digest_of, unpack_release
from fedrec.output_folders import finish, require_ours
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.public_data import PublicData, read_public
from fedrec.recipes import TrainableRecipe, prepare
from fedrec.settings import Scenario
from fedrec.storage import (
    finite,
    packed_arrays,
    read_arrays,
    release_file,
    sha256_of,
    write_bytes,
    write_files,
    write_json,
)

_EARLIER = "earlier.safetensors"
_SERVING = "serving.safetensors"
_NEWS = "news.safetensors"

Arrays = Mapping[str, npt.NDArray[Any]]

if TYPE_CHECKING:
    from fedrec.news.trained import Catalogue

_ELSEWHERE = {"run", "compare", "evaluation"}
"""Tables that decide nothing of a training."""
FORMAT = "fedrec-certificate/1"
FOLDER = "certificate"
FILE = f"{FOLDER}/certificate.json"
Statements = Callable[[str, int], Sequence[Mapping[str, Any]]]
"""From a run's id and number of rounds to what each aggregator signed of it
(`certificates.statements`), and `outputs`, of one of three its output of every round."""


@dataclass(frozen=True)
class ServerSide:
    """A recipe, and the arrays of `model.safetensors` of a state."""

    recipe: TrainableRecipe
    released: Callable[[State], Arrays]


class PublicInputs(Protocol):
    """What is public of a training besides its scenario."""

    @property
    def users(self) -> int:
        """Number of users that a release stands for, 0 where none is scaled to it."""

    def files(self) -> dict[str, bytes]:
        """The files that keep them, by name, as `read_inputs` reads them."""

    def server_side(self, scenario: Scenario) -> ServerSide:
        """The recipe that these inputs and the scenario make."""


@dataclass(frozen=True)
class FactorizationInputs:
    """Public inputs of ratings and clicks. earlier: what a warm start begins with. serving: what
    people compare the model with."""

    public: PublicData
    users: int
    earlier: Earlier | None = None
    serving: Model | None = None

    def files(self) -> dict[str, bytes]:
        """See `PublicInputs`."""
        found = self.public.files()
        if self.serving is not None:
            found[_SERVING] = packed_arrays(sent(self.serving, name="serving"))
        if self.earlier is not None:
            arrays = {**self.earlier.state, "num_users": np.array(self.earlier.num_users)}
            found[_EARLIER] = packed_arrays(arrays)
        return found

    def server_side(self, scenario: Scenario) -> ServerSide:
        """See `PublicInputs`."""
        facts = self.public.facts(num_users=self.users, seed=scenario.seed)
        facts = replace(facts, earlier=self.earlier, serving=self.serving)
        recipe = prepare(scenario, facts).recipe
        return ServerSide(recipe, lambda state: arrays_of(recipe.model(state)))


@dataclass(frozen=True)
class NewsInputs:
    """Public inputs of news whose reports are summed: topics, and vectors (m, p) of the items."""

    topics: TopicTable
    vectors: npt.NDArray[np.float32]
    users: int = 0

    def files(self) -> dict[str, bytes]:
        """See `PublicInputs`."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "vectors": self.vectors,
            "rows": self.topics.rows,
            "diameter": np.array(self.topics.diameter, np.float64),
            "told": np.array(self.topics.told),
        }
        if self.topics.open_items is not None:
            arrays["open_items"] = self.topics.open_items
        return {_NEWS: packed_arrays(arrays)}

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
    earlier = serving = None
    if (folder / _SERVING).exists():
        serving = sent_model(read_arrays(folder / _SERVING), name="serving")
    if (folder / _EARLIER).exists():
        state = read_arrays(folder / _EARLIER)
        earlier = Earlier(state, int(state.pop("num_users")))
    return FactorizationInputs(read_public(folder), users, earlier, serving)


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


def nobody_states(run: str, rounds: int) -> Sequence[Mapping[str, Any]]:
    """No statement, of a training without an aggregator that has a key."""
    return ()


@dataclass(frozen=True)
class ReleasedRound:
    """One round: `wire.pack_release` as it left the aggregator, whose sum it is, and the digest of
    the question that it answers (`wire.question_digest`)."""

    content: bytes
    reported: int
    question: str


def certify(
    folder: Path,
    scenario: Scenario,
    inputs: PublicInputs,
    released: Iterable[ReleasedRound],
    *,
    run: str,
    plan: Plan,
    noise: str,
    statements: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the certificate of the model in `folder`, whose other files are all there; none of an
    experiment, whose seed it would hold. run: the id that questions name. noise: where it came
    from. statements: what aggregators signed, in the order of their places."""
    remove(folder)
    if "seeded" in {noise, scenario.privacy.noise}:
        finish(folder, "model")
        return
    write_files(folder / FOLDER, inputs.files())
    rounds = list[dict[str, Any]]()
    for number, round in enumerate(released):
        write_bytes(folder / round_file(number), round.content)
        rounds.append({"question": round.question, "reported": round.reported})
    for place, one in enumerate(statements):
        for number, output in enumerate(one.get("outputs", ())):
            write_bytes(folder / output_file(number, place), output)
    finish(folder, "model", [FILE])
    content = {
        "format": FORMAT,
        "run": run,
        "code": code_digest(),
        "settings": settings_of(scenario),
        "users": inputs.users,
        "plan": plan.content(),
        "rounds": rounds,
        "statements": [
            {key: value for key, value in one.items() if key != "outputs"} for one in statements
        ],
        "files": digests(folder),
    }
    write_json(folder / FILE, {**content, "sha256": own_digest(content)})


def remove(folder: Path) -> None:
    """Take the certificate of a model away, with its releases: another guarantee is of them."""
    for path in require_ours(folder, "model"):
        if path.parent == folder / FOLDER:
            path.unlink()
    with suppress(OSError):  # there is none, or somebody else's file is in it
        (folder / FOLDER).rmdir()


def round_file(number: int) -> str:
    """Where a round's release lies in the folder of the model."""
    return f"{FOLDER}/round-{number:03d}.safetensors"


def output_file(number: int, place: int) -> str:
    """Where the output of one of three aggregators lies, place 0, 1 or 2."""
    return f"{FOLDER}/round-{number:03d}-{place + 1}.output"


def questions_of(recipe: Recipe, contents: Iterable[bytes], *, run: str) -> Iterator[ReleasedRound]:
    """The rounds of a training that kept no digests of its questions, which are asked again."""
    state = recipe.begin()
    for content in contents:
        question = recipe.ask(state)
        if question is None:
            return
        yield ReleasedRound(content, 0, digest_of(question, run=run, plan=recipe.plan))
        state = recipe.tell(state, question, unpack_release(content, question.releases))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of the folder but the certificate itself, by path."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / FILE
    }


def own_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of everything else that the certificate says."""
    told = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(finite(told), sort_keys=True).encode()).hexdigest()


@cache
def code_digest() -> str:
    """SHA-256 of every module of this package, by name and content."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def certify_news(
    folder: Path,
    scenario: Scenario,
    catalogue: Catalogue,
    training: Path,
    *,
    run: str,
    noise: str,
    statements: Statements = nobody_states,
) -> None:
    """Write the certificate of the model in `folder`, from the releases that the folder of its
    training kept, or that of its server in it.

    Nothing of a variant whose devices add the noise: who gets its model does not see its reports.
    """
    from fedrec.news.variant import of  # ratings and clicks do without news

    summed = of(scenario).summed
    if summed is None:
        return
    recipe = summed.recipe(scenario, catalogue)
    kept = next(training.rglob("releases/round-000.safetensors")).parents[1]
    rounds = range(len(recipe.plan.releases))
    contents = (release_file(kept, round).read_bytes() for round in rounds)
    inputs = NewsInputs(*summed.public(scenario, catalogue))
    released = questions_of(recipe, contents, run=run)
    certify(
        folder,
        scenario,
        inputs,
        released,
        run=run,
        plan=recipe.plan,
        noise=noise,
        statements=statements(run, len(rounds)),
    )
