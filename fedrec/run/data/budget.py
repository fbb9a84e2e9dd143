"""Budget of one set of people: what all runs on their data have cost together, in a file that
outlives run folders.

A line for each charge, written durably before the noise is drawn; lines form a SHA-256 chain, whose
head is also kept in a small file beside it. All charges of one file add up, whatever run, scenario
or folder they came from. By default a file is named by the SHA-256 of the files that hold people's
rows and lies in the user's state folder: a copy of the data, other public files beside it, another
output folder and a deleted run are the same people, and so is another version of the table, whose
people a sketch recognises (`people`). A table with people of several budgets asks and charges all
of them. `privacy.budget_file` names another: for people under other
ids, or a folder that several users share.

Seeded experiments are listed and not added: they are no releases, since whoever knows the seed can
remove their noise, and two of one seed can remove each other's. Trainings without noise are listed
too: no sum covers them. Invented data has no people and no file.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedrec.data.interactions import Dataset, FileDigest, digest_file
from fedrec.errors import BudgetExceededError, RunError, SettingsError
from fedrec.ledgers.chain import EntryType, HeadFile, LineFile, genesis, head_after
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit, compared
from fedrec.privacy.mixtures import PaddedEvent, epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.run.data.people import People, budgets_with, people_of, remember
from fedrec.settings_tables.training import PrivacySettings

Event = GaussianEvent | PureEvent | PaddedEvent
Noise = Literal["system", "seeded"]

_EVENTS_IN = {"behaviors.tsv", "ratings.dat", "ratings.csv", "u.data"}
_ROUNDING = 1e-9  # relative, as in `fedrec.privacy.accounting`
_EVENTS: Mapping[str, Callable[..., Event]] = {"epsilon": PureEvent, "mu": GaussianEvent}
"""By the word in a row of `_event_as_json`."""


@dataclass(frozen=True)
class BudgetCharge:
    """One charge of a training: its events all protect the same unit.

    `head` closes the chain so far."""

    number: int
    time_s: float
    training: str
    noise: Noise
    events: tuple[Event, ...]
    head: str


@dataclass(frozen=True)
class Spent:
    """What one unit has paid: private releases of `trainings` runs composed exactly; experiments
    and trainings without noise counted."""

    unit: Unit
    neighbours: Neighbours
    delta: float
    epsilon: float
    trainings: int
    experiments: int
    without_noise: int

    @property
    def words(self) -> str:
        """One line for a terminal and a report."""
        said = (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            f"{compared(self.unit, self.neighbours)} in {_counted(self.trainings)}"
        )
        if self.experiments:
            said += (
                f"; not counted: {_counted(self.experiments)} with seeded noise, which must not "
                "be released"
            )
        if self.without_noise:
            said += (
                f"; not counted: {_counted(self.without_noise)} without noise or guarantee, which "
                "no sum covers"
            )
        return said


@dataclass(frozen=True)
class DataBudget:
    """The file at `path`, and the limit that a charge must not pass (infinite epsilon: none).

    people: whose data it is, remembered beside the file with every charge. also: other budgets of
    some of these people, asked and charged too; the largest sum decides."""

    path: Path
    limit: Guarantee
    people: People | None = field(default=None, compare=False)
    also: tuple[Path, ...] = ()
    clock: Callable[[], float] = field(default=time.time, compare=False)

    def entries(self) -> tuple[BudgetCharge, ...]:
        """All charges, oldest first.

        Raises RunError where the file is damaged or older than its head file says."""
        if not self.path.exists():
            HeadFile(self.path).require_ledger()
            return ()
        with self._opened() as file:
            return tuple(file.entries)

    def spent(self) -> tuple[Spent, ...]:
        """By unit and neighbours, at the limit's delta: the most that anybody of these people has
        paid."""
        every = [one for budget in self._each() for one in budget._spent()]
        most = dict[tuple[Unit, Neighbours], Spent]()
        for one in sorted(every, key=lambda one: (one.epsilon, one.trainings)):
            most[one.unit, one.neighbours] = one
        return tuple(most[key] for key in dict.fromkeys((s.unit, s.neighbours) for s in every))

    def _each(self) -> tuple[DataBudget, ...]:
        return (replace(self, also=()), *(replace(self, path=p, also=()) for p in self.also))

    def _spent(self) -> tuple[Spent, ...]:
        entries = self.entries()
        found = list[Spent]()
        for unit, neighbours in dict.fromkeys(
            (e.events[0].unit, e.events[0].neighbours) for e in entries
        ):
            mine = [
                e
                for e in entries
                if (e.events[0].unit, e.events[0].neighbours) == (unit, neighbours)
            ]
            counted = [e for e in mine if e.noise == "system" and _private(e.events)]
            events = [event for e in counted for event in e.events]
            sorts = (
                counted,
                [e for e in mine if e.noise == "seeded" and _private(e.events)],
                [e for e in mine if not _private(e.events)],
            )
            found.append(
                Spent(
                    unit,
                    neighbours,
                    self.limit.delta,
                    epsilon_of_events(events, self.limit.delta),
                    *map(_trainings, sorts),
                )
            )
        return tuple(found)

    def require_room(self, events: Sequence[Event]) -> None:
        """Raises BudgetExceededError where a training that draws all of these would pass the
        limit."""
        for budget in self._each():
            budget._require_room(budget.entries(), events)

    def charge(self, training: str, noise: Noise, events: Sequence[Event]) -> None:
        """Durably, before noise is drawn. An experiment, or a training without noise, is written
        once: repeated, its bytes are the same.

        Raises BudgetExceededError past the limit, RunError where the line cannot be written.
        """
        if not events:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if self._own else 0o777)
            with ExitStack() as stack:  # all in one order, so that two trainings do not deadlock
                each = sorted(self._each(), key=lambda budget: budget.path)
                files = [stack.enter_context(budget._opened()) for budget in each]
                if noise == "system":
                    for budget, file in zip(each, files, strict=True):
                        budget._require_room(file.entries, events)
                if self.people is not None:  # first: a charge whose people nobody knows is lost
                    remember(self.people, self.path)
                listed = noise == "seeded" or not _private(events)
                told = (training, noise, _private(events))
                now = float(self.clock())
                for file in files:
                    entries = file.entries
                    if not listed or told not in [
                        (e.training, e.noise, _private(e.events)) for e in entries
                    ]:
                        file.append(_content(len(entries) + 1, now, training, noise, events))
        except OSError as failure:
            raise RunError(
                f"{self.path} cannot be written: {failure.strerror or failure}",
                (
                    "No noise was drawn. Free space or correct permissions, or name another "
                    "file: --set privacy.budget_file=PATH."
                ),
            ) from None

    def _require_room(self, entries: Sequence[BudgetCharge], events: Sequence[Event]) -> None:
        if not self.limit.private or not events:
            return
        same = (events[0].unit, events[0].neighbours)
        before = [
            event
            for e in entries
            if e.noise == "system" and _private(e.events)
            for event in e.events
        ]
        mine = [event for event in before if (event.unit, event.neighbours) == same]
        spent, after = (
            epsilon_of_events(some, self.limit.delta) for some in (mine, [*mine, *events])
        )
        if after > self.limit.epsilon * (1 + _ROUNDING):
            raise BudgetExceededError(
                f"the data would have paid epsilon {after:.4g} {compared(*same)}, {spent:.4g} of "
                "it before; "
                f"privacy.max_total_epsilon is {self.limit.epsilon:g}",
                f"{self.path} lists what was spent. Ask for less, or decide on a larger limit.",
            )

    def _opened(self) -> LineFile[BudgetCharge]:
        """By one process at a time, for the moment of a charge."""
        mode = 0o600 if self._own else 0o666
        return LineFile(self.path, CHARGES, head_file=HeadFile(self.path), wait=True, mode=mode)

    @property
    def _own(self) -> bool:
        """Whether it is this user's alone; who may write a named file, its owner says."""
        return self.path.parent == default_folder()


