"""A public model on the device: where a person's clicks stand in its catalogue, and what a question
to it is remembered by.

Ranking on the device, by the clicks themselves: what the server would rank without noise, or
better where the model is in the bundle.

A factorisation model comes with its released parts (`model.*`), so the device solves its own vector
from the whole history, with its ratings; any other model is ranked through the bundle's user map,
with coefficients before noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedrec.data.ids import plain_id
from fedrec.data.interactions import Interactions
from fedrec.errors import ProtocolError, SettingsError
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.factorization.released import model_of
from fedrec.numerics.segments import tie_keys
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privacy.mixtures import inner_mu
from fedrec.registry import model_kinds
from fedrec.serving.asking import ask
from fedrec.serving.bundle import Bundle
from fedrec.serving.ranking import Exact, Query
from fedrec_client.clicks import Click, Clicks
from fedrec_client.serving_ledger import Event, ServingQuestion, event_of

Clicked = tuple[int, float | None]
"""Row of an item, and its rating where there is one."""


@dataclass(frozen=True)
class PublicModel:
    """A bundle, and what is computed from it once."""

    bundle: Bundle

    @property
    def version(self) -> str:
        """16 hexadecimal digits."""
        return self.bundle.version

    @property
    def places(self) -> int:
        """H: how many of the latest clicks count."""
        return self.bundle.about.history

    @cached_property
    def asked_with(self) -> str:
        """Digest of the public numbers that a release depends on.

        Models that share it share answers, which then cost nothing."""
        about = self.bundle.about
        if about.form != "additive":  # a release there comes from the model's own user encoder
            return self.bundle.sha256
        facts = [about.form, about.history, about.unit, about.sensitivity.hex(), about.liked.hex()]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, array in (
            ("rows", self.bundle.rows),
            ("ids", self.bundle.ids.content),
            ("ids.ptr", self.bundle.ids.ptr),
        ):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def price(self, guarantee: Guarantee) -> Event:
        """What a fresh answer with `guarantee` costs a click.

        An attention form pads first, at the bundle's probability."""
        if self.bundle.about.form == "additive":
            return event_of(mu_for(guarantee.epsilon, guarantee.delta))
        padding = float(self.bundle.more["padding"].item()) if guarantee.private else 0.0
        return event_of(inner_mu(guarantee, padding), padding)

    def question(self, edit: str, guarantee: Guarantee) -> ServingQuestion:
        """What an answer is remembered by. edit: `ServingLedger.edit_of` of the whole history,
        whatever of it this model counts."""
        price = self.price(guarantee)
        return ServingQuestion(
            self.version,
            self.asked_with,
            edit,
            guarantee,
            price,
            self.bundle.about.sensitivity / price.mu,
        )

    def rows(self, clicks: Clicks) -> npt.NDArray[np.int64]:
        """Row of every event's item; -1 where the catalogue does not have it: an error would tell
        the server which items one has.

        An id that the catalogue has only without blanks and signs of no width is that item."""
        return np.array([self._row(click.item) for click in clicks.events], np.int64)

    def first_unknown(self, clicks: Clicks) -> str:
        """The first id that the catalogue does not have; empty for none."""
        return next((click.item for click in clicks.events if self._row(click.item) < 0), "")

    def without_blanks(self, clicks: Clicks) -> int:
        """How many events are of an item that was found without the blanks around its id."""
        return sum(
            click.item not in self._rows and self._row(click.item) >= 0 for click in clicks.events
        )

    def off_scale(self, clicks: Clicks) -> int:
        """How many ratings are outside `scale`: training had none such."""
        if self.scale is None:
            return 0
        low, high = self.scale
        return sum(
            click.rating is not None and not low <= click.rating <= high for click in clicks.events
        )

    @property
    def scale(self) -> tuple[float, float] | None:
        """Lowest and highest rating; None where the model is of clicks, or says none."""
        ends = self.bundle.more.get("model.value_range")
        if self.bundle.about.family != "ratings" or ends is None or ends.shape != (2,):
            return None
        return float(ends[0]), float(ends[1])

    @property
    def padded(self) -> bool:
        """Whether clicks are hidden behind the anonymous item (row m) before a release, and its
        price is lower for that."""
        return (
            self.bundle.about.form == "attention" and float(self.bundle.more["padding"].item()) > 0
        )

    def window(self, clicks: Clicks) -> npt.NDArray[np.int32]:
        """(H,) rows of the latest H clicks, -1 in front where there are fewer, and where the
        catalogue lacks an item.

        Padding makes an answer cheaper for a click that is exchanged for an item or for the
        anonymous one, not for an empty place (`privacy.mixtures`). So where a model pads, an event
        that is no click, or of an item that the catalogue lacks, is a click on the anonymous item:
        what the server says of the catalogue and of ratings does not take the padding off.
        """
        rows = self.rows(clicks)
        counted = np.array([self._counts(click) for click in clicks.events], np.bool_)
        rows = (
            np.where(counted & (rows >= 0), rows, self.bundle.size)
            if self.padded
            else rows[counted]
        )
        rows = rows[-self.places :]
        return np.concatenate([np.full(self.places - len(rows), -1), rows]).astype(np.int32)

    def counted(self, clicks: Clicks) -> int:
        """How many clicks a query is made of: at most H, without those whose item the catalogue
        lacks."""
        return int((self.window(clicks) >= 0).sum())

    def telling(self, clicks: Clicks) -> int:
        """How many of these tell anything: one on an item with a public row of zeros, of which
        nothing is known, does not."""
        rows = self.window(clicks)
        rows = rows[rows >= 0]
        if self.bundle.about.form != "additive":
            return int((rows < self.bundle.size).sum())  # without the anonymous item
        return int(self.bundle.rows[rows].any(axis=1).sum())

    @property
    def nothing(self) -> npt.NDArray[np.int32]:
        """(H,) the window of a history without clicks."""
        return np.full(self.places, -1, np.int32)

    def category_bits(self, names: Sequence[str]) -> int:
        """Raises SettingsError on a name that the bundle does not have."""
        known = self.bundle.about.categories
        for name in names:
            if name not in known:
                raise SettingsError(
                    f"there is no category {name!r}",
                    f"This model has: {', '.join(known) or 'none'}.",
                )
        return sum(1 << known.index(name) for name in set(names))

    @cached_property
    def _rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.bundle.ids.all())}

    def _row(self, item: str) -> int:
        row = self._rows.get(item)
        return self._rows.get(plain_id(item), -1) if row is None else row

    def _counts(self, click: Click) -> bool:
        """Whether an event is a click: one without a rating is, or one that is rated well
        enough."""
        return click.rating is None or click.rating >= self.bundle.about.liked


