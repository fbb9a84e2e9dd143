"""Numbers of other parties and of files that set a size: whichever is made huge, whoever reads it
refuses, or goes on without the memory and the time that the number asks for.

Every number is taken from what is really sent or written: a recipe's words, a question's header, a
plan and its terms, a light device's, packed reports, shares and outputs, and each number in each
file of certified models.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from annotated_types import Le
from pydantic import BaseModel

import fedrec
from fedrec.certificates.writing import FILE
from fedrec.errors import FedRecError
from fedrec.federation.messages import Release
from fedrec.federation.protocol import Answer, Terms
from fedrec.federation.report_batches import Batch, pack_reports, unpack_reports
from fedrec.federation.round_messages import RoundMessage, read_npy
from fedrec.federation.wire import (
    pack_answer,
    pack_release,
    pack_terms,
    question_header,
    read_answer,
    read_header,
    read_terms,
    unpack_release,
)
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams
from fedrec.recipes import client_steps
from fedrec.registry import require
from fedrec.serving import bundle
from fedrec.serving.model_bundles import bundle_of, export
from fedrec.settings import Scenario
from fedrec.settings import load as scenario
from fedrec.sharing.layout import layout
from fedrec.sharing.record import pack_shares, packed_output, read_output, read_shares
from fedrec.sharing.site_messages import pack_site, read_site
from fedrec.transport.rounds_client import packed, unpacked
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.answering import AnswerBounds, require_answerable
from fedrec_client.device import questions as device
from fedrec_client.run_record import require_sound
from tests.cases import slow_but
from tests.certificates.models import NEWS, SMALL, simulated
from tests.certificates.test_fields import Edit, edited, put, remember
from tests.client.conftest import Run
from tests.client.test_with_the_aggregator import opened
from tests.device.test_odd_values import PLAN, QUESTION, TERMS
from tests.factorization.test_recipes import FEATURES, RECIPES, kind_of, some_events
from tests.limits import limited
from tests.sharing import reports as invented
from tests.torch_modules.registered import TORCH

HUGE = (10**5, 10**9, 2**62)
MOST_BYTES = 2 << 30
"""Of memory beyond what is there; a question may have arrays of half of that."""


@contextmanager
def bounded() -> Iterator[None]:
    """Time and memory of what is within, which ends in nothing but a typed error."""
    with limited(MOST_BYTES):
        try:
            yield
        except (FedRecError, ValueError) as refusal:
            cause: BaseException | None = refusal
            while cause is not None:  # memory that was asked for, and not there, is no refusal
                said = f"{cause} {cause.args}"
                assert not isinstance(cause, MemoryError), said
                assert "allocat" not in said.lower(), said
                assert "memory" not in said.lower(), said
                cause = cause.__context__


def with_huge(document: Any) -> Iterator[tuple[str, Any]]:
    """Where, and the document with a huge number there; of those that are alike, two."""
    for number in HUGE:
        for field, how, changed in edited(document, {}):
            if how == "slightly larger":
                yield f"{field} {number}", _put(document, changed, number)


def _put(document: Any, changed: Any, number: int) -> Any:
    """`number` where `changed` differs."""
    if isinstance(document, dict):
        return {key: _put(value, changed[key], number) for key, value in document.items()}
    if isinstance(document, list) and isinstance(changed, list):
        return [_put(a, b, number) for a, b in zip(document, changed, strict=True)]
    if document is changed or document == changed:
        return document
    return float(number) if isinstance(document, float) else number


def run_of(name: str) -> Run:
    """A small run of a recipe."""
    keys = [*RECIPES[name], f"data.kind={kind_of(name)}", "privacy.epsilon=5"]
    return Run(scenario(None, keys), some_events(name, 3), FEATURES)


ONE_EACH = {RECIPES[name][0]: name for name in reversed(RECIPES) if "per example" not in name}
"""A recipe's simplest choices."""


