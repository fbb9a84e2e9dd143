"""Certificate of a model: written beside it when a training has ended.

    certificate/certificate.json     scenario, plan, digests of code, questions and
                                     releases, what aggregators sign, digests of all files
    certificate/round-000.safetensors    every noised release, as it left the aggregator
    certificate/round-000-1.output       of three aggregators, each one's share of it
    certificate/public.json ...      public inputs (`certificates.inputs`)

Everything in it is public: releases are what the guarantee covers, the rest is public input. Three
outputs say to the public no more than their sum, and to an aggregator what the server with it has:
they are masked with keys of two aggregators each (`sharing.servers`). Its size is that of the
releases, about 8 bytes for each number of the model and round, four times that of three
aggregators.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedrec import __version__
from fedrec.certificates.inputs import PublicInputs, settings_of
from fedrec.federation.messages import Question, Recipe
from fedrec.federation.wire import question_digest, question_header, unpack_release
from fedrec.privacy.calibration import Plan
from fedrec.settings import Scenario
from fedrec.storage import finite, write_bytes, write_json

FORMAT = "fedrec-certificate/1"
FOLDER = "certificate"
FILE = f"{FOLDER}/certificate.json"


Statements = Callable[[str, int], Sequence[Mapping[str, Any]]]
"""From a run's id and number of rounds to what each aggregator signed of it
(`certificates.statements`), and `outputs`, of one of three its output of every round."""


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
    statements: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the certificate of the model in `folder`, whose files are all there, in the place of an
    earlier one. run: the id that questions name. statements: what aggregators signed, in the order
    of their places."""
    remove(folder)
    inputs.write(folder / FOLDER)
    rounds = list[dict[str, Any]]()
    for number, round in enumerate(released):
        write_bytes(folder / round_file(number), round.content)
        rounds.append({"question": round.question, "reported": round.reported})
    for place, one in enumerate(statements):
        for number, output in enumerate(one.get("outputs", ())):
            write_bytes(folder / output_file(number, place), output)
    content = {
        "format": FORMAT,
        "run": run,
        "fedrec": __version__,
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
    """Take the certificate of an earlier model away, with its releases: another guarantee is of
    them."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / FOLDER)


def round_file(number: int) -> str:
    """Where a round's release lies in the folder of the model."""
    return f"{FOLDER}/round-{number:03d}.safetensors"


def output_file(number: int, place: int) -> str:
    """Where the output of one of three aggregators lies, place 0, 1 or 2."""
    return f"{FOLDER}/round-{number:03d}-{place + 1}.output"


def digest_of(question: Question, *, run: str, plan: Plan) -> str:
    """SHA-256 that names a question, as every report of it does."""
    return question_digest(question_header(question, run=run, plan=plan.digest()))


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
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
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
