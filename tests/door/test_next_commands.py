"""The last line of every start command is a command that works, also where a model is not served."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.main import get_command

from fedrec.cli.main import GROUPS, app, guarded
from fedrec.report.comparison import metric_of, metrics_of

FEW = ["--set", "compare.als=false"]


def parsed(line: str) -> tuple[str, list[str]]:
    """The verb and the arguments of a line that ends in a command; raises where they are wrong."""
    fedrec, verb, *arguments = shlex.split(line.strip().removeprefix("next"))
    assert fedrec == "fedrec"
    command: Any = get_command(app).commands[verb]  # type: ignore[attr-defined]
    command.make_context(verb, list(arguments))
    return verb, arguments


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """The last line that a command prints, run in a folder with two tables."""
    monkeypatch.chdir(tmp_path)
    # people of their own: budgets are kept by person
    rows = {"user": [f"next-{n // 5}" for n in range(500)], "item": [n % 5 for n in range(500)]}
    pl.DataFrame(rows).write_csv("all alike.csv")
    users = np.repeat(np.arange(1000), 10)
    items = 2 * np.random.default_rng(1).integers(0, 15, len(users)) + users % 2
    names = [f"step-{user}" for user in users]
    pl.DataFrame({"user": names, "item": items}).unique().write_csv("tastes.csv")

    def run(*arguments: str) -> str:
        assert guarded(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()[-1]

    return run


@pytest.mark.slow
def test_a_table_leads_to_a_served_model(said: Any) -> None:
    assert parsed(said("data", "describe", "tastes.csv"))[0] == "train"
    verb, arguments = parsed(said("train", "tastes.csv", "-o", "m", "--epsilon", "20", *FEW))
    assert (verb, arguments) == ("serve", ["m", "--page"])
    assert parsed(said("export", "m", "--output", "m.safetensors"))[0] == "serve"


@pytest.mark.slow
def test_a_model_that_is_not_served_leads_to_a_command_that_works(
    said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said("train", "all alike.csv", "-o", "m", *FEW)
    verb, arguments = parsed(line)
    assert verb == "compare"
    assert guarded([verb, *arguments]) == 0
    assert Path("compare.html").is_file()
    capsys.readouterr()


@pytest.mark.parametrize("page", [True, False])
def test_a_server_leads_to_a_question(
    page: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from fedrec_server.serving import main

    def listens(*_: object, ready: Any, **__: object) -> None:
        ready(main.Serving(1, "127.0.0.1:1", "http://127.0.0.1:2", "0" * 16, "ε = 5"))

    monkeypatch.setattr(main, "run", listens)
    (tmp_path / "model").mkdir()
    assert guarded(["serve", str(tmp_path / "model"), *["--page"] * page]) == 0
    verb, arguments = parsed(capsys.readouterr().out.splitlines()[-1].strip())
    assert verb == "recommend"
    assert "http://127.0.0.1:2" in arguments


def test_the_start_commands_are_those_that_are_checked() -> None:
    # demo is simulate's ending, and recommend is asked of a server in tests/recommend
    assert set(GROUPS["Start"]) == {"train", "serve", "recommend", "demo", "data"}


def test_runs_of_news_are_compared_by_their_metrics_not_by_their_errors() -> None:
    columns = {"ndcg@10_stderr": [0.1], "ndcg@5": [0.2], "ndcg@10": [0.3], "auc": [0.6]}
    frame = pl.DataFrame(columns)
    assert metrics_of(frame) == ["ndcg@5", "ndcg@10", "auc"]
    assert metric_of(frame, "") == "ndcg@10"
