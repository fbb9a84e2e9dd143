"""Splits: what training may see, what a user may show, and what must be predicted. Each is checked
for leaks.

Each line: training; what a fold's users show; what must be predicted of them.

- random: 80% of the events; train; 10% of the events
- held-out-users: all events of 80% of the users; 80% of each held-out user; the other 20% (Liang et
  al. 2018)
- temporal: events up to the first cut in time; train; events up to the second cut, and later ones
- leave-last-out: all but each user's last two events; train; the last but one, and the last
- given: the source's train events; train; the source's validation, and its test
- new-items: events on nine tenths of the items; train; those on the others (from Python alone)

Where an event goes is a function of the seed, its user's id, its item's id and, where times count,
of its user's own times and of public cuts: one person more or less in the data changes no other
person's rows. Shares are therefore met in expectation, not to the event. The one exception: a
temporal split without `cuts` reads them off the data (80% and 90% of the events), and says so in
`Split.not_covered`. So a part of a data set, some of its users with all of their events, is divided
as within the whole (`some_users`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import Words, below
from fedrec.errors import DataError, LeakageError
from fedrec.randomness import Streams

SplitKind = Literal["random", "held-out-users", "temporal", "leave-last-out", "given", "new-items"]
_TRAIN = 0
_VALIDATION = 1
_TEST = 2
"""Codes of the three parts: an event's part is a byte in an array, and grows with time."""
_REMEDY = (
    "Make the split with a function of fedrec.data.splits, from one data set without duplicates."
)


@dataclass(frozen=True)
class Fold:
    """What is known of users when predicting (`history`) and what is to be predicted (`targets`),
    over the same users and items.

    users: (num_users,) int32, the data set's number of each user of the fold; None when the fold
    has the users of train. among: (num_items,) which items lists are made of; None for all.
    """

    history: Interactions
    targets: Interactions
    users: Int32s | None = None
    among: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Split:
    """One division of a data set. `cuts` are the last time of train and of validation (temporal
    only).

    train_users: (train.num_users,) int32, the data set's number of each user of train; None when
    train has them all. not_covered: sentences on what was read off all users' data, so that no
    guarantee for training covers it. follows: whether lists are of what follows the history in
    time: the latest rows were held out, or none. Rows that are held out at random lie between those
    that are kept.
    """

    kind: SplitKind
    seed: int
    train: Interactions
    validation: Fold
    test: Fold
    train_users: Int32s | None = None
    cuts: tuple[int, int] | None = None
    not_covered: tuple[str, ...] = ()
    follows: bool = False

    def describe(self) -> dict[str, object]:
        """Kind, seed, sizes and a SHA-256 of who has which event where: what a run records."""
        sizes = {name: len(part) for name, part in _parts(self).items()}
        described = {
            "kind": self.kind,
            "seed": self.seed,
            "events": sizes,
            "cuts": self.cuts,
            "not_covered": self.not_covered,
        }
        return {**described, "sha256": _digest(self)}


def random_split(interactions: Interactions, *, seed: int, some_users: bool = False) -> Split:
    """Each event to train with probability .8, to validation .1, to test .1, by a hash of the seed,
    its user's and its item's id.

    some_users: these are some users of a larger data set; any part may then be empty. Raises
    DataError where a part stays empty.
    """
    part = _drawn_parts(interactions.draws(_key(seed)), 0.1)
    if not some_users:
        _require_all(part, "events", "a random 80/10/10 split")
    return _checked(_by_event(interactions, part, "random", seed))


def temporal(
    interactions: Interactions,
    *,
    seed: int,
    cuts: tuple[int, int] | None = None,
    some_users: bool = False,
) -> Split:
    """Events up to the first cut to train, up to the second to validation, later ones to test;
    equal times stay together.

    cuts: public times in seconds. None takes those after 80% and 90% of the events: a fact of all
    users' data, see `not_covered`. The seed is recorded and changes nothing. some_users: as for
    `random_split`; there must be cuts then. Raises DataError where times are missing, mostly one
    value, or more than 1% zero, or where a part stays empty; ValueError on cuts that do not rise.
    """
    if some_users and cuts is None:
        raise ValueError("cuts read off some users are not those of all")
    times = _known_times(interactions, some_users=some_users)
    if cuts is not None and not cuts[0] < cuts[1]:
        raise ValueError(f"the second cut must come after the first, found {cuts}")
    first, second = cuts or (int(np.quantile(times, share, method="lower")) for share in (0.8, 0.9))
    part = (np.int8(_TRAIN) + (times > first) + (times > second)).astype(np.int8)
    if cuts is None:
        _require(
            len(np.unique(part)) == 3,
            "too many events share their time to cut the last 20% in two",
            "Choose another split.",
        )
    if not some_users:
        _require_all(part, "events", f"a split in time at {first} and {second}")
    said = (
        ()
        if cuts
        else (
            (
                f"the cuts in time of the split ({first}, {second}), read off all events; "
                "split.cuts gives public ones"
            ),
        )
    )
    return _checked(
        replace(
            _by_event(interactions, part, "temporal", seed),
            cuts=(first, second),
            not_covered=said,
            follows=True,
        )
    )


