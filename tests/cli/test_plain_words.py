"""Words that click takes in silence, at every parameter of every verb: refused by name before
anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

import fedrec
from fedrec.cli.main import _is_number, app, guarded
from fedrec.errors import FedRecError
from fedrec.settings import Scenario, validated
from fedrec.settings_tables import nested


def _verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    commands = getattr(command, "commands", {})
    for name, own in commands.items():
        yield from _verbs(own, (*words, name))
    if not commands:
        yield words, command


VERBS = dict(_verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("words", list(VERBS), ids=" ".join)
def test_nothing_twice_nothing_empty_and_no_number_but_a_plain_one(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for own in VERBS[words].params:
        option = own.param_type_name == "option"
        flag = [own.opts[0]] if option else []
        if own.name == "help" or getattr(own, "is_flag", False):
            continue
        several = getattr(own, "multiple", False) or own.nargs == -1
        count = max(own.nargs, 1)
        wrong = (
            {"is empty": [*flag, *[""] * count]}
            if own.name not in {"overrides", "grpc", "http"}
            else {}
        )
        if option and not several:
            wrong["is given twice"] = [*flag, *["1"] * count] * 2
        if _is_number(own):
            wrong["is a number, found '1_0'"] = [*flag, *["1_0"] * count]
            wrong["is a number, found '\u0665'"] = [*flag, *["\u0665"] * count]
        # what stands before an argument is given, so that the word is its own
        before = [] if option else ["x"] * sum(
            other.param_type_name == "argument" for other in VERBS[words].params[: VERBS[words].params.index(own)]
        )  # fmt: skip
        for said, given in wrong.items():
            assert guarded([*words, *before, *given]) == 2, (own.name, said)
            assert said in capsys.readouterr().err, (own.name, said)


def test_a_key_that_is_set_twice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "privacy.epsilon=1", "--set", "privacy.epsilon =2"]
    assert guarded(["account", "--set", "data.preset=demo", *words]) == 0
    found = capsys.readouterr()
    assert found.err.count("warning: --set says one key twice: the last counts") == 1
    assert "epsilon 2" in found.out or "(2, " in found.out


def _numbers(table: Any, before: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from _numbers(field.annotation, f"{before}{name}.")
        elif field.annotation in (int, float, int | None, float | None):
            yield before + name


@pytest.mark.parametrize("key", list(_numbers(Scenario)))
def test_a_number_of_a_scenario_as_text_is_a_plain_one(key: str) -> None:
    for text in ("1_0", "\u0665"):
        with pytest.raises(FedRecError, match="is a number, found"):
            validated(nested({key: text}), source="the test")


@pytest.mark.parametrize("epsilon", [1e20, 1e308])
def test_an_epsilon_too_large_for_the_grid_is_refused_before_it_is_charged(epsilon: float) -> None:
    data = fedrec.Dataset.planted("demo", kind="clicks")
    with pytest.raises(fedrec.PrivacyError, match="needs an integer grid finer") as refused:
        fedrec.Popularity(epsilon=epsilon, noise="seeded").fit(data)
    assert refused.value.remedy