def budget_of(
    privacy: PrivacySettings, files: Iterable[FileDigest], dataset: Dataset | None = None
) -> DataBudget | None:
    """The budget of the data in these files; None where there are none, as the data is invented,
    and no file is named.

    dataset: what was read, whose people are looked for in other budgets; None where nobody has all
    ids. Raises SettingsError where there is a limit, no file is named, and nobody can know whether
    these people paid before: a new sum would begin, and the limit would be passed unseen.
    """
    read = tuple(files)
    people = sorted(file.rows or file.sha256 for file in read if not file.public)
    limit = Guarantee(privacy.max_total_epsilon, privacy.delta)
    if privacy.budget_file:
        return DataBudget(Path(privacy.budget_file), limit)
    if not people:
        return None
    if dataset is None and limit.private:
        raise SettingsError(
            "privacy.max_total_epsilon needs privacy.budget_file, one file for these people: in "
            "news and partitions they are not recognised in another version of the data",
            "Name one: privacy.budget_file=people.jsonl.",
        )
    budget = DataBudget(_named_by(people), limit)
    _take_over(_named_by(sorted(file.sha256 for file in read)), budget.path)
    if dataset is None:
        return budget
    there = people_of(dataset, default_folder())
    begun = budget.path.exists()
    known = budgets_with(there, default_folder(), certain=limit.private and not begun)
    if not begun and len(known) == 1:
        return replace(budget, path=known[0], people=there)
    # of people from several budgets each keeps its people, and who is new has this one
    also = tuple(path for path in known if path != budget.path)
    return replace(budget, people=there, also=also)