def leave_last_out(interactions: Interactions, *, seed: int, some_users: bool = False) -> Split:
    """Each user's last event to test, the one before to validation; users with fewer than three
    events stay in train.

    A hash of the seed, the user's and the item's id breaks ties between equal times. some_users: as
    for `random_split`. Raises DataError where times are missing, mostly one value, or more than 1%
    zero.
    """
    times = _known_times(interactions, some_users=some_users)
    ties = (interactions.draws(_key(seed)) >> np.uint64(1)).astype(np.int64)
    sizes = np.diff(interactions.user_ptr)
    part = np.full(len(interactions), _TRAIN, dtype=np.int8)
    for which, left in ((_TEST, 3), (_VALIDATION, 2)):
        left_over = np.repeat(sizes >= 3, sizes) & (part == _TRAIN)
        if some_users and not left_over.any():
            break
        _require(bool(left_over.any()), "no user has three events", "Choose another split.")
        events = np.flatnonzero(left_over)
        starts = np.concatenate([[0], np.cumsum(sizes[sizes >= 3] - (3 - left))[:-1]])
        part[events[_latest(times[events], ties[events], starts)]] = which
    return _checked(replace(_by_event(interactions, part, "leave-last-out", seed), follows=True))


def held_out_users(
    interactions: Interactions, *, seed: int, share: float = 0.1, some_users: bool = False
) -> Split:
    """Train on some users, predict for others from 80% of their events (Liang et al. 2018, section
    4.2).

    Each user goes to validation and to test with probability `share`, by a hash of the seed and the
    user's id. A number of held-out users, as in the paper, would be shared out among all users, and
    one more would move another. Users of each part are numbered anew, in the data set's order; a
    held-out user with one event has history only. some_users: as for `random_split`. Raises
    DataError where a part stays empty.
    """
    active = np.flatnonzero(np.diff(interactions.user_ptr) > 0).astype(np.int32)
    part = _drawn_parts(interactions.user_draws(Streams(seed).key("split-users"))[active], share)
    if not some_users:
        _require_all(part, "users with events", "a split by users")
    train, validation, test = (active[part == which] for which in (_TRAIN, _VALIDATION, _TEST))
    folds = [_user_fold(interactions, users, seed) for users in (validation, test)]
    return _checked(
        Split(
            "held-out-users",
            seed,
            interactions.users_subset(train),
            folds[0],
            folds[1],
            train_users=train,
        )
    )


def given(
    train: Interactions,
    test: Interactions,
    *,
    seed: int,
    validation: Interactions | None = None,
    validation_share: float = 0.0,
    some_users: bool = False,
) -> Split:
    """The source's own parts: all of `train` is trained on. `test` is predicted from `train` alone,
    without the validation events.

    validation_share: where the source has no validation events, each train event is kept for it
    with this probability, by a hash of the seed and its ids; with 0 there is no validation.
    some_users: as for `random_split`. Raises LeakageError where parts share an event, DataError
    where a part stays empty that a share asks for or no test user has train events, ValueError
    where there are validation events and a share.
    """
    tested, unknown = users_without_history(train, test)
    _require(
        some_users or not tested or unknown < tested,
        f"none of the {tested:,} users with test rows has training rows",
        "Divide the rows of each user, or leave it to split.kind = random or held-out-users.",
    )
    if validation is not None and validation_share:
        raise ValueError(
            f"the source has validation events, and {validation_share} of train were to be kept too"
        )
    if validation is not None:
        return _checked(Split("given", seed, train, Fold(train, validation), Fold(train, test)))
    # not that of a random split, which may have made these parts by the same seed
    key = Streams(seed).key("split-given")
    kept = ~below(train.draws(key), validation_share)
    too_few = (
        f"{len(train)} train events are too few to keep {validation_share:g} of them for validation"
    )
    _require(
        some_users or (bool(kept.any()) and not (validation_share and kept.all())),
        too_few,
        "Use more events.",
    )
    history = train.select(kept)
    return _checked(
        Split("given", seed, history, Fold(history, train.select(~kept)), Fold(history, test))
    )