@pytest.mark.parametrize("name", ONE_EACH.values())
def test_huge_numbers_of_a_recipes_words_are_refused_or_take_nothing(name: str) -> None:
    """A lying server's terms: a client keeps them, and looks at the questions of the run as it was
    before."""
    run = run_of(name)
    asked = list({q.step: q for q in run.questions()}.values())
    documents = [content for _, content in with_huge(json.loads(run.terms.recipe))]
    assert len(documents) > 40
    for content in documents:
        terms = replace(run.terms, recipe=json.dumps(content))
        with bounded():
            require_sound(terms, AnswerBounds())
            steps = client_steps(terms.recipe, terms.kind)
            for question in asked:
                require_answerable(question, steps[question.step], terms, AnswerBounds())


@pytest.mark.parametrize("name", ONE_EACH.values())
def test_huge_numbers_of_a_question_are_refused_or_take_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a client, whose arrays are of the form that is announced, and by an aggregator."""
    run = run_of(name)
    steps = client_steps(run.terms.recipe, run.terms.kind)
    for question in {q.step: q for q in run.questions()}.values():
        header = question_header(question, run=run.name, plan=run.prepared.plan.digest())
        for place, (_, content) in enumerate(with_huge(json.loads(header))):
            with bounded():
                told = read_header(json.dumps(content).encode())
                asked = replace(question, round=told.round, releases=told.specs())
                with suppress(FedRecError):
                    require_answerable(asked, steps[asked.step], run.terms, AnswerBounds())
                aggregator = Aggregator(
                    ReleaseLedger(tmp_path / f"{question.round}-{place}", limit=None),
                    Limits(min_cohort=2),
                    noise=Streams(1),
                )
                with closing(aggregator.ledger):
                    aggregator.open_run(run.name, run.prepared.plan)
                    opened(aggregator, run, asked)
        for array, value in question.public.items():
            if value.ndim == 0 or value.dtype.kind in "iu":
                for number in (10**5, 2**31 - 1, 2**62):
                    large = np.full_like(value, number if value.dtype.itemsize > 4 else 2**31 - 1)
                    asked = replace(question, public={**question.public, array: large})
                    with bounded():
                        require_answerable(asked, steps[asked.step], run.terms, AnswerBounds())


WORDS: dict[str, tuple[Any, Callable[[bytes], object]]] = {
    "light device: plan": (PLAN, lambda content: device.read_plan(content, digest_of(content))),
    "light device: terms": (TERMS, device.read_terms),
    "light device: question": (QUESTION, device.read_header),
    "plan": (PLAN, lambda content: Plan.of(json.loads(content))),
    "terms": (
        json.loads(pack_terms(Terms("run", "{}", "ratings", (1.0, 5.0), ("a", "b")))),
        read_terms,
    ),
    "answer": (
        json.loads(pack_answer(Answer("site", 3, 2, {"replayed": 1}, "", ""))),
        read_answer,
    ),
}
"""Messages of JSON, and who reads each."""


def digest_of(content: bytes) -> str:
    """As a plan's name."""
    told = json.loads(content)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("message", WORDS)
def test_huge_numbers_of_words_are_refused_or_take_nothing(message: str) -> None:
    document, read = WORDS[message]
    for _, content in with_huge(document):
        with bounded():
            read(json.dumps(content).encode())


SPECS = invented.QUESTION.releases
BLOCKS = invented.QUESTION.blocks
USERS = invented.some_reports(3, 1)
PACKED: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "reports": (
        pack_reports(Batch(*np.ones((2, 3, 16), np.uint8), USERS), "0" * 64),
        lambda content: unpack_reports(
            content, BLOCKS, "0" * 64, max_users=1_000, max_events_per_user=1_000
        ),
    ),
    "release": (
        pack_release(
            Release(
                {b.name: np.zeros((b.rows, b.columns)) for b in BLOCKS},
                {b.name: 1.0 for b in BLOCKS},
            )
        ),
        lambda content: unpack_release(content, SPECS),
    ),
    "site's sum": (pack_site([b"a" * 16, b"b" * 16], b"rest" * 20), read_site),
    "output of one of three": (
        packed_output(b"t" * 32, 3, [np.zeros((b.rows, b.columns), np.uint64) for b in BLOCKS]),
        lambda content: read_output(content, invented.QUESTION),
    ),
    "shares": (
        pack_shares([], 1, b"t" * 32),
        lambda content: read_shares(content, 1, layout(invented.QUESTION).length),
    ),
    "array": (b"", read_npy),
    "message": (packed(RoundMessage({"a": b"b", "c": 3}, {"d": b"e"}, "ask")), unpacked),
}
"""Messages of bytes, and who reads each."""