def best(
    bundle: Bundle,
    window: npt.NDArray[np.int32],
    events: Sequence[Clicked],
    *,
    k: int,
    categories: int,
    allowed: Sequence[int] | None = None,
    keep_seen: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows and scores of the k best items, best first; those in `events` are left out unless
    `keep_seen`. window: (H,) rows; categories: bits, 0 for all; allowed: rows of the only items."""
    depth = k if allowed is None else bundle.size
    if not events:
        rows, scores = everybodys(bundle, k=depth, categories=categories)
        fine = np.ones(len(rows), np.bool_) if allowed is None else np.isin(rows, allowed)
        return rows[fine][:k], scores[fine][:k]
    model = released_model(bundle)
    seen = {row for row, _ in events}
    if model is None:
        sent = _unnoised(bundle, window)
        rows, scores = _by_query(bundle, sent, k=depth + len(seen), categories=categories)
    else:
        rows, scores = _by_local_solve(model, bundle, events, categories)
    fine = ~np.isin(rows, [] if keep_seen else list(seen))
    fine &= True if allowed is None else np.isin(rows, allowed)
    return rows[fine][:k], scores[fine][:k]


def everybodys(
    bundle: Bundle, *, k: int, categories: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows and scores of the k best items for a reader of whom nothing is known: the same for
    everybody. It is what a query becomes as its noise grows without end, the mean of the
    population."""
    query = np.zeros(bundle.coefficients, np.float32)
    if bundle.about.form == "attention":  # whose queries are shares, also those of no click
        query = _unnoised(bundle, np.full(bundle.about.history, -1, np.int32))
    return _by_query(bundle, query, k=k, categories=categories)


def _by_query(
    bundle: Bundle, query: npt.NDArray[np.float32], *, k: int, categories: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    found = Exact(bundle)([Query(query, min(k, bundle.size), categories)])[0]
    return found.items.astype(np.int64), found.scores.astype(np.float64)


def is_everybodys(
    bundle: Bundle, events: Sequence[Clicked], rows: npt.NDArray[np.int64], *, categories: int
) -> bool:
    """Whether these rows, best first, are those that a reader of nothing gets, less what is in
    `events`."""
    seen = [row for row, _ in events]
    found, _ = everybodys(bundle, k=len(rows) + len(seen), categories=categories)
    return bool(np.array_equal(rows, found[~np.isin(found, seen)][: len(rows)]))


def released_model(bundle: Bundle) -> Model | None:
    """The model in a bundle, None where there is none.

    Raises ProtocolError where its arrays do not fit, SettingsError where it needs a PyTorch module
    that is not here, or is another one."""
    arrays = {
        name.removeprefix("model."): array
        for name, array in bundle.more.items()
        if name.startswith("model.")
    }
    for kind in model_kinds() if arrays else ():
        try:
            return model_of(arrays, kind)
        except KeyError:  # of another kind
            continue
        except (ValueError, TypeError) as failure:
            raise _unfit(f"{failure}") from None
    return None


def _unfit(cause: str) -> ProtocolError:
    return ProtocolError(f"the server's model cannot be used: {cause}", "Do not use this server.")


def _unnoised(bundle: Bundle, window: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """(B,) what would be sent without noise."""
    nothing = non_private(bundle.about.delta, "click", "replace")
    sent: npt.NDArray[np.float32] = ask(
        bundle, window[None], guarantee=nothing, key=bytes(32)
    ).sent[0]
    return sent


def _by_local_solve(
    model: Model, bundle: Bundle, events: Sequence[Clicked], categories: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Every item that is allowed, best first, by the vector that the device solves from all
    events.

    Raises ProtocolError where the model has no number for each item."""
    history = _interactions(bundle, events)
    ranker = ranker_of(model)
    try:
        scores = (
            ranker.item_vectors.astype(np.float64)
            @ np.asarray(ranker.user_vectors(history), np.float64)[0]
            + ranker.offset
        )
    except ValueError as failure:  # arrays of other shapes
        raise _unfit(f"{failure}") from None
    if len(scores) != bundle.size or not np.isfinite(scores).all():
        raise _unfit(f"it has no score for each of {bundle.size} items")
    rows = np.lexsort((tie_keys(np.arange(len(scores))), -scores))
    if categories:
        rows = rows[bundle.categories[rows] & np.uint64(categories) != 0]
    return rows.astype(np.int64), scores[rows]


def _interactions(bundle: Bundle, events: Sequence[Clicked]) -> Interactions:
    """One user.

    Of two events on an item the later counts; a rating that is missing is the best there is, and
    none is off the scale."""
    kept = dict[int, float | None]()
    for row, rating in events:
        kept.pop(row, None)  # what is clicked again is as recent as that
        kept[row] = rating
    clicked = bundle.about.family == "clicks"
    given = [rating for rating in kept.values() if rating is not None]
    scale = bundle.more.get(
        "model.value_range", np.array([min(given, default=0.0), max(given, default=1.0)])
    )
    low, high = (0.0, 1.0) if clicked else (float(end) for end in scale)
    values = np.array([high if rating is None or clicked else rating for rating in kept.values()])
    return Interactions.from_columns(
        np.zeros(len(kept), np.int32),
        np.array(list(kept), np.int32),
        np.clip(values, low, high),
        num_users=1,
        num_items=bundle.size,
        value_range=(low, high),
        kind="clicks" if clicked else "ratings",
        times=np.arange(len(kept)),  # in the order in which they were made
    )