def new_items(whole: Interactions, new: npt.NDArray[np.bool_], *, seed: int) -> Split:
    """Events on known items to train, those on `new` (num_items,) to test, whose lists are made of
    new items alone; no validation.

    Raises DataError where there are no events on either."""
    of_new = new[whole.items]
    _require(
        bool(of_new.any()) and not of_new.all(),
        "the items left out, or those that stay, have no events",
        "Use more events, or another seed.",
    )
    train = whole.select(~of_new)
    nothing = Fold(train, whole.select(np.zeros(len(whole), np.bool_)))
    test = Fold(train, whole.select(of_new), among=new)
    return _checked(Split("new-items", seed, train, nothing, test))


def users_without_history(history: Interactions, targets: Interactions) -> tuple[int, int]:
    """How many users have events that are to be predicted, and how many of these have no history:
    they get the list for nobody in particular."""
    tested = np.diff(targets.user_ptr) > 0
    return int(tested.sum()), int((tested & (np.diff(history.user_ptr) == 0)).sum())


def check_no_leak(split: Split) -> None:
    """Raise LeakageError when training, or a fold's history, shows what is to be predicted.

    An event of train or of a history that is also a target; a target in both folds; a held-out user
    in train or in both folds; with a temporal split, a train event after the cut or a target before
    it.
    """
    folds = {"validation": split.validation, "test": split.test}
    owners = {"train": split.train_users} | {name: fold.users for name, fold in folds.items()}
    for name, fold in folds.items():
        _check_disjoint(
            fold.history, fold.targets, f"the history of {name}", f"the targets of {name}"
        )
        if owners[name] is None and fold.history is not split.train:
            _check_disjoint(split.train, fold.targets, "train", f"the targets of {name}")
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        _check_users(owners[one], owners[other], one, other)
    if split.validation.users is None:
        _check_disjoint(split.validation.targets, split.test.targets, "validation", "test")
    if split.cuts is not None:
        _check_order(split, split.cuts)


def require_unseen(seen: Interactions, targets: Interactions) -> None:
    """Raise LeakageError where an event that is to be predicted is among those of a training, by
    the ids of its user and item; the two may be of different splits."""
    key = Streams(0).key("seen")
    again = int(np.isin(targets.draws(key), seen.draws(key)).sum())
    if again:
        raise LeakageError(
            f"the model was trained on {again:,} of the {len(targets):,} events that it is to "
            "predict",
            "Train on the training set and evaluate on the test set of one call of split.",
        )


def _require(holds: bool, cause: str, remedy: str) -> None:
    if not holds:
        raise DataError(cause, remedy)


def _checked(split: Split) -> Split:
    check_no_leak(split)
    return split


def _key(seed: int) -> bytes:
    return Streams(seed).key("split")


def _drawn_parts(draws: Words, share: float) -> npt.NDArray[np.int8]:
    """The part of each draw: the first `share` of all words is test, the next is validation."""
    tested = below(draws, share)
    kept_back = below(draws, 2 * share)
    return np.where(tested, _TEST, np.where(kept_back, _VALIDATION, _TRAIN)).astype(np.int8)


def _require_all(part: npt.NDArray[np.int8], what: str, division: str) -> None:
    names = {"train": _TRAIN, "validation": _VALIDATION, "test": _TEST}
    empty = [name for name, which in names.items() if not (part == which).any()]
    _require(
        not empty,
        f"{len(part)} {what} leave no {' and no '.join(empty)} in {division}",
        "Use more data, or another split or seed.",
    )


def _by_event(
    events: Interactions, part: npt.NDArray[np.int8], kind: SplitKind, seed: int
) -> Split:
    train, validation, test = (
        events.select(part == which) for which in (_TRAIN, _VALIDATION, _TEST)
    )
    return Split(kind, seed, train, Fold(train, validation), Fold(train, test))


def _user_fold(interactions: Interactions, users: Int32s, seed: int) -> Fold:
    """80/20 within each user: of n >= 2 events max(1, round(n / 5)) are targets, those of the
    smallest draws."""
    events = interactions.users_subset(users)
    sizes = np.diff(events.user_ptr)
    order = np.lexsort((events.draws(_key(seed)), events.users))
    rank = np.empty(len(events), dtype=np.int64)
    rank[order] = np.arange(len(events)) - np.repeat(events.user_ptr[:-1], sizes)
    targets = np.where(sizes >= 2, np.maximum(1, np.round(sizes / 5)), 0).astype(np.int64)
    chosen = rank < np.repeat(targets, sizes)
    return Fold(events.select(~chosen), events.select(chosen), users)


