"""What is remembered, what is refused, and what a crash at any moment leaves."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import BudgetExceededError, PrivacyError, RunError, UnitMismatchError
from fedrec.ledgers.chain import HeadFile
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent
from fedrec_client.serving_ledger import Drawn, ServingLedger, ServingQuestion, event_of
from tests.cases import slow_but
from tests.waiting import HANG_S

LIMIT = Guarantee(10.0, 1e-5, "click", "replace")
ANSWER = Guarantee(5.0, 1e-5, "click", "replace")
DAY_S = 86_400.0


def question(
    history: str = "a", rows: str = "rows", guarantee: Guarantee = ANSWER
) -> ServingQuestion:
    return ServingQuestion(
        "0" * 16, rows, history, guarantee, event_of(mu_for(guarantee.epsilon, guarantee.delta))
    )


def drawn(asked: ServingQuestion, number: float = 1.0) -> Drawn:
    return Drawn(np.full(4, number), np.full(4, number, np.float32), 0.5, asked.price)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., ServingLedger]]:
    ledgers = list[ServingLedger]()

    def open_(limit: Guarantee = LIMIT, **options: Any) -> ServingLedger:
        for ledger in ledgers:
            ledger.close()
        ledgers[:] = [ServingLedger(path, limit=limit, **({"clock": lambda: 1e9} | options))]
        return ledgers[0]

    yield open_
    for ledger in ledgers:
        ledger.close()


def answered(
    ledger: ServingLedger, asked: ServingQuestion, number: float = 1.0
) -> tuple[Any, bool]:
    return ledger.answer(asked, lambda: drawn(asked, number))


def test_the_same_question_finds_its_answer_in_this_process_and_the_next(opened: Any) -> None:
    first, fresh = answered(opened(), question(), 1.0)
    assert fresh
    for ledger in (opened(), opened()):
        again, fresh = answered(ledger, question(), 2.0)
        assert not fresh
        assert [again.raw.tobytes(), again.sent.tobytes(), again.head] == [
            first.raw.tobytes(),
            first.sent.tobytes(),
            first.head,
        ]
    assert len(opened().entries) == 1


@pytest.mark.parametrize(
    "change", [{"history": "b"}, {"rows": "others"}, {"guarantee": replace(ANSWER, epsilon=4.0)}]
)
def test_another_history_other_rows_or_another_epsilon_are_another_question(
    opened: Any, change: dict[str, Any]
) -> None:
    ledger = opened()
    answered(ledger, question())
    assert answered(ledger, question(**change))[1]
    assert not answered(ledger, replace(question(), version="f" * 16))[1]


def test_nothing_is_drawn_where_there_is_no_room_and_the_ways_out_are_named(opened: Any) -> None:
    ledger = opened()
    for history in "abc":
        answered(ledger, question(history))
    with pytest.raises(
        BudgetExceededError, match="a fresh answer of epsilon 5 does not fit"
    ) as caught:
        ledger.answer(question("d"), lambda: pytest.fail("drawn"))
    left = math.sqrt(mu_for(10.0, 1e-5) ** 2 - 3 * mu_for(5.0, 1e-5) ** 2)
    assert ledger.epsilon_left == pytest.approx(epsilon_of(left, 1e-5), rel=1e-9)
    for way in (
        f"--epsilon {int(100 * ledger.epsilon_left) / 100:g} still fits",
        "--last",
        "--via device",
    ):
        assert way in caught.value.remedy
    fitting = Guarantee(int(100 * ledger.epsilon_left) / 100, 1e-5, "click", "replace")
    assert answered(ledger, question("d", guarantee=fitting))[1]
    assert ledger.epsilon <= 10.0


def test_answers_are_priced_for_the_person_at_its_own_clicks_and_whatever_the_history(
    opened: Any,
) -> None:
    """Noise of std .5 on means of rows no longer than 1: two histories are 2 apart at most, 4
    stds."""
    ledger = opened()
    mu = mu_for(5.0, 1e-5)
    assert ledger.epsilon_of_person() == ledger.epsilon_of_person(3) == 0.0
    for history in "ab":
        answered(ledger, question(history))
    assert ledger.epsilon_of_person() == pytest.approx(epsilon_of(4 * math.sqrt(2), 1e-5), rel=1e-9)
    assert ledger.epsilon_of_person(1) == pytest.approx(ledger.epsilon, rel=1e-9)
    assert ledger.epsilon_of_person(2) == pytest.approx(
        epsilon_of(2 * mu * math.sqrt(2), 1e-5), rel=1e-9
    )
    assert ledger.epsilon_of_person(50) == ledger.epsilon_of_person()
    assert ledger.epsilon_of_person(0) == 0.0


@pytest.mark.parametrize("fits", [0, 1, 2])
@pytest.mark.parametrize("rest", [0.01, 0.99])
def test_past_a_limit_per_user_nothing_is_drawn_whatever_was_clicked(
    opened: Any, fits: int, rest: float
) -> None:
    ledger = opened(max_user_epsilon=epsilon_of(4 * math.sqrt(fits + rest), 1e-5))
    for number in range(fits):
        answered(ledger, replace(question(f"{number}"), noise_std=0.5))
    with pytest.raises(BudgetExceededError, match=r"per user \(replace\); the limit is") as caught:
        ledger.answer(replace(question("another"), noise_std=0.5), lambda: pytest.fail("drawn"))
    assert "--via device" in caught.value.remedy
    if fits:
        # what was paid for costs nothing
        assert not answered(ledger, replace(question("0"), noise_std=0.5))[1]


def test_an_answer_with_less_noise_than_was_agreed_does_not_leave(opened: Any) -> None:
    ledger = opened()
    with pytest.raises(PrivacyError, match="less noise"):
        answered(ledger, replace(question(), noise_std=0.6))
    with pytest.raises(PrivacyError, match="less noise"):  # also where it is a little less
        answered(ledger, replace(question(), noise_std=0.5 * 1.001))
    assert not ledger.entries


def test_a_question_that_does_not_say_its_noise_is_refused_under_a_limit_per_user(
    opened: Any,
) -> None:
    with pytest.raises(BudgetExceededError, match="inf per user"):
        opened(max_user_epsilon=1e6).answer(question(), lambda: pytest.fail("drawn"))


def test_a_budget_that_renews_says_when_and_then_fits(opened: Any) -> None:
    now = [1e9]
    ledger = opened(renew_every_s=30 * DAY_S, clock=lambda: now[0])
    for day, history in enumerate("abc"):
        now[0] = 1e9 + day * DAY_S
        answered(ledger, question(history))
    with pytest.raises(BudgetExceededError) as caught:
        answered(ledger, question("d"))
    when = ledger.fits_at_s(question("d"))
    assert when == 1e9 + 30 * DAY_S
    larger = question("d", guarantee=replace(ANSWER, epsilon=9.99))
    assert ledger.fits_at_s(larger) == 1e9 + (30 + len(ledger.counting) - 1) * DAY_S
    assert "2001-10-09" in caught.value.remedy
    now[0] = when - 1
    with pytest.raises(BudgetExceededError):
        answered(ledger, question("d"))
    now[0] = when + 1
    assert answered(ledger, question("d"))[1]
    assert ledger.epsilon < 10 < ledger.epsilon_of_all_time
    assert opened().fits_at_s(question("e")) is None


def test_what_costs_other_than_agreed_or_protects_another_unit_never_enters(opened: Any) -> None:
    ledger = opened()
    asked = question()
    for event in (
        GaussianEvent("x", 9.0, "click", "replace"),
        GaussianEvent("x", asked.price.mu),
        PaddedEvent("x", asked.price.mu, 0.1),
        None,
    ):
        with pytest.raises(PrivacyError):
            ledger.answer(asked, lambda event=event: replace(drawn(asked), event=event))
    with pytest.raises(UnitMismatchError):
        answered(ledger, question(guarantee=Guarantee(5.0, 1e-5)))
    assert not ledger.entries


def test_padded_answers_are_kept_and_composed_as_such(opened: Any) -> None:
    asked = replace(question(), price=PaddedEvent("answer", 1.0, 0.25))
    answered(opened(), asked)
    ledger = opened()
    assert ledger.kept(asked) is not None
    assert ledger.kept(replace(asked, price=event_of(1.0))) is None
    assert 0 < ledger.epsilon < epsilon_of(1.0, 1e-5)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE answers SET mu = '0x1p-9' WHERE number = 1",
        "UPDATE answers SET padding = '0x1p-1' WHERE number = 1",
        "UPDATE answers SET sent = x'00' WHERE number = 2",
        "UPDATE answers SET raw = x'0000000000000000' WHERE number = 2",
        "DELETE FROM answers WHERE number = 1",
        "DELETE FROM answers WHERE number = 2",
        "DELETE FROM answers",
        "DROP TABLE answers",
    ],
)
def test_an_entry_changed_or_dropped_is_noticed(opened: Any, path: Path, damage: str) -> None:
    ledger = opened()
    answered(ledger, question("a"))
    answered(ledger, question("b"))
    ledger.close()
    with sqlite3.connect(path) as database:
        database.execute(damage)
    with pytest.raises(RunError):
        opened()


def test_a_clock_that_was_ahead_and_is_set_right_stops_no_question_and_frees_no_budget(
    opened: Any,
) -> None:
    now = [1e9 + 300 * DAY_S]
    ledger = opened(renew_every_s=30 * DAY_S, clock=lambda: now[0])
    answered(ledger, question("a"))
    spent = ledger.epsilon
    now[0] = 1e9
    answered(ledger, question("b"))  # the day after the clock was mended
    assert ledger.epsilon > spent
    now[0] += 31 * DAY_S
    assert ledger.epsilon == pytest.approx(spent)  # what was dated ahead counts until then


def test_a_ledger_put_back_is_noticed(opened: Any, path: Path, tmp_path: Path) -> None:
    answered(opened(), question("a"))
    opened().close()
    shutil.copy(path, tmp_path / "backup")
    answered(opened(), question("b"))
    opened().close()
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(RunError, match="older"):
        opened()


def test_only_its_owner_reads_it_and_one_process_at_a_time(opened: Any, path: Path) -> None:
    opened()
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(RunError, match="in use"):
        ServingLedger(path, limit=LIMIT)


# --- crashes ---


class Crash(BaseException):
    """The process ends here."""


def test_a_crash_while_drawing_costs_nothing(opened: Any) -> None:
    ledger = opened()

    def draw() -> Drawn:
        raise Crash

    with pytest.raises(Crash):
        ledger.answer(question(), draw)
    again = opened()
    assert not again.entries
    assert answered(again, question())[1]


def test_a_crash_between_the_entry_and_its_head_file_loses_neither_answer_nor_price(
    opened: Any, monkeypatch: Any
) -> None:
    ledger = opened()
    answered(ledger, question("a"))

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(HeadFile, "write", crash)
        with pytest.raises(Crash):
            answered(ledger, question("b"), 7.0)
    again, fresh = answered(opened(), question("b"), 8.0)
    assert (fresh, again.sent[0]) == (False, 7.0)
    assert len(opened().entries) == 2


def test_a_full_disk_refuses_and_nothing_is_spent(opened: Any) -> None:
    ledger = opened()
    answered(ledger, question("a"))
    big = Drawn(np.ones(100_000), np.ones(4, np.float32), 0.5, question("b").price)
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(RunError, match=r"cannot be written: .*full"):
        ledger.answer(question("b"), lambda: big)
    assert len(ledger.entries) == 1
    assert len(opened().entries) == 1
    assert answered(opened(), question("b"))[1]


_VICTIM = """
import os, signal, sys
from pathlib import Path
from fedrec_client.clicks import Clicks
from fedrec.ledgers.chain import HeadFile
from tests.recommend.conftest import Asking, PlainServer

