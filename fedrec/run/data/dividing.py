"""Ways of dividing events into training, validation and test, by the name in a scenario's [split].

A data set and a part of one are divided by the same functions; of a part any of the three may be
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Split, given, held_out_users, leave_last_out, random_split, temporal
from fedrec.errors import SettingsError
from fedrec.settings_tables.data import SplitSettings


@dataclass(frozen=True)
class Events:
    """What is divided: all events, or those to train on beside the data's own test rows and
    validation rows. some_users: a part of a larger data set."""

    train: Interactions
    test: Interactions | None = None
    validation: Interactions | None = None
    some_users: bool = False


@dataclass(frozen=True)
class Division:
    """One way. timed: whether it needs the times of events. cut: whether it cuts time, where public
    times may be given; without them it reads the cuts off all events."""

    divide: Callable[[Events, SplitSettings], Split]
    timed: bool = False
    cut: bool = False


class _BySeed(Protocol):
    def __call__(
        self, interactions: Interactions, /, *, seed: int, some_users: bool = False
    ) -> Split: ...


def _drawn(split: _BySeed) -> Callable[[Events, SplitSettings], Split]:
    return lambda events, chosen: split(
        _everything(events), seed=chosen.seed, some_users=events.some_users
    )


def _temporal(events: Events, chosen: SplitSettings) -> Split:
    return temporal(
        _everything(events), seed=chosen.seed, cuts=chosen.cuts, some_users=events.some_users
    )


def _given(events: Events, chosen: SplitSettings) -> Split:
    if events.test is None:
        raise SettingsError(
            'split.kind = "given" needs data that comes with its own test events',
            "Name them with data.test, or choose another split.kind.",
        )
    require_one_validation(events.validation is not None, chosen)
    return given(
        events.train,
        events.test,
        seed=chosen.seed,
        validation=events.validation,
        validation_share=chosen.validation_share,
        some_users=events.some_users,
    )


def require_one_validation(own: bool, chosen: SplitSettings) -> None:
    """Raises SettingsError where training rows are kept back for validation beside the data's
    own."""
    if own and chosen.validation_share:
        raise SettingsError(
            "split.validation_share keeps training rows back, but this data has validation rows",
            "Leave it out.",
        )


def _everything(events: Events) -> Interactions:
    if events.test is None:
        return events.train
    raise SettingsError("this data comes with its own test rows", 'Set split.kind = "given".')


DIVISIONS: Mapping[str, Division] = {
    "random": Division(_drawn(random_split)),
    "held-out-users": Division(_drawn(held_out_users)),
    "leave-last-out": Division(_drawn(leave_last_out), timed=True),
    "temporal": Division(_temporal, timed=True, cut=True),
    "given": Division(_given),
}
"""By `split.kind`."""