def _latest(times: Int64s, ties: Int64s, starts: Int64s) -> Int64s:
    """The index of the latest event of each segment that begins at `starts`; of equal times the one
    with the largest tie-breaker."""
    lengths = np.diff(np.append(starts, len(times)))
    candidates = np.where(times == np.repeat(np.maximum.reduceat(times, starts), lengths), ties, -1)
    return np.flatnonzero(candidates == np.repeat(np.maximum.reduceat(candidates, starts), lengths))


def _known_times(interactions: Interactions, *, some_users: bool) -> Int64s:
    """The times, when they can order events. Of some users nothing follows for all."""
    times = interactions.times
    if times is None:
        raise DataError(
            "the events have no times",
            "Name their column: data.columns.timestamp = ... (time= in Python). Without times "
            "choose the random or the held-out-users split.",
        )
    if some_users:
        return times
    remedy = (
        "Times that are unknown cannot order events: choose the random or the held-out-users split."
    )
    _require(len(times) > 0, "there are no events", "Check the data.")
    unknown = float(np.mean(times == 0))
    _require(unknown <= 0.01, f"{unknown:.1%} of the times are 0, which means unknown", remedy)
    common = float(np.unique(times, return_counts=True)[1].max() / len(times))
    _require(common <= 0.5, f"{common:.1%} of the events have the same time", remedy)
    return times


def _check_disjoint(one: Interactions, other: Interactions, name: str, other_name: str) -> None:
    """No (user, item) in both."""
    if (one.num_users, one.num_items) != (other.num_users, other.num_items):
        raise LeakageError(
            f"{name} and {other_name} number their users or items differently", _REMEDY
        )
    keys = _keys(one)
    sought = _keys(other)
    place = np.searchsorted(keys, sought)
    inside = place < len(keys)
    shared = np.flatnonzero(keys[place[inside]] == sought[inside])
    if len(shared):
        user, item = divmod(int(sought[inside][shared[0]]), one.num_items)
        raise LeakageError(
            (
                f"{len(shared)} events are in {name} and in {other_name}, the first: user "
                f"{user}, item {item}"
            ),
            _REMEDY,
        )


def _keys(events: Interactions) -> Int64s:
    keys = events.users.astype(np.int64) * events.num_items + events.items
    return keys if bool(np.all(keys[1:] >= keys[:-1])) else np.sort(keys)


def _check_users(one: Int32s | None, other: Int32s | None, name: str, other_name: str) -> None:
    if one is None and other is None:
        return
    if one is None or other is None:
        raise LeakageError(f"{name} or {other_name} does not say which users it has", _REMEDY)
    if len(shared := np.intersect1d(one, other)):
        raise LeakageError(
            (
                f"{len(shared)} users are in {name} and in {other_name}, the first: user "
                f"{int(shared[0])}"
            ),
            _REMEDY,
        )


def _check_order(split: Split, cuts: tuple[int, int]) -> None:
    bounds = {"train": (None, cuts[0]), "validation": cuts, "test": (cuts[1], None)}
    parts = {
        "train": split.train,
        "validation": split.validation.targets,
        "test": split.test.targets,
    }
    for name, (after, until) in bounds.items():
        times = parts[name].times
        if times is None:
            raise LeakageError(f"{name} of a temporal split has no times", _REMEDY)
        early = 0 if after is None else int(np.sum(times <= after))
        late = 0 if until is None else int(np.sum(times > until))
        if early or late:
            raise LeakageError(
                f"{early + late} events of {name} are on the wrong side of a temporal cut", _REMEDY
            )


def _parts(split: Split) -> dict[str, Interactions]:
    folds = {"validation": split.validation, "test": split.test}
    pieces = {
        f"{name}_{piece}": getattr(fold, piece)
        for name, fold in folds.items()
        for piece in ("history", "targets")
    }
    return {"train": split.train} | pieces


def _digest(split: Split) -> str:
    """SHA-256 over users and items of every part, in a fixed order; independent of the machine's
    byte order."""
    digest = hashlib.sha256(
        f"{split.kind}/{split.seed}/{split.train.num_users}/{split.train.num_items}".encode()
    )
    for name, part in _parts(split).items():
        digest.update(f"/{name}/{len(part)}/".encode())
        digest.update(part.user_ptr.astype("<i8").tobytes())
        digest.update(part.items.astype("<i4").tobytes())
    for users in (split.train_users, split.validation.users, split.test.users):
        digest.update(b"/" + (b"all" if users is None else users.astype("<i4").tobytes()))
    return digest.hexdigest()