folder, where = Path(sys.argv[1]), sys.argv[2]
server = PlainServer([folder / "models" / "first.safetensors"])

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def send(query):
    (folder / "sent").write_bytes(query.sent.tobytes())
    die()

server.recommend = send
with Asking(server, folder / "state") as recommender:
    if where == "head":
        HeadFile.write = die
    recommender.recommend(Clicks.of(["i1", "i2", "i3"]))
"""


@pytest.mark.parametrize("where", slow_but(["send"], ["head", "send"]))
def test_after_kill_9_the_answer_that_was_paid_for_is_sent_and_nothing_more_is_paid(
    served: Any, tmp_path: Path, where: str
) -> None:
    from fedrec_client.clicks import Clicks
    from tests.recommend.conftest import Asking

    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    victim = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(tmp_path), where],
        env=environment,
        timeout=HANG_S,
        check=False,
    )
    assert victim.returncode == -signal.SIGKILL
    with Asking(served, tmp_path / "state") as recommender:
        assert len(recommender.ledger.entries) == 1
        answer = recommender.recommend(Clicks.of(["i1", "i2", "i3"]))
        assert not answer.fresh
        assert len(recommender.ledger.entries) == 1
    if where == "send":
        assert served.queries[0].sent.tobytes() == (tmp_path / "sent").read_bytes()
