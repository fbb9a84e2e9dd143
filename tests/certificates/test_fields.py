"""Walk of every field of every file of certified models: each is edited, with digests restated, and
verification says what the table of docs/audit.md says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedrec.certificates import verifying
from fedrec.certificates.model_files import Told, model_files
from fedrec.certificates.verifying import verify
from fedrec.certificates.writing import (
    FILE,
    FOLDER,
    own_digest,
    read_inputs,
    round_file,
    settings_of,
)
from fedrec.errors import RunError
from fedrec.factorization.facts import Earlier
from fedrec.federation.messages import Release
from fedrec.federation.releases import release as released
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import digest_of, pack_release, unpack_release
from fedrec.operations.certificates import issue, make_ca
from fedrec.output_folders import finish
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import SystemStreams
from fedrec.serving.bundle import FILE as BUNDLE
from fedrec.serving.model_bundles import COUNTS, bundle_of, export, facts_of
from fedrec.settings import validated
from fedrec.storage import read_json, sha256_of, write_json
from tests.certificates.models import SMALL, parsed, sealed, signed, simulated, stated
from tests.torch_modules.registered import TORCH

ITEMS = [*SMALL, "data.kind=clicks", "recipe=dp-item-item", "privacy.epsilon=300"]
DEFAULT = [*SMALL, "data.kind=clicks", "recipe=default", "privacy.epsilon=300"]
BIAS = [*SMALL, "recipe=dp-bias"]
CASES: Mapping[str, list[str]] = {
    "item recipe, served": ITEMS,
    "ratings": BIAS,
    "deployed, signed": BIAS,
    "deployed, of several trainings": ITEMS,
    "thin: default recipe on clicks": DEFAULT,
    "thin: PyTorch module": [*SMALL, *TORCH, "data.kind=clicks", "privacy.epsilon=300"],
    "thin: warm start": [*SMALL, "recipe=default"],
}
"""thin: each field is edited once, since other cases have the same fields; of a warm start those
that no other case has."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"


