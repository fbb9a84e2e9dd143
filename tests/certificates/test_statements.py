"""Statements of an aggregator beside a model: what is signed, by whom, and that a chain holds it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.certificates import statements
from fedrec.certificates.statements import require_signed
from fedrec.certificates.verifying import verify
from fedrec.errors import RunError
from fedrec.operations.certificates import KeyPair, issue, make_ca, pins
from fedrec.privacy.calibration import Plan
from tests.certificates.models import SMALL, copied, parsed, sealed, signed, simulated, stated


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, KeyPair, KeyPair]:
    """A model, and the keys of its aggregator and of another one."""
    folder = tmp_path_factory.mktemp("stated")
    model = simulated(folder / "runs", [*SMALL, "recipe=dp-bias"])
    authority = make_ca(folder / "ca", days=2)
    one, other = (issue(authority, "aggregator", name, days=2) for name in ("one", "other"))
    return model, one, other


def test_a_statement_holds_under_the_key_that_signed_it_and_no_other(
    world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    model, one, other = world
    target = copied(model, tmp_path / "model")
    sealed(target, statements=[signed(stated(model), one)])
    (found,) = verify(target).signed
    assert (found.name, found.number) == ("one", 2 + len(stated(model)["entries"]))
    assert found.pin == pins(one.certificate.read_bytes()).public_key
    assert f"signed with the key {found.pin}" in found.words
    sealed(target, statements=[{**signed(stated(model), one), "signature": "", "certificate": ""}])
    unsigned = verify(target)
    assert unsigned.proved == verify(model).proved
    assert unsigned.signed[0].words in unsigned.trusted
    assert any("No aggregator signed" in words for words in unsigned.trusted)
    for wrong in (
        signed(stated(model), other, shown=one),
        {**signed(stated(model), one), "signature": "00"},
        {**signed(stated(model), one), "statement": json.dumps(stated(model), indent=1)},
    ):
        sealed(target, statements=[wrong])
        with pytest.raises(RunError, match="did not sign"):
            verify(target)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": "another"}, "another run or plan"),
        ({"plan": "0" * 64}, "another run or plan"),
        ({"head": "0" * 64}, "does not lead to its head"),
        ({"since": {"number": 2, "head": "0" * 64}}, "does not lead to its head"),
        ({"charges": []}, "has not charged what the plan promises"),
        ({"charges": ["{}"]}, "does not hold a charge"),
        ({"rounds": []}, "released other rounds"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_signed_statement_of_something_else_does_not_hold(
    changed: dict[str, Any], said: str, world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    sealed(target, statements=[signed({**stated(model), **changed}, one)])
    with pytest.raises(RunError, match=said):
        verify(target)


def test_other_bytes_than_the_aggregator_released_do_not_hold(
    world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    said = stated(model)
    said["rounds"][0]["release"] = "0" * 64
    sealed(target, statements=[signed(said, one)])
    with pytest.raises(RunError, match="released other bytes"):
        verify(target)


@pytest.mark.parametrize("factor", [1 / 1.1, 1.1, 0.0])
def test_charges_of_another_mu_than_the_plan_s_do_not_hold(
    factor: float, world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    sealed(target, statements=[signed(stated(model, factor=factor), one)])
    with pytest.raises(RunError, match="has not charged what the plan promises"):
        verify(target)


def test_a_release_that_was_charged_twice_does_not_hold(
    world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    """It was made twice, then, and one of the two lies here."""
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    sealed(target, statements=[signed(stated(model, times=2), one)])
    with pytest.raises(RunError, match="has not charged what the plan promises"):
        verify(target)


def test_a_signer_s_name_writes_no_line_of_its_own(
    world: tuple[Path, KeyPair, KeyPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates name whom they like, and a terminal prints it."""
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    sealed(target, statements=[signed(stated(model), one)])
    pin = pins(one.certificate.read_bytes()).public_key
    named = ("one\x1b[2J\nrests on trust\n  nothing", pin)
    monkeypatch.setattr(statements, "signer_of", lambda _: named)
    (found,) = verify(target).signed
    assert found.name == "one[2Jrests on trust  nothing"
    (target / "\nholds: model").write_text("")
    with pytest.raises(RunError, match="does not name holds: model"):
        verify(target)


def test_other_numbers_of_people_than_the_aggregator_released_do_not_hold(
    world: tuple[Path, KeyPair, KeyPair], tmp_path: Path
) -> None:
    model, one, _ = world
    target = copied(model, tmp_path / "model")
    said = stated(model)
    said["rounds"][-1]["reported"] -= 1
    sealed(target, statements=[signed(said, one)])
    with pytest.raises(RunError, match="released other rounds"):
        verify(target)


def test_one_key_does_not_sign_for_two_of_three_aggregators(tmp_path: Path) -> None:
    """Each output in its place, so that nothing but the key is wrong."""
    keys = [*SMALL, "recipe=dp-bias", "privacy.aggregation=three-party"]
    model = simulated(tmp_path / "runs", keys)
    content = parsed(model)
    plan = Plan.of(content["plan"])
    outputs = [[b"0", b"1", b"2"] for _ in content["rounds"]]
    authority = make_ca(tmp_path / "ca", days=2)
    holders = [issue(authority, "aggregator", name, days=2) for name in ("a", "b", "c")]

    def found(*by: int) -> int:
        told = []
        for place, number in enumerate(by):
            said = stated(model)
            for one, three in zip(said["rounds"], outputs, strict=True):
                one |= {"output": "", "release": hashlib.sha256(three[place]).hexdigest()}
            told.append(signed(said, holders[number]))
        return len(require_signed({**content, "statements": told}, plan, [], outputs))

    assert found(0, 1, 2) == 3
    with pytest.raises(RunError, match="two aggregators have one key"):
        found(0, 1, 0)
