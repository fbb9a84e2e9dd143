from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import LedgerHead, Refusal
from fedrec.ledgers.chain import HeadFile
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_client.ledger import ClientLedger, read_entries

LIMIT = Guarantee(5.0, 1e-5)


def plan_of(epsilon: float) -> Plan:
    return calibrate(Guarantee(epsilon, 1e-5), {"counts": 1.0, "step/0": 2.0, "step/1": 2.0})


PLAN = plan_of(3.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., ClientLedger]]:
    """Opens the ledger at `path`; the one before is closed first, as a restart would."""
    ledgers = list[ClientLedger]()

    def open_(limit: Guarantee = LIMIT, clock: Callable[[], float] = lambda: 1e9) -> ClientLedger:
        for ledger in ledgers:
            ledger.close()
        ledgers[:] = [ClientLedger(path, limit=limit, clock=clock)]
        return ledgers[0]

    yield open_
    for ledger in ledgers:
        ledger.close()


def charged(
    ledger: ClientLedger,
    round: int,
    *names: str,
    run: str = "run",
    plan: Plan = PLAN,
    question: str = "",
) -> bool:
    return ledger.charge(run, round, question or f"{round:064x}", plan, names)


def code_of(act: Callable[[], Any]) -> str:
    with pytest.raises(RefusedError) as caught:
        act()
    return caught.value.code


def test_a_charge_is_there_after_a_restart_and_costs_what_the_plan_says(opened: Any) -> None:
    ledger = opened()
    assert charged(ledger, 0, "counts")
    assert charged(ledger, 1, "step/0", "step/1")
    again = opened()
    assert again.epsilon == pytest.approx(3.0, rel=1e-9)
    assert [entry.releases for entry in again.entries] == [
        (("counts", PLAN["counts"].mu),),
        (("step/0", PLAN["step/0"].mu), ("step/1", PLAN["step/1"].mu)),
    ]


def test_the_same_question_again_is_not_charged_again_also_after_a_restart(opened: Any) -> None:
    ledger = opened()
    assert charged(ledger, 0, "counts")
    assert not charged(ledger, 0, "counts")
    assert not charged(opened(), 0, "counts")
    assert len(opened().entries) == 1


def test_the_same_question_at_another_cost_is_refused(opened: Any) -> None:
    """A report that counts more costs more, and a resend is not charged: a server that announces
    other personal limits must not have a longer one for the price of the first."""
    ledger = opened()
    question = f"{0:064x}"
    assert ledger.charge("run", 0, question, PLAN, ["counts"], weight=0.1)
    assert not ledger.charge("run", 0, question, PLAN, ["counts"], weight=0.1)
    for weight in (0.2, 0.05):
        longer = lambda w=weight: opened().charge("run", 0, question, PLAN, ["counts"], weight=w)  # noqa: E731
        assert code_of(longer) == Refusal.ALREADY_REPORTED


def test_the_reasons_to_refuse_have_their_codes_and_cost_nothing(opened: Any) -> None:
    ledger = opened()
    charged(ledger, 0, "counts")
    assert (
        code_of(lambda: charged(ledger, 0, "counts", question="f" * 64)) == Refusal.ALREADY_REPORTED
    )
    assert code_of(lambda: charged(ledger, 1, "counts")) == Refusal.WRONG_QUESTION
    assert code_of(lambda: charged(ledger, 1, "step/0", "step/0")) == Refusal.WRONG_QUESTION
    assert code_of(lambda: charged(ledger, 1, "step/0", plan=plan_of(2.9))) == Refusal.WRONG_PLAN
    assert (
        code_of(lambda: charged(ledger, 0, "counts", run="other", plan=plan_of(4.9)))
        == Refusal.BUDGET
    )
    assert len(opened().entries) == 1


def test_runs_compose_exactly_and_the_last_that_fits_fits(opened: Any) -> None:
    ledger = opened()
    for round, name in enumerate(("counts", "step/0", "step/1")):
        charged(ledger, round, name, run="first")
    left = math.sqrt(mu_for(5.0, 1e-5) ** 2 - mu_for(3.0, 1e-5) ** 2)
    assert ledger.epsilon_left == pytest.approx(epsilon_of(left, 1e-5), rel=1e-9)
    assert (
        code_of(
            lambda: charged(
                ledger, 0, "counts", run="second", plan=plan_of(ledger.epsilon_left * 1.001)
            )
        )
        == Refusal.BUDGET
    )
    rest = plan_of(ledger.epsilon_left * 0.999)
    for round, name in enumerate(("counts", "step/0", "step/1")):
        assert charged(ledger, round, name, run="second", plan=rest)
    assert 4.99 < ledger.epsilon <= 5.0


def test_a_run_that_would_be_refused_halfway_is_refused_before_its_first_round(opened: Any) -> None:
    with pytest.raises(RefusedError, match="limit") as caught:
        charged(opened(), 0, "counts", plan=plan_of(5.1))
    assert "Still possible: a run of epsilon 5" in caught.value.remedy


def test_a_limit_that_was_lowered_below_what_is_spent_leaves_nothing(opened: Any) -> None:
    charged(opened(), 0, "counts")
    lowered = opened(Guarantee(0.1, 1e-5))
    assert lowered.epsilon_left == 0.0
    assert code_of(lambda: charged(lowered, 1, "step/0")) == Refusal.BUDGET