@pytest.mark.parametrize("message", PACKED)
def test_huge_words_of_bytes_are_refused_or_take_nothing(message: str) -> None:
    """Each of the first 100 places has four or eight bytes that are the largest number."""
    content, read = PACKED[message]
    if message == "array":
        file = io.BytesIO()
        np.save(file, np.zeros((2, 3)))
        content = file.getvalue()
        for shape in ("(2147483647, 3), ", f"({10**17}, {10**17}), "):
            with bounded():
                read(content.replace(b"(2, 3), }", shape.encode() + b"}"))
    with suppress(FedRecError):
        read(content)
    for place in range(min(100, len(content))):
        for size in (4, 8):
            for largest in (2 ** (8 * size) - 1, 2 ** (8 * size - 1) - 1):
                word = largest.to_bytes(size, "little")
                with bounded():
                    read(content[:place] + word + content[place + size :])


MODELS = {
    "ratings": [*SMALL, "recipe=dp-bias"],
    "torch": [*SMALL, *TORCH, "data.kind=clicks"],
    "clicks": [*SMALL, "data.kind=clicks", "recipe=default"],
    "item-item": [*SMALL, "data.kind=clicks", "recipe=dp-item-item"],
    "news": [*NEWS, "news.variant=central", "news.rounds=2"],
}


@pytest.mark.parametrize("case", slow_but({"torch"}, MODELS))
def test_huge_numbers_of_a_models_files_are_refused_or_take_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By verification, with every digest stated anew, by loading and by serving. 20 s: each of 90
    forgeries is read three times."""
    model = simulated(tmp_path, MODELS[case])
    with suppress(FedRecError):  # news has no bundle of this kind
        export(model, model / bundle.FILE)
    remember(monkeypatch)
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    tried = 0
    for path in [path for path in before if path.suffix == ".json"]:
        file = path.relative_to(model).as_posix()
        for field, content in with_huge(json.loads(before[path])):
            put(model, Edit(file, field, "huge", json.dumps(content).encode()))
            for read in (fedrec.verify, fedrec.load, bundle_of):
                with bounded():
                    read(model)
            tried += 1
            for changed, bytes_before in before.items():
                if not changed.exists() or changed.read_bytes() != bytes_before:
                    changed.write_bytes(bytes_before)
    assert tried > 20


def numbers_of_scenarios(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Where a scenario has a number, and huge ones: the largest that it takes, if it has a bound."""
    for name, field in model.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        for inner in kinds:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from numbers_of_scenarios(inner, f"{path}{name}.")
        most = [one.le for one in field.metadata if isinstance(one, Le)]
        if kinds & {int, float}:
            yield (
                f"{path}{name}",
                most or [kind(number) for kind in kinds & {int, float} for number in HUGE],
            )


def test_a_scenarios_numbers_are_found() -> None:
    found = dict(numbers_of_scenarios(Scenario))
    assert len(found) > 50
    assert {"model.dimension", "privacy.epsilon", "news.rounds", "privacy.horizon"} <= set(found)


@pytest.mark.parametrize("case", slow_but({"ratings"}, MODELS))
def test_huge_numbers_in_settings_of_a_certificate_are_refused_or_take_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every key of a scenario, which a certificate leaves out where it is the usual one. 20 s:
    each of 150 forgeries is verified."""
    model = simulated(tmp_path, MODELS[case])
    remember(monkeypatch)
    before = (model / FILE).read_bytes()
    own = require(json.loads(before)["settings"].get("recipe", "default")).settings
    numbers = [*numbers_of_scenarios(Scenario), *numbers_of_scenarios(own, "own.")]
    for path, values in numbers:
        for value in values:
            content = json.loads(before)
            *tables, key = path.split(".")
            place = content["settings"]
            for table in tables:
                place = place.setdefault(table, {})
            place[key] = value
            put(model, Edit(FILE, path, "huge", json.dumps(content).encode()))
            with bounded():
                fedrec.verify(model)
