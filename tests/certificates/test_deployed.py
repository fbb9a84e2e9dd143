"""Certificates of deployed models: aggregators sign what their ledgers say of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.certificates.verifying import verify
from fedrec.certificates.writing import FILE, output_file
from fedrec.errors import RunError
from fedrec.output_folders import finish
from tests.certificates.models import DEPLOYED, copied, deployed, fuzzed, holds, parsed, sealed
from tests.certificates.test_fields import edits, thinned, wrong_verdicts


@pytest.mark.processes
@pytest.mark.parametrize("case", DEPLOYED)
def test_every_aggregator_states_what_it_charged_and_released(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deployed(tmp_path, DEPLOYED[case])
    found = verify(model)
    assert found.difference == 0
    assert len(found.signed) == (3 if case == "three-party" else 1)
    for one in found.signed:
        assert one.words in found.proved
    _no_other_statement_holds(model, tmp_path / "forged")
    assert fuzzed(model, tmp_path / "fuzzed", 50, seed=3) == []
    if case != "ratings":  # of one aggregator, as in test_fields
        own = "" if case == "news" else "certificate/"
        given = thinned(edit for edit in edits(model) if edit.file.startswith(own))
        assert not wrong_verdicts(model, given, monkeypatch)


def _no_other_sum_holds(model: Path, to: Path) -> None:
    """A server that changes what three aggregators released, or one of the three outputs, or both
    so that they add up, is found out by the aggregators' signatures."""
    first, second = (model / output_file(0, place) for place in (0, 1))
    larger = bytearray(first.read_bytes())
    larger[-8:] = (int.from_bytes(larger[-8:], "little") + 1).to_bytes(9, "little")[:8]
    smaller = bytearray(second.read_bytes())
    smaller[-8:] = ((int.from_bytes(smaller[-8:], "little") - 1) % 2**64).to_bytes(8, "little")
    name, other = first.name, second.name
    forgeries: list[tuple[dict[str, bytes], str]] = [
        ({name: bytes(larger)}, "a release is not the sum of three outputs"),
        ({name: bytes(larger), other: bytes(smaller)}, "released other bytes"),
        ({name: second.read_bytes(), other: first.read_bytes()}, "released other bytes"),
        ({name: first.read_bytes()[:-8]}, "cannot be read"),
        ({name: b"FRO2" + first.read_bytes()[4:]}, "cannot be read"),
        ({name: bytes([*larger[:4], larger[4] ^ 1, *larger[5:]])}, "not of one attempt"),
    ]
    for files, said in forgeries:
        folder = copied(model, to) / "certificate"
        for file, content in files.items():
            (folder / file).write_bytes(content)
        sealed(to)
        with pytest.raises(RunError, match=said):
            verify(to)
    (copied(model, to) / output_file(0, 2)).unlink()
    sealed(to)
    with pytest.raises(RunError, match="an aggregator's output, is missing"):
        verify(to)


def _no_other_statement_holds(model: Path, to: Path) -> None:
    """A server that writes statements itself, and seals them, is found out."""
    statements = parsed(model)["statements"]
    said = json.loads(statements[0]["statement"])
    forged: list[dict[str, Any]] = [
        {**said, "run": "another"},
        {**said, "plan": "0" * 64},
        {**said, "entries": said["entries"][:-1]},
        {**said, "entries": ["0" * 64, *said["entries"][1:]]},
        {**said, "charges": said["charges"][:-1]},
        {**said, "charges": [said["charges"][0].replace('"mu":', '"mu":1'), *said["charges"][1:]]},
        {**said, "rounds": said["rounds"][:-1]},
        {**said, "rounds": [{**said["rounds"][0], "question": "0" * 64}, *said["rounds"][1:]]},
        {**said, "rounds": [{**said["rounds"][0], "head": "0" * 64}, *said["rounds"][1:]]},
        {**said, "head": "0" * 64},
    ]
    if parsed(model)["users"]:
        forged.append(
            {**said, "rounds": [{**said["rounds"][0], "reported": 7}, *said["rounds"][1:]]}
        )
    forged += [
        {**said, "rounds": [{**said["rounds"][0], **changed}, *said["rounds"][1:]]}
        for changed in ({"release": "0" * 64}, {"output": "00"})[: 1 + (len(statements) == 3)]
    ]
    unsigned = {**statements[0], "signature": "", "certificate": ""}
    for one in forged:
        for before in (statements[0], unsigned):
            first = {**before, "statement": json.dumps(one)}
            sealed(copied(model, to), statements=[first, *statements[1:]])
            assert not holds(to), one
    sealed(copied(model, to), statements=[unsigned, *statements[1:]])
    found = verify(to)
    assert not found.signed[0].pin
    assert found.signed[0].words in found.trusted
    assert not any("without a signature" in words for words in found.proved)
    if len(statements) == 3:
        _no_other_sum_holds(model, to)
        sealed(copied(model, to), statements=[statements[0]] * 3)
        assert not holds(to)
    for output in copied(model, to).glob("certificate/*.output"):
        output.unlink()  # of nobody, where nobody signs
    finish(to, "model", [FILE])
    sealed(to, statements=[])
    assert verify(to).signed == ()
    sealed(copied(model, to), statements=[*statements, *statements])
    with pytest.raises(RunError, match="aggregators signed"):
        verify(to)
