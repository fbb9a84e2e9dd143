"""Ledgers as an earlier version wrote them open, say the same, and go on with the same heads."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.ledgers.chain import HeadFile, head_after
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent
from fedrec.privacy.selection import PureEvent
from fedrec.run.data.budget import DataBudget
from fedrec_client.click_ledger import ClickLedger, RunBinding
from fedrec_client.device.ledger import DeviceLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.serving_ledger import Drawn, ServingLedger, ServingQuestion

KEPT = json.loads((Path(__file__).parent / "kept_ledgers.json").read_text())
"""SQL or lines, and heads, of a ledger of each sort, written by the version before
`fedrec.ledgers`."""
CLICKS = Guarantee(10.0, 1e-5, "click", "replace")
ONE_S = 1e9


def kept(folder: Path, name: str) -> Path:
    """The ledger in its file, with its head file where its version had one."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as database:
            database.executescript(KEPT[name]["sql"])
    else:
        path.write_text(KEPT[name]["lines"])
    if "head" in KEPT[name]:
        HeadFile(path).write(KEPT[name]["number"], KEPT[name]["head"])
    return path


def test_a_ledger_of_rounds_opens(tmp_path: Path) -> None:
    path = kept(tmp_path, "rounds.sqlite")
    with closing(ClientLedger(path, limit=Guarantee(10.0, 1e-5), clock=lambda: ONE_S)) as ledger:
        assert ledger.head == KEPT["rounds.sqlite"]["head"]
        assert ledger.secret == bytes(range(32))
        first, second = ledger.entries
        assert first.releases == (("counts", 0.1), ("step/0", 0.3))
        assert (second.run, second.round, second.question, second.plan) == (
            "run", 1, "other", "plan",
        )  # fmt: skip


def test_a_ledger_of_clicks_opens(tmp_path: Path) -> None:
    path = kept(tmp_path, "clicks.sqlite")
    with closing(ClickLedger(path, limit=CLICKS, clock=lambda: ONE_S)) as ledger:
        assert ledger.head == KEPT["clicks.sqlite"]["head"]
        (run,) = ledger.runs
        assert run.price == Costs((PaddedEvent("report", 0.5, 0.25),), (PureEvent("label", 1.0),))
        assert run.bound == RunBinding("t", "d", 3, 0, 5, 2)
        users = np.array([True, False, True])
        assert not ledger.answer("run", 0, "question", users, most=2)


def test_a_ledger_of_answers_opens(tmp_path: Path) -> None:
    path = kept(tmp_path, "answers.sqlite")
    with closing(ServingLedger(path, limit=CLICKS, clock=lambda: ONE_S)) as ledger:
        assert ledger.head == KEPT["answers.sqlite"]["head"]
        price = GaussianEvent("answer", 0.25, "click", "replace")
        asked = ServingQuestion(
            "v", "with", "1-abc", Guarantee(1.0, 1e-5, "click", "replace"), price
        )
        known, fresh = ledger.answer(asked, lambda: pytest.fail("drawn again"))
        assert not fresh
        assert (list(known.raw), list(known.sent), known.noise_std) == ([0.1, -2.5], [0.5], 0.5)
        other = ServingQuestion("v", "with", "2-abc", asked.guarantee, price)
        drawn = Drawn(np.zeros(1), np.zeros(1, np.float32), 0.5, price)
        assert ledger.answer(other, lambda: drawn)[1]


def test_a_budget_opens_and_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    lines = KEPT["people.jsonl"]["lines"]
    budget = DataBudget(
        kept(tmp_path, "people.jsonl"), Guarantee(float("inf"), 1e-5), clock=lambda: ONE_S
    )
    first, second = budget.entries()
    assert (first.training, second.noise) == ("a", "seeded")
    assert first.events[1] == PureEvent("x", 0.5, 0.25)
    anew = DataBudget(tmp_path / "anew.jsonl", budget.limit, clock=lambda: ONE_S)
    for entry in (first, second):
        anew.charge(entry.training, entry.noise, entry.events)
    assert anew.path.read_text() == lines


def test_a_devices_ledger_opens_without_a_head_file_and_has_one_from_then_on(
    tmp_path: Path,
) -> None:
    path = kept(tmp_path, "device/ledger.jsonl")
    (path.parent / "secret").write_bytes(bytes(32))
    with closing(DeviceLedger(path.parent, epsilon=10.0, delta=1e-5)) as ledger:
        assert [(spent.run, spent.round, spent.mu) for spent in ledger.entries] == [
            ("run", 0, 0.1), ("run", 1, 0.3),
        ]  # fmt: skip
    first, _ = path.read_text().splitlines(keepends=True)
    path.write_text(first)
    with pytest.raises(RunError, match="older than"):
        DeviceLedger(path.parent, epsilon=10.0, delta=1e-5)


def test_numbers_are_hashed_exactly() -> None:
    assert head_after("", 0.1) != head_after("", 0.1 + 2**-55)
    assert head_after("", b"\x00") == head_after("", "00")
