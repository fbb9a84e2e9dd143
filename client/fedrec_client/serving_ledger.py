"""Ledger of what one person's clicks have cost in private serving, with every noised answer that
was paid for.

An answer and its price are written in one transaction, and only what has been written leaves. So
there is no moment at which a crash loses an answer that was paid for, or lets one out that was not;
a repeated question finds the answer and costs nothing. Entries form a SHA-256 chain over answers
and prices, whose head is also kept beside the database (`fedrec.ledgers`).

Guarantee: all answers of any period of `renew_every_s` seconds together are (epsilon, delta) =
`limit`; of all time where there is no period; unit "click", neighbours "replace". Proof: one click
is seen by no more than all of them, and all are composed, exactly where they are Gaussian
(`privacy.click_accounting`), however each was chosen after those before. With `max_user_epsilon`
they are that, too, per user (replace): all clicks of the person exchanged for any others
(`news.person`), whatever they are, so that what is refused does not depend on them. A fresh answer
is drawn when the history changes. *When* it changes is public: neighbours change at the same
moments. So an answer is remembered by the number of changes before it (`edit_of`), not by what the
history holds: an earlier history that comes back is a new one, and every event of it counts as a
change, whatever a model takes for a click.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import BudgetExceededError, PrivacyError
from fedrec.ledgers import sqlite_ledger
from fedrec.ledgers.chain import EntryType, genesis, head_after
from fedrec.ledgers.sqlite_ledger import LedgerTable, SqliteLedger
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import ClickAccountant, Cohort
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent, epsilon_of_events
from fedrec.privacy.person import of_any_history, of_own_history

_COLUMNS = (
    "number",
    "time_s",
    "version",
    "asked_with",
    "history",
    "mu",
    "padding",
    "noise_std",
    "raw",
    "sent",
    "head",
)


Event = GaussianEvent | PaddedEvent
"""What an answer may cost."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS history (
    one INTEGER PRIMARY KEY CHECK (one = 1), edit INTEGER NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY, time_s REAL NOT NULL, version TEXT NOT NULL,
    asked_with TEXT NOT NULL, history TEXT NOT NULL,
    mu TEXT NOT NULL, padding TEXT NOT NULL, noise_std TEXT NOT NULL,
    raw BLOB NOT NULL, sent BLOB NOT NULL, head TEXT NOT NULL
);
"""
# relative; an answer that takes all that is left reaches the limit up to the last bits
_ROUNDING = 1e-9
_CLICK = Guarantee(1.0, 0.5, "click", "replace")


@dataclass(frozen=True)
class ServingQuestion:
    """What an answer is remembered by. asked_with: digest of the public numbers of its release;
    history: its `edit_of`.

    version: of the bundle it is asked with; it does not tell questions apart. price: of a fresh
    answer with `guarantee`; noise_std: of its entries.
    """

    version: str
    asked_with: str
    history: str
    guarantee: Guarantee
    price: Event
    noise_std: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """One answer: raw (B,) is the release, sent (B,) what leaves of it, noise_std: of each entry of
    raw; event: its price."""

    raw: npt.NDArray[np.float64]
    sent: npt.NDArray[np.float32]
    noise_std: float
    event: object


@dataclass(frozen=True)
class PaidAnswer:
    """An answer that was paid for. `head` closes the chain so far."""

    number: int
    time_s: float
    version: str
    asked_with: str
    history: str
    mu: float
    padding: float
    noise_std: float
    raw: npt.NDArray[np.float64]
    sent: npt.NDArray[np.float32]
    head: str

    @property
    def event(self) -> Event:
        """What it cost each click of the history."""
        return event_of(self.mu, self.padding)


def event_of(mu: float, padding: float = 0.0) -> Event:
    """The price of one answer: Gaussian, inside padding where there is some."""
    return (
        PaddedEvent("answer", mu, padding)
        if padding
        else GaussianEvent("answer", mu, "click", "replace")
    )


def _read(_: int, row: tuple[Any, ...], head: str) -> PaidAnswer:
    number, time_s, version, asked_with, history, *exact, raw, sent = row
    mu, padding, noise_std = (float.fromhex(text) for text in exact)
    release = np.frombuffer(raw, np.float64)
    left = np.frombuffer(sent, np.float32)
    return PaidAnswer(
        number, time_s, version, asked_with, history, mu, padding, noise_std, release, left, head
    )


ANSWERS = LedgerTable(
    "answers",
    _COLUMNS,
    EntryType(
        genesis("fedrec serving ledger 1"), lambda before, row: head_after(before, *row), _read
    ),
)


class ServingLedger(SqliteLedger[PaidAnswer]):
    """An open ledger of answers. One process at a time."""

    table = ANSWERS
    schema = _SCHEMA

    def __init__(
        self,
        path: Path,
        *,
        limit: Guarantee,
        max_user_epsilon: float = math.inf,
        renew_every_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or begin the ledger at `path`.

        Raises RunError where it is in use, damaged, or older than it was."""
        limit.require_same_unit(_CLICK)
        self.limit = limit
        self.max_user_epsilon = max_user_epsilon
        self.renew_every_s = renew_every_s
        super().__init__(path, clock=clock)

    @property
    def epsilon(self) -> float:
        """What counts against the limit now, at its delta."""
        return self._counting().epsilon

    @property
    def counting(self) -> tuple[PaidAnswer, ...]:
        """Those that count against the limit now."""
        return tuple(answer for answer in self._entries if self._counts(answer))

    def epsilon_of_person(self, clicks: int | None = None) -> float:
        """Epsilon of what counts against the limit now, per user (replace): for a person with so
        many clicks, or whatever the histories."""
        found = self.counting
        if clicks is None:
            return epsilon_of_events(
                [of_any_history(answer.event, answer.noise_std) for answer in found],
                self.limit.delta,
            )
        return epsilon_of_events(
            [of_own_history(answer.event, answer.noise_std, clicks) for answer in found if clicks],
            self.limit.delta,
        )

    @property
    def epsilon_of_all_time(self) -> float:
        """Epsilon of every answer there was, at the limit's delta."""
        return epsilon_of_events([answer.event for answer in self._entries], self.limit.delta)

    @property
    def epsilon_left(self) -> float:
        """The largest Gaussian answer that still fits, at the limit's delta.

        Not the difference: guarantees do not add up plainly."""
        if not self.limit.private:
            return self.limit.epsilon
        left = mu_for(self.limit.epsilon, self.limit.delta) ** 2 - sum(
            answer.mu**2 for answer in self._entries if self._counts(answer)
        )
        return epsilon_of(left**0.5, self.limit.delta) if left > 0 else 0.0

    def edit_of(self, digest: str) -> str:
        """What the history of this digest is remembered by: the number of changes up to now, and
        the digest.

        Called with every history before a question is made of it; a history that differs from the
        one before is a change. Raises RunError where the change cannot be written down.
        """
        row = self._db.execute("SELECT edit, digest FROM history").fetchone() or (0, "")
        edit = row[0] if row[1] == digest else row[0] + 1
        if edit != row[0]:
            with self._durably() as database:
                database.execute("INSERT OR REPLACE INTO history VALUES (1, ?, ?)", (edit, digest))
        return f"{edit}-{digest}"

    def kept(self, question: ServingQuestion) -> PaidAnswer | None:
        """The answer that was paid for already, if there is one."""
        asked = (question.asked_with, question.history, question.price)
        return next(
            (a for a in reversed(self._entries) if (a.asked_with, a.history, a.event) == asked),
            None,
        )

    def last(self, asked_with: str) -> PaidAnswer | None:
        """The newest answer to any history, for public numbers that did not change since."""
        return next(
            (answer for answer in reversed(self._entries) if answer.asked_with == asked_with), None
        )

    def fits_at_s(self, question: ServingQuestion) -> float | None:
        """Seconds since 1970 when a fresh answer fits, None for never."""
        if self.renew_every_s is None:
            return None
        counting = [answer for answer in self._entries if self._counts(answer)]
        for dropped in range(len(counting) + 1):
            with suppress(BudgetExceededError):
                self._ledger(counting[dropped:]).charge_history(question.price)
                return (
                    self._clock()
                    if not dropped
                    else counting[dropped - 1].time_s + self.renew_every_s
                )
        return None

    def answer(
        self, question: ServingQuestion, draw: Callable[[], Drawn]
    ) -> tuple[PaidAnswer, bool]:
        """The kept answer, or one that `draw` makes, and whether it is fresh.

        There must be room before anything is drawn, and the price is on disk before anything drawn
        can leave. Raises BudgetExceededError past the limit, RunError where the entry cannot be
        written,
        PrivacyError where what was drawn does not cost what was agreed.
        """
        if (known := self.kept(question)) is not None:
            return known, False
        question.guarantee.require_same_unit(self.limit)
        self._require_room(question)
        drawn = draw()
        if (
            not isinstance(drawn.event, Event)
            or replace(drawn.event, name="answer") != question.price
        ):
            raise PrivacyError(
                "the answer does not cost what was agreed",
                "Nothing left this device. Use another model.",
            )
        if drawn.noise_std < question.noise_std * (1 - _ROUNDING):
            raise PrivacyError(
                "the answer has less noise than was agreed",
                "Nothing left this device. Use another model.",
            )
        exact = [
            question.price.mu, getattr(question.price, "padding", 0.0), float(drawn.noise_std)
        ]  # fmt: skip
        return self._append(
            question.version,
            question.asked_with,
            question.history,
            *(number.hex() for number in exact),
            np.asarray(drawn.raw, np.float64).tobytes(),
            np.asarray(drawn.sent, np.float32).tobytes(),
        ), True

    def _counts(self, answer: PaidAnswer) -> bool:
        return self.renew_every_s is None or answer.time_s > self._clock() - self.renew_every_s

    def _counting(self) -> ClickAccountant:
        return self._ledger([answer for answer in self._entries if self._counts(answer)])

    def _ledger(self, answers: Iterable[PaidAnswer]) -> ClickAccountant:
        return ClickAccountant(
            self.limit, (Cohort("history", tuple(answer.event for answer in answers)),)
        )

    def _require_room(self, question: ServingQuestion) -> None:
        try:
            self._counting().charge_history(question.price)
        except BudgetExceededError:
            cause = (
                f"a fresh answer of epsilon {question.guarantee.epsilon:g} does not fit: "
                f"{self.epsilon:.4g} of {self.limit} is spent"
            )
            raise BudgetExceededError(cause, self._possible(question)) from None
        self._require_room_of_person(question)

    def _require_room_of_person(self, question: ServingQuestion) -> None:
        """Without a look at the history."""
        if math.isinf(self.max_user_epsilon):
            return
        before = [of_any_history(answer.event, answer.noise_std) for answer in self.counting]
        after = epsilon_of_events(
            [*before, of_any_history(question.price, question.noise_std)], self.limit.delta
        )
        if after > self.max_user_epsilon * (1 + _ROUNDING):
            cause = (
                f"a fresh answer would bring all answers to epsilon {after:.4g} per user "
                f"(replace); the limit is {self.max_user_epsilon:g}"
            )
            last = (
                "--last repeats the last answer for nothing; "
                if self.last(question.asked_with)
                else ""
            )
            raise BudgetExceededError(
                cause,
                (
                    f"A smaller --epsilon costs less; {last}--via device ranks on this device and "
                    "spends nothing."
                ),
            )

    def _possible(self, question: ServingQuestion) -> str:
        ways = [
            f"--epsilon {int(self.epsilon_left * 100) / 100:g} still fits"
            if self.epsilon_left > 0.01
            else ""
        ]
        if (when := self.fits_at_s(question)) is not None:
            ways.append(
                f"this one fits from {time.strftime('%Y-%m-%d %H:%M', time.gmtime(when + 60))} UTC"
            )
        ways.append(
            "--last repeats the last answer for nothing" if self.last(question.asked_with) else ""
        )
        return "; ".join(
            [way for way in ways if way] + ["--via device ranks on this device and spends nothing."]
        )


def read_answers(path: Path) -> tuple[PaidAnswer, ...]:
    """The answers of a ledger, verified, also while a device has it open.

    Raises RunError where it is missing or damaged."""
    return sqlite_ledger.read_entries(path, ANSWERS)