def _named_by(digests: Sequence[str]) -> Path:
    name = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return default_folder() / f"{name[:32]}.jsonl"


def _take_over(older: Path, budget: Path) -> None:
    """Charges of the file that earlier versions named by all files, public ones too. A crash in
    between takes them over twice."""
    kept = older.with_name(f"{older.name}.moved")
    if older == budget or (kept.exists() and not older.exists()):
        return
    before = DataBudget(older, Guarantee(math.inf, 0.5))
    if not before.entries():
        return
    try:
        with before._opened() as file:
            for entry in file.entries:
                taking = replace(before, path=budget, clock=partial(float, entry.time_s))
                taking.charge(entry.training, entry.noise, entry.events)
            for path in (older, HeadFile(older).path):
                path.rename(path.with_name(f"{path.name}.moved"))
    except OSError as failure:
        raise RunError(
            f"{older} cannot be moved: {failure.strerror or failure}",
            "Correct the permissions of its folder.",
        ) from None


def default_folder() -> Path:
    """Return the folder of budgets of this user of this machine."""
    return (
        Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        / "fedrec"
        / "budgets"
    )


def files_of(path: str) -> tuple[FileDigest, ...]:
    """Digests of the files at `path`, a folder's in all its folders; none for an empty path, which
    is invented data. In a folder with files of events by their official names, others are public.
    """
    if not path:
        return ()
    root = Path(path)
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    events = [p for p in files if p.name in _EVENTS_IN or p.suffix == ".inter"] or files
    return tuple(digest_file(file, public=file not in events) for file in files)


def _private(events: Sequence[Event]) -> bool:
    return all(math.isfinite(e.epsilon if isinstance(e, PureEvent) else e.mu) for e in events)


def _trainings(entries: Iterable[BudgetCharge]) -> int:
    """A training has the name of its folder, where another may train after it: one for each time
    that the first release of a name was charged."""
    firsts = dict[str, str]()
    return sum(
        any(e.name == firsts.setdefault(entry.training, entry.events[0].name) for e in entry.events)
        for entry in entries
    )


def _counted(trainings: int) -> str:
    return f"{trainings} training{'' if trainings == 1 else 's'}"


def _content(
    number: int, time_s: float, training: str, noise: Noise, events: Sequence[Event]
) -> dict[str, Any]:
    unit = events[0].unit
    neighbours = events[0].neighbours
    if any((e.unit, e.neighbours) != (unit, neighbours) for e in events):
        raise ValueError("events of different units cannot be charged together")
    return {
        "number": number,
        "time_s": time_s,
        "training": training,
        "noise": noise,
        "unit": unit,
        "neighbours": neighbours,
        "events": [_event_as_json(e) for e in events],
    }


def _event_as_json(event: Event) -> list[Any]:
    if isinstance(event, PureEvent):
        return [
            event.name,
            "epsilon",
            event.epsilon.hex(),
            "" if event.told is None else event.told.hex(),
        ]
    # padding hides a little more: without it the price is an upper bound
    return [event.name, "mu", event.mu.hex(), ""]


def _event(written: Sequence[str], unit: Unit, neighbours: Neighbours) -> Event:
    name, kind, value, told = written
    numbers = [float.fromhex(number) for number in (value, told) if number]
    event: Event = _EVENTS[kind](name, *numbers, unit=unit, neighbours=neighbours)
    return event


def _read(_: int, line: Mapping[str, Any], head: str) -> BudgetCharge:
    events = tuple(_event(event, line["unit"], line["neighbours"]) for event in line["events"])
    if not events:
        raise ValueError("a charge of nothing")
    return BudgetCharge(
        line["number"], line["time_s"], line["training"], line["noise"], events, head
    )


CHARGES = EntryType(genesis("fedrec data budget 1"), head_after, _read)