def test_a_run_without_noise_needs_an_infinite_limit(opened: Any) -> None:
    plan = plan_of(math.inf)
    assert code_of(lambda: charged(opened(), 0, "counts", plan=plan)) == Refusal.BUDGET
    infinite = opened(Guarantee(math.inf, 1e-5))
    assert charged(infinite, 0, "counts", plan=plan)
    assert infinite.epsilon == math.inf


def test_a_second_process_is_refused_while_one_has_the_ledger(opened: Any, path: Path) -> None:
    opened()
    with pytest.raises(RunError, match="in use"):
        ClientLedger(path, limit=LIMIT)


def test_the_secret_stays_the_same_and_is_readable_by_its_owner_alone(
    opened: Any, path: Path
) -> None:
    secret = opened().secret
    assert len(secret) == 32
    assert opened().secret == secret
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET releases = '[]' WHERE number = 1",
        "UPDATE entries SET releases = 'x' WHERE number = 2",
        "UPDATE entries SET run = 'other' WHERE number = 2",
        "DELETE FROM entries WHERE number = 1",
        "DELETE FROM entries WHERE number = 2",
        "DELETE FROM entries",
        "DROP TABLE entries",
    ],
)
def test_an_entry_changed_or_dropped_is_noticed(opened: Any, path: Path, damage: str) -> None:
    ledger = opened()
    charged(ledger, 0, "counts")
    charged(ledger, 1, "step/0")
    ledger.close()
    with sqlite3.connect(path) as database:
        database.execute(damage)
    with pytest.raises(RunError):
        opened()


def test_a_database_put_back_to_an_earlier_state_is_noticed(
    opened: Any, path: Path, tmp_path: Path
) -> None:
    charged(opened(), 0, "counts")
    opened().close()
    shutil.copy(path, tmp_path / "backup")
    charged(opened(), 1, "step/0")
    opened().close()
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(RunError, match="older"):
        opened()


@pytest.mark.parametrize("lost", ["ledger.sqlite", "ledger.head.json"])
def test_either_file_lost_is_noticed(opened: Any, path: Path, lost: str) -> None:
    charged(opened(), 0, "counts")
    opened().close()
    (path.parent / lost).unlink()
    with pytest.raises(RunError):
        opened()


def test_a_crash_between_database_and_head_file_is_no_going_back(
    opened: Any, path: Path, monkeypatch: Any
) -> None:
    ledger = opened()
    charged(ledger, 0, "counts")
    with monkeypatch.context() as patch:
        patch.setattr(HeadFile, "write", lambda self, number, head: None)
        charged(ledger, 1, "step/0")
    again = opened()
    assert len(again.entries) == 2
    assert json.loads(path.with_suffix(".head.json").read_text())["head"] == again.head


@pytest.mark.parametrize("days", [-3, 3, -4000])
def test_a_clock_that_jumps_and_comes_back_stops_no_charge_and_loses_none(
    opened: Any, days: float
) -> None:
    now = [1e9]
    ledger = opened(clock=lambda: now[0])
    charged(ledger, 0, "counts")
    now[0] += days * 86_400
    charged(ledger, 1, "step/0")
    now[0] = 1e9
    again = opened(clock=lambda: now[0])
    assert charged(again, 2, "step/1")
    assert [(entry.number, entry.round) for entry in again.entries] == [(1, 0), (2, 1), (3, 2)]


def test_the_aggregators_head_is_kept_with_the_ledger(opened: Any) -> None:
    ledger = opened()
    assert ledger.ledger_head() == LedgerHead()
    for number in (3, 5):
        ledger.keep_ledger_head(LedgerHead(number, "ab" * 32))
    assert opened().ledger_head() == LedgerHead(5, "ab" * 32)


def test_entries_can_be_read_while_a_client_runs(opened: Any, path: Path) -> None:
    ledger = opened()
    charged(ledger, 0, "counts")
    assert read_entries(path) == ledger.entries


def test_a_charge_that_failed_once_it_was_on_disk_is_known_at_once(opened: Any, path: Path) -> None:
    ledger = opened()
    database = ledger._db

    def execute(sql: str, *given: Any) -> Any:
        found = database.execute(sql, *given)
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return found

    ledger._db = SimpleNamespace(execute=execute, rollback=database.rollback)
    with pytest.raises(RunError, match="cannot be written"):
        charged(ledger, 0, "counts")
    ledger._db = database
    assert ledger.entries == read_entries(path) != ()
    assert charged(ledger, 1, "step/0")


def test_a_full_disk_is_an_error_and_no_charge(opened: Any, path: Path) -> None:
    ledger = opened()
    ledger._db.execute(
        f"PRAGMA max_page_count = {ledger._db.execute('PRAGMA page_count').fetchone()[0]}"
    )
    with pytest.raises(RunError, match="full"):
        charged(ledger, 0, "counts", run="a run with a name that does not fit a page" * 200)
    assert not ledger.entries
    assert charged(ledger, 0, "counts")
    ledger.close()
    assert len(read_entries(path)) == 1