@cache
def table() -> list[tuple[str, list[str], dict[str, str]]]:
    """Of each row: patterns of files; then verdict by field, "" for everything else."""
    rows = list[tuple[str, list[str], dict[str, str]]]()
    text = DOCUMENT.read_text().partition("### What each field rests on")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| `.*$", text, re.MULTILINE):
        files, *columns = (cell.strip() for cell in line.strip("|").split("|"))
        verdicts = dict[str, str]()
        for verdict, cell in zip(("proved", "signed", "trusted"), columns, strict=True):
            verdicts |= dict.fromkeys(re.findall(r"`([^`]+)`", cell), verdict)
            if "everything" in cell:
                verdicts[""] = verdict
        rows.append((line, re.findall(r"`([^`]+)`", files), verdicts))
    return rows


def verdict_of(file: str, field: str) -> tuple[str, str]:
    """Verdict, and the field of the table that gives it: the longest that the field begins with."""
    found = [
        (name, verdict)
        for _, files, verdicts in table()
        if any(fnmatch(file, pattern) for pattern in files)
        for name, verdict in verdicts.items()
        if not name or f"{field}.".startswith(f"{name}.")
    ]
    assert found, f"docs/audit.md says nothing of {field} in {file}"
    name, verdict = max(found, key=lambda one: len(one[0]))
    return verdict, name


@dataclass(frozen=True)
class Edit:
    """A changed content of a file. field: its path, without places in lists."""

    file: str
    field: str
    how: str
    content: bytes
    before: bytes = b""


def other_values(value: Any) -> Iterator[tuple[str, Any]]:
    """Of one leaf."""
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int | float):
        yield "slightly larger", value * (1 + 1e-4) + isinstance(value, int)
        yield "smaller", value / 2 - 1 if isinstance(value, float) else value - 1
        yield "as text", str(value)
        yield "of another type", float(value) if isinstance(value, int) else int(value)
    elif isinstance(value, str):
        yield "longer", f"{value}x"
        yield "as a number", 7
    yield "null", None if value is not None else 1


def edited(document: Any, seen: dict[str, int], field: str = "") -> Iterator[tuple[str, str, Any]]:
    """Field, edit and document, of every leaf and every table and list; of those that are alike,
    two."""
    seen[field] = seen.get(field, 0) + 1
    if seen[field] > 2:
        return
    if isinstance(document, dict):
        yield f"{field}.more".lstrip("."), "added", {**document, "more": "Sally rated i7"}
        for key, value in document.items():
            inner = f"{field}.{key}".lstrip(".")
            without = {name: one for name, one in document.items() if name != key}
            yield inner, "removed", without
            for name, how, changed in edited(value, seen, inner):
                yield name, how, {**document, key: changed}
    elif isinstance(document, list):
        yield field, "one more", [*document, document[-1] if document else "Sally rated i7"]
        if document:
            yield field, "one less", document[:-1]
        if len(document) > 1 and document != document[::-1]:
            yield field, "reordered", document[::-1]
        for place in sorted({0, len(document) - 1} if document else ()):
            for name, how, changed in edited(document[place], seen, field):
                yield name, how, [*document[:place], changed, *document[place + 1 :]]
    else:
        for how, other in other_values(document):
            yield field, how, other


def json_edits(file: str, content: bytes) -> Iterator[Edit]:
    for field, how, changed in edited(json.loads(content), {}):
        text = json.dumps(changed, indent=2, sort_keys=True) + "\n"
        yield Edit(file, field, how, text.encode())


def array_edits(file: str, content: bytes) -> Iterator[Edit]:
    """Of a safetensors file: every array, and every word of its header."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    arrays, words = load(content), header.pop("__metadata__", None)

    def packed(changed: Mapping[str, Any]) -> bytes:
        return save(dict(changed), words)

    for name, array in arrays.items():
        other = next(iter({"float32", "float64", "int64"} - {array.dtype.name}))
        for how, made in (
            ("slightly larger", _moved(array, 1)),
            ("smaller", _moved(array, -1)),
            ("of another type", array.astype(other)),
            ("in another shape", array[None]),
            ("reordered", np.ascontiguousarray(array[::-1]) if array.ndim else array),
        ):
            if made.shape != array.shape or made.dtype != array.dtype or (made != array).any():
                yield Edit(file, f"arrays.{name}", how, packed({**arrays, name: made}))
        less = {key: one for key, one in arrays.items() if key != name}
        yield Edit(file, f"arrays.{name}", "removed", save(less, words))
    yield Edit(file, "arrays.more", "added", packed({**arrays, "more": np.zeros(1, np.float32)}))
    for said, how, changed in edited(words or {}, {}):
        text = {key: one for key, one in changed.items() if isinstance(one, str)}
        yield Edit(file, f"header.{said}", how, save(arrays, text))
        for key in {*text} if how == "longer" else ():
            try:  # words that are JSON themselves
                inner = json.loads((words or {})[key])
            except (KeyError, ValueError):
                continue
            for name, inner_how, one in edited(inner, {}, key):
                told = {**(words or {}), key: json.dumps(one)}
                yield Edit(file, f"header.{name}", inner_how, save(arrays, told))
    spaced = json.dumps({**({"__metadata__": words} if words else {}), **header}).encode()
    spaced += b" " * (8 - len(spaced) % 8)
    yield Edit(file, "header", "spaced", len(spaced).to_bytes(8, "little") + spaced + body)
    yield Edit(file, "end", "added", content + b"Sally rated i7")


def _moved(array: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    moved = array.copy()
    if moved.size and moved.dtype.kind == "f":
        moved.flat[0] += by * max(abs(float(moved.flat[0])) * 1e-3, 1e-3)
    elif moved.size:
        moved.flat[0] += moved.dtype.type(1) if by > 0 else moved.dtype.type(2)
    return moved


def line_edits(file: str, content: bytes) -> Iterator[Edit]:
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, after = lines[:number], lines[number + 1 :]
        for how, made in (
            ("removed", []),
            ("twice", [line, line]),
            ("longer", [line[:-1] + b" x\n"]),
            ("larger", [re.sub(rb"\d", lambda found: b"%d" % (9 - int(found[0])), line)]),
        ):
            if made != [line]:
                yield Edit(file, "line", how, b"".join([*before, *made, *after]))


def byte_edits(file: str, content: bytes) -> Iterator[Edit]:
    """Of a file that is a head and numbers: every byte of a head, some of the numbers."""
    for place in sorted({*range(min(60, len(content))), len(content) // 2, len(content) - 1}):
        changed = bytearray(content)
        changed[place] ^= 1
        yield Edit(file, f"byte.{place}", "changed", bytes(changed))
    yield Edit(file, "end", "shorter", content[:-8])
    yield Edit(file, "end", "longer", content + bytes(8))


def edits(model: Path) -> Iterator[Edit]:
    """Of every file; of rounds that are alike, of the first and of the last one."""
    rounds = len(parsed(model)["rounds"])
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        file = path.relative_to(model).as_posix()
        round = re.match(rf"{FOLDER}/round-(\d+)", file)
        if round and int(round[1]) not in {0, rounds - 1}:
            continue
        kinds = {".json": json_edits, ".safetensors": array_edits, ".output": byte_edits}
        kind = kinds.get(path.suffix, line_edits)
        content = path.read_bytes()
        for edit in kind(file, content):
            if edit.content != content:
                yield replace(edit, before=content)
        if file != BUNDLE:  # a model without one is whole
            yield Edit(file, "", "removed", b"")


def thinned(given: Iterable[Edit]) -> Iterator[Edit]:
    """Every edit of a round; of each other field one, of another kind each time."""
    by_field = dict[tuple[str, str], list[Edit]]()
    for edit in given:
        by_field.setdefault((edit.file, edit.field), []).append(edit)
    for number, alike in enumerate(by_field.values()):
        whole = alike[0].file.startswith(f"{FOLDER}/round-")
        yield from alike if whole else [alike[number % len(alike)]]


def put(model: Path, edit: Edit) -> None:
    """The edit, and every digest that names the file."""
    path = model / edit.file
    if edit.how == "removed" and not edit.field:
        path.unlink()
    else:
        path.write_bytes(edit.content)
    if edit.file == FILE:
        content = read_json(path) if path.exists() else {}
        if content and edit.field.partition(".")[0] != "sha256":
            write_json(path, {**content, "sha256": own_digest(content)})
        return
    for named, by in (("model.safetensors", "manifest.json"), *FEATURES):
        if edit.file == named and path.exists():
            write_json(model / by, {**read_json(model / by), "sha256": sha256_of(path)})
    if edit.file != BUNDLE:
        sealed(model)


FEATURES = ((f"{FOLDER}/features.safetensors", f"{FOLDER}/public.json"),)


def rewritten(model: Path, told: Told | None = None) -> None:
    """A forger's whole work: question after question, and every file that follows, anew.

    told: what the model's files say, None for what they said before."""
    content = parsed(model)
    scenario = validated(content["settings"], source="forged")
    inputs: Any = read_inputs(model / FOLDER, content["users"])
    side = inputs.server_side(scenario)
    plan, state = side.recipe.plan, side.recipe.begin()
    content["settings"] = settings_of(scenario)
    for number, round in enumerate(content["rounds"]):
        question = side.recipe.ask(state)
        round["question"] = digest_of(question, run=content["run"], plan=plan)
        release = unpack_release((model / round_file(number)).read_bytes(), question.releases)
        standing = release.standing_for(content["users"], reported=round["reported"])
        state = side.recipe.tell(state, question, standing)
    said = told or verifying._told(model, content, plan, inputs.public)
    files = model_files(scenario, inputs.public, inputs.users, side.recipe, state, plan, {}, said)
    for name in (
        "training.json",
        "README.md",
        *(("serving.json", COUNTS) if not said.origin else ()),
    ):
        (model / name).unlink(missing_ok=True)
    for name, made in {**files, **{f"{FOLDER}/{k}": v for k, v in inputs.files().items()}}.items():
        (model / name).write_bytes(made)
    finish(model, "model", [FILE])
    sealed(model, **{**content, "plan": plan.content()})


def _standing(release: Release, content: Mapping[str, Any]) -> Release:
    return release.standing_for(content["users"], reported=content["users"])


def started_warm(model: Path) -> None:
    """A second training, that begins where this one ended: nobody reports, noise is released."""
    content = parsed(model)
    scenario = validated(content["settings"], source="warm")
    inputs: Any = read_inputs(model / FOLDER, content["users"])
    recipe = inputs.server_side(scenario).recipe
    state = recipe.begin()
    for number in range(len(content["rounds"])):
        question = recipe.ask(state)
        path = model / round_file(number)
        release = unpack_release(path.read_bytes(), question.releases)
        state = recipe.tell(state, question, _standing(release, content))
        path.unlink()
    items = inputs.public.items
    inputs = replace(inputs, earlier=Earlier.of(state, content["users"], items=items, now=items))
    recipe = inputs.server_side(scenario).recipe
    state, ledger, rounds = recipe.begin(), Ledger(recipe.plan.guarantee), list[Any]()
    while (question := recipe.ask(state)) is not None:
        nothing = ExactSums(question.blocks).blocks
        answer, ledger = released(question, nothing, recipe.plan, ledger, noise=SystemStreams())
        (model / round_file(len(rounds))).write_bytes(pack_release(answer))
        rounds.append({"question": "", "reported": content["users"]})
        state = recipe.tell(state, question, _standing(answer, content))
    for name, made in inputs.files().items():
        (model / FOLDER / name).write_bytes(made)
    sealed(model, rounds=rounds)


def made(case: str, folder: Path) -> Path:
    """The model of a case, as whoever trains it writes it."""
    model = simulated(folder, CASES[case])
    if "warm" in case:
        started_warm(model)
    if "deployed" in case or "warm" in case:
        content = parsed(model)
        took_part = [
            {"round": number, "reported": one["reported"], "asked": 60, "joined": 60, "quorum": 9}
            for number, one in enumerate(content["rounds"])
        ]
        told = Told("aggregator", None, took_part=took_part)
        if "several" in case:
            served = facts_of(model)
            one = served.origin
            larger = replace(one.guarantee, epsilon=one.guarantee.epsilon * 1.5)
            origin = replace(one, guarantee=larger, spent=larger.epsilon, runs=3, not_covered=())
            told = Told("system", origin, served.catalogue.listed, took_part=took_part)
        rewritten(model, told)
    if "signed" in case:
        key = issue(make_ca(folder / "ca", days=2), "aggregator", "one", days=2)
        sealed(model, statements=[signed(stated(model), key)])
    if "served" in case or "several" in case:
        export(model, model / BUNDLE)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_edit_has_the_verdict_of_the_table(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(case, tmp_path)
    assert verify(model).difference == 0
    given = edits(model)
    if "thin" in case:
        own = "earlier" if "warm" in case else ""
        given = thinned(edit for edit in given if own in edit.file)
    wrong = wrong_verdicts(model, given, monkeypatch)
    assert not wrong, "\n".join(wrong)


def wrong_verdicts(
    model: Path, given: Iterable[Edit], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Edits that hold and that the table calls proved or, where aggregators signed, signed."""
    remember(monkeypatch)
    signs = bool(parsed(model)["statements"])
    sealed(model)  # a forger's last step alone is refused by nothing
    assert verify(model).difference == 0
    wrong = list[str]()
    for edit, held in outcomes(model, given, lambda edit: put(model, edit)):
        verdict, _ = verdict_of(edit.file, edit.field)
        if held and (verdict == "proved" or (verdict == "signed" and signs)):
            wrong.append(f"{edit.file}: {edit.field} {edit.how}: holds, and is {verdict}")
    return wrong


@pytest.mark.slow
def test_who_writes_everything_anew_without_the_key_changes_what_is_trusted_and_no_more(
    tmp_path: Path,
) -> None:
    """Of what the model is made with; each entry of the table is changed by some edit."""
    model = made("deployed, signed", tmp_path)
    given = [edit for edit in edits(model) if edit.file.startswith(FOLDER) and edit.content]

    def forge(edit: Edit) -> None:
        put(model, edit)
        with suppress(Exception):  # what no forger can go on with
            rewritten(model)

    changed, tried = set[tuple[str, str]](), set[tuple[str, str]]()
    wrong = list[str]()
    for edit, held in outcomes(model, given, forge):
        verdict, name = verdict_of(edit.file, edit.field)
        if verdict == "trusted":
            tried.add((edit.file, name))
        if held and not _undone(edit, model):
            changed.add((edit.file, name))
            if verdict != "trusted":
                wrong.append(f"{edit.file}: {edit.field} {edit.how}: holds, and is {verdict}")
    assert not wrong, "\n".join(wrong)
    assert changed == tried


def outcomes(
    model: Path, given: Iterable[Edit], change: Callable[[Edit], None]
) -> Iterator[tuple[Edit, bool]]:
    """Of each edit whether it holds, signed as before; the model is as it was afterwards."""
    signs = len(parsed(model)["statements"])
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    for edit in list(given):
        change(edit)
        try:
            held = len([one for one in verify(model).signed if one.pin]) == signs
        except RunError:
            held = False
        yield edit, held
        for path, content in before.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
    assert verify(model).difference == 0


def _undone(edit: Edit, model: Path) -> bool:
    """Whether a forger who wrote everything anew wrote what was there before the edit."""
    return (model / edit.file).read_bytes() == edit.before


def remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from the same bytes is computed once: most of the time of a verification."""
    kept = dict[tuple[object, ...], Any]()
    read, told_again = read_inputs, verifying._told_again

    def once(key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def bundle(folder: Path) -> Any:
        names = ("serving.json", "manifest.json", "model.safetensors", "popularity.safetensors")
        return once((bundle, *_bytes(folder, names)), lambda: bundle_of(folder))

    def inputs(folder: Path, users: int) -> Any:
        def make() -> Any:
            found = read(folder, users)
            object.__setattr__(found, "files", cache(found.files))
            return found

        names = sorted(path.name for path in folder.iterdir() if "round-" not in path.name)
        others = [name for name in names if name != Path(FILE).name]
        return once((inputs, users, *others, *_bytes(folder, others)), make)

    def again(folder: Path, content: Mapping[str, Any], side: Any, outputs: Any) -> Any:
        said = json.dumps({key: content[key] for key in ("run", "settings", "users", "rounds")})
        names = sorted(path.name for path in (folder / FOLDER).iterdir())
        others = [name for name in names if name != Path(FILE).name]
        key = (again, said, bool(outputs), *others, *_bytes(folder / FOLDER, others))
        return once(key, lambda: told_again(folder, content, side, outputs))

    monkeypatch.setattr(verifying, "bundle_of", bundle)
    monkeypatch.setattr(verifying, "read_inputs", inputs)
    monkeypatch.setattr(verifying, "_told_again", again)


def _bytes(folder: Path, names: Iterable[str]) -> list[bytes]:
    return [(folder / name).read_bytes() for name in names]
