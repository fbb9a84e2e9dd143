"""Sum of everything that one person paid: trainings, retrainings, answers and clicks on news, from
the ledgers that were charged for them.

Unit "user", neighbours "replace": all data of one person exchanged for any other, at one delta.
A training per user (add/remove) of mu-GDP is 2 mu-GDP for that, since an exchange is one step out
and one in (group privacy, Dong, Roth, Su 2022, Thm 2.14). What is priced per click is priced for
the person by `news.person`: its clicks where their number is given, else any history. All releases
together are composed exactly (`privacy.mixtures`), whichever came first: at most the basic sum of
epsilons, with the delta of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import RunError, SettingsError
from fedrec.ledgers.sqlite_ledger import reading
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, epsilon_of_events
from fedrec.privacy.person import NEIGHBOURS, UNIT, of_any_history, of_own_history
from fedrec.run.data.budget import DataBudget
from fedrec.storage import finite
from fedrec_client import click_ledger, ledger, serving_ledger
from fedrec_client.click_ledger import of_person, runs_of


@dataclass(frozen=True)
class PaidBy:
    """What one ledger charged: path, sort ("trainings", "answers", "news") and epsilon."""

    ledger: Path
    sort: str
    releases: int
    epsilon: float


@dataclass(frozen=True)
class PersonAccount:
    """What one person paid by each ledger, and all of it together, per user (replace) at delta."""

    parts: tuple[PaidBy, ...]
    epsilon: float
    delta: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        parts = [{**asdict(part), "ledger": str(part.ledger)} for part in self.parts]
        return dict(finite({"parts": parts, "epsilon": self.epsilon, "delta": self.delta}))

    @property
    def words(self) -> str:
        """A line for each ledger and one for the sum."""
        lines = [
            f"{part.sort:10} epsilon {part.epsilon:8.4g}  {part.releases} releases  {part.ledger}"
            for part in self.parts
        ]
        basic = sum(part.epsilon for part in self.parts)
        said = (
            f"one person  epsilon {self.epsilon:.4g} at delta {self.delta:g} per user (replace), "
            f"composed exactly; the plain sum is {basic:.4g} at delta "
            f"{len(self.parts) * self.delta:g}"
        )
        return "\n".join([*lines, said])


def account_of_person(
    *ledgers: str | Path, clicks: int | None = None, delta: float = 1e-5
) -> PersonAccount:
    """What one person paid in all of these ledgers together.

    Args:
        ledgers: Files that were charged for this person: a client's or a site's `ledger.sqlite` or
            `clicks.sqlite`, a device's ledger of answers, a budget file of runs on one machine.
        clicks: In the person's history, for answers; without it whatever a history may hold.
        delta: At which epsilon is stated.

    Returns:
        Epsilon per user (replace) of all ledgers together, and of each.

    Raises:
        RunError: A file is missing, damaged, or no ledger.
        SettingsError: delta is not between 0 and 1.

    >>> import fedrec, tempfile
    >>> path = f"{tempfile.mkdtemp()}/people.jsonl"
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.Popularity(epsilon=1, settings={"privacy.budget_file": path}).fit(data)
    >>> round(fedrec.account_of_person(path).epsilon, 2)
    2.15
    """
    if not 0 < delta < 1:
        raise SettingsError(f"delta = {delta:g} is no probability", "Give one, as 1e-5.")
    parts = list[PaidBy]()
    everything = list[Event]()
    for name in ledgers:
        path = Path(name)
        sort, events = _charged(path, clicks)
        everything += events
        parts.append(PaidBy(path, sort, len(events), epsilon_of_events(events, delta)))
    return PersonAccount(tuple(parts), epsilon_of_events(everything, delta), delta)


def _charged(path: Path, clicks: int | None) -> tuple[str, list[Event]]:
    if not path.is_file():
        raise RunError(f"{path} is not there", "Give the files of this person's ledgers.")
    if path.suffix == ".jsonl":
        return "trainings", _of_budget(path)
    with reading(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        columns = {row[1] for row in database.execute("PRAGMA table_info(entries)")}
    if "answers" in tables:
        return "answers", _of_answers(path, clicks)
    kinds: Mapping[str, tuple[str, Callable[[Path], list[Event]]]] = {
        "releases": ("trainings", _of_rounds),
        "kind": ("news", _of_clicks),
    }
    for column, (sort, events) in kinds.items():
        if column in columns:
            return sort, events(path)
    raise RunError(
        f"{path} is no ledger of a person",
        "Give a client's ledger, a device's ledger of answers, or a budget file; an aggregator's "
        "is of everybody.",
    )


def _of_budget(path: Path) -> list[Event]:
    """Seeded experiments are no releases. News is charged there as a whole, and per click."""
    entries = DataBudget(path, Guarantee(1.0, 0.5)).entries()
    found = list[Event]()
    for entry in entries:
        if entry.noise == "seeded":
            continue
        if entry.events[0].unit != UNIT:
            raise RunError(
                f"{path} was charged per {entry.events[0].unit}, which does not say what a person "
                "paid",
                "Give the clients' ledgers of clicks (clicks.sqlite) for that.",
            )
        found += _exchanged(entry.events)
    return found


def _of_rounds(path: Path) -> list[Event]:
    return _exchanged([e for entry in ledger.read_entries(path) for e in entry.events])


def _exchanged(events: Sequence[Event]) -> list[Event]:
    """One step out and one in; what is of replacement already costs what it costs. Of other
    releases than Gaussian ones nothing is known here: they cost everything."""
    return [
        event
        if event.neighbours == NEIGHBOURS
        else GaussianEvent(
            event.name,
            2 * event.mu if isinstance(event, GaussianEvent) else math.inf,
            event.unit,
            NEIGHBOURS,
        )
        for event in events
    ]


def _of_answers(path: Path, clicks: int | None) -> list[Event]:
    answers = serving_ledger.read_answers(path)
    if clicks is None:
        return [of_any_history(one.event, one.noise_std) for one in answers]
    return [of_own_history(one.event, one.noise_std, clicks) for one in answers if clicks]


def _of_clicks(path: Path) -> list[Event]:
    runs = runs_of(click_ledger.read_entries(path))
    return of_person([(entry.price, entry.bound) for entry in runs])
