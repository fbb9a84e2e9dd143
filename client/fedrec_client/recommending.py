"""Asking a server for recommendations without telling it what one read or watched.

    with Recommender("grpcs://recommender.example.org:7443", state=Path("state")) as recommender:
        answer = recommender.recommend(Clicks.of(["1193", "661", "914"]), k=10)

The server's public bundle is fetched once. It holds all that ranking takes, so where it is small
(`device_mb`) this device ranks by itself: no query leaves, and nothing is spent. Whether it does is
decided by the size of the bundle, never by the history.

Where it asks, what leaves is a version, B noised coefficients, k, and
categories that the person names; everything else happens here: windows, noise, the ledger, leaving
out what was seen. The same question is asked again with the same bytes and costs nothing, in
another process too; so does a new model with the same public rows. `k + H` items are asked for
whatever was seen, H the places of a history.

Guarantee: `ServingLedger`'s. Everything that leaves is a function of the noised release, of public
numbers, and of what the person chose openly: k, categories, and when to ask. So is whether a query
leaves at all:

- A bundle is bounded and rehearsed on invented histories before a history is looked at
  (`bundle_bounds`).
- Afterwards nothing about the history raises. An item that the catalogue lacks is an empty place; a
  history that the model's numbers fail on is asked for as one without clicks, at the same price.
- Whether an answer is repeated depends on when the history changed, on the bundle and on the
  guarantee (`ServingLedger.edit_of`).

An answer whose noise leaves next to nothing of the clicks is a list at random. Then the list shown
is everybody's, made here; the query has left, and is paid for, as for any other history. A
`GenericListWarning` comes before that. Whoever makes an error of it decides by the number of clicks
whether a query leaves.

What is left is time: how long an answer takes depends a little on how many clicks there are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedrec.data.ids import require_named
from fedrec.errors import (
    BudgetExceededError,
    GenericListWarning,
    ProtocolError,
    RefusedError,
    SettingsError,
    UnreachableError,
    warn,
)
from fedrec.operations import logs
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.bounded_mean import Coefficients
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec.serving.asking import HIDDEN, ask, query, told
from fedrec.serving.bundle import Bundle
from fedrec_client.bundle_cache import BundleCache, rehearse
from fedrec_client.clicks import Clicks
from fedrec_client.public_model import PublicModel, best, everybodys, is_everybodys
from fedrec_client.serving_http import connect
from fedrec_client.serving_ledger import Drawn, PaidAnswer, ServingLedger
from fedrec_client.serving_link import (
    WRONG_VERSION,
    Left,
    Server,
    ServingQuery,
    ServingReply,
    Trust,
)

log = logging.getLogger(__name__)

Via = Literal["auto", "device", "server"]
"""Who ranks; auto: this device, where the bundle is a small download."""

DEVICE_MB = 20.0
"""A small download: seconds on a slow line, and ranked in less than one on a small device."""

EPSILON = 5.0
"""Of a fresh answer, where nothing else is said."""

_ATTEMPTS = 3
"""Models that may be retired between two questions before this gives up."""


class Keys(Protocol):
    """Where noise comes from: `randomness.SystemStreams`, or for tests `randomness.Streams`."""

    def key(self, name: str, *, round: int = 0) -> bytes:
        """32 bytes."""


@dataclass(frozen=True)
class Recommendation:
    """One item of a list."""

    id: str
    title: str
    score: float


@dataclass(frozen=True)
class Answered:
    """A list, best first, and what it cost.

    answer: what was paid for, None for a list made on this device. fresh: whether it was paid for
    now. asked: items asked for; hidden: how many of them had been seen. clicks: how many a query is
    made of; share: which share of what they say the noise leaves, None where nobody
    knows; unknown: how many more are of items that the catalogue lacks. without_blanks: how many
    ids were found without the blanks around them; off_scale: how many ratings are outside the
    model's scale. left: every message that left in this call. first_unknown: one of the ids that
    the catalogue lacks, empty for none. everybodys: whether the list is the one that a reader of
    nothing gets.
    """

    items: tuple[Recommendation, ...]
    bundle: Bundle
    answer: PaidAnswer | None
    fresh: bool
    asked: int
    hidden: int
    clicks: int
    unknown: int
    without_blanks: int
    off_scale: int
    left: tuple[Left, ...]
    first_unknown: str = ""
    everybodys: bool = False
    share: float | None = None


def _require_above_0(flag: str, value: float) -> None:
    """flag: of the command line, which a parameter is named after."""
    if not value > 0:
        raise SettingsError(f"{flag} is {value:g}", "Give a number above 0.")


class Recommender:
    """A person's device. One process at a time for a state folder; a context."""

    def __init__(
        self,
        server: str | Server,
        state: Path,
        *,
        epsilon: float = EPSILON,
        limit: float = 20.0,
        delta: float = 1e-5,
        renew_every_s: float | None = None,
        max_user_epsilon: float = math.inf,
        via: Via = "auto",
        device_mb: float = DEVICE_MB,
        trust: Trust | None = None,
        timeout_s: float = 10.0,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the ledger in `state` and the connection.

        Args:
            server: Its address, or a connection that is open.
            state: A folder of this person, with the ledger and bundles.
            epsilon: Of a fresh answer, per click (replace); not with `via="device"`.
            limit: Epsilon of all answers together, or of those of any `renew_every_s` seconds.
            delta: Of both.
            renew_every_s: After so many seconds an answer counts no more; never without it.
            max_user_epsilon: Of the same answers, per user (replace), whatever the history.
            via: Who ranks: "auto", "device" or "server".
            device_mb: The largest bundle in MB that this device ranks by itself when `via` is
                "auto".
            trust: Certificates and secrets for the connection.
            timeout_s: Of a call.
            keys: Of the noise; the operating system's generator without them.
            clock: Seconds since 1970; a test's to replace.

        Raises:
            SettingsError: An argument cannot be.
            RunError: `state` is in use, or its ledger is damaged.
        """
        _require_above_0("--epsilon", epsilon)
        if via == "device" and epsilon != EPSILON:
            raise SettingsError(
                "--epsilon is of queries, and this device ranks by itself",
                "Leave it out, or give --via server.",
            )
        _require_above_0("--limit", limit)
        _require_above_0("--max-user-epsilon", max_user_epsilon)
        _require_above_0("--renew-every", math.inf if renew_every_s is None else renew_every_s)
        _require_above_0("--delta", delta)
        if delta >= 1:
            raise SettingsError(f"--delta is {delta:g}", "Give a probability below 1.")
        self.guarantee = Guarantee(epsilon, delta, "click", "replace")
        self._keys = keys or SystemStreams()
        self._server = (
            connect(server, trust or Trust(), timeout_s=timeout_s)
            if isinstance(server, str)
            else server
        )
        self._name = server if isinstance(server, str) else "server"
        self._cache = BundleCache(state / "bundles")
        self._via = via
        self._device_bytes = 1e6 * device_mb
        self._used: PublicModel | None = None
        self._rehearsed = ""
        self._shares = dict[tuple[str, int], float | None]()
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.ledger = ServingLedger(
            state / "ledger.sqlite",
            limit=replace(self.guarantee, epsilon=limit),
            max_user_epsilon=max_user_epsilon,
            renew_every_s=renew_every_s,
            clock=clock,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and let another process have the ledger."""
        self._server.close()
        self.ledger.close()

    def recommend(
        self,
        clicks: Clicks,
        *,
        k: int = 10,
        categories: Sequence[str] = (),
        candidates: int | None = None,
        last: bool = False,
        items: Sequence[str] | None = None,
        keep_seen: bool = False,
    ) -> Answered:
        """The k best items that are not among the clicks; fewer where most were seen. Ranked by
        this device (`local`), or by the server from noised coefficients (`via`).

        Args:
            clicks: The person's history, which stays here.
            k: Length of the list.
            categories: Names of public categories to choose from; none for all.
            candidates: Items to ask the server for, at least k + H; a public choice. The server
                is asked then.
            last: Ask the server with the last answer, whatever the clicks are now.
            items: Ids of the only items that are ranked, by this device whatever the bundle's size.
            keep_seen: Whether items of the clicks may be listed.

        Returns:
            The list, and what was asked, paid and left out for it.

        Raises:
            BudgetExceededError: A fresh answer would pass the limit.
            ProtocolError: The server cannot be reached, or does not keep to the protocol.
            RunError: The ledger cannot be written.
            SettingsError: An argument is wrong; never because of what the clicks are.
            DataError: The model has none of `items`.
        """
        asks = last or candidates is not None
        if items is not None and (asks or self._via == "server"):
            raise SettingsError(
                "--items are ranked by this device, so that no server learns which they are",
                "Leave out --demo, --via server, --last and --candidates.",
            )
        if asks and self._via == "device":
            raise SettingsError(
                "--last and --candidates are of queries, and this device ranks by itself",
                "Leave them out, or give --via server.",
            )
        if not asks and (items is not None or self._ranks_here()):
            return self.local(clicks, k=k, categories=categories, items=items, keep_seen=keep_seen)
        began = len(self._server.journal)
        paid = False
        # of every call, so that what comes back later is known to have been away
        edit = self.ledger.edit_of(clicks.digest)
        # the server may have taken a new model since: it is fetched, and asked again
        for attempt in range(_ATTEMPTS):
            model = self._model(edit, may_be_old=attempt == 0, last=last)
            self._rehearse(model)
            bits = model.category_bits(categories)
            answer, fresh = self._answer(model, clicks, edit, last=last, may_pay=not paid)
            paid = paid or fresh
            asked = min(max(candidates or 0, k + model.places), model.bundle.size)
            try:
                reply = self._server.recommend(_query(model, answer, asked, categories, bits))
            except RefusedError as failure:
                if failure.code != WRONG_VERSION:
                    raise
                continue
            rows = _checked(reply, model.bundle, asked)
            scores = reply.scores
            seen = model.rows(clicks)
            share = self._share_told(model, clicks)
            hidden = share is not None and share < HIDDEN
            if hidden:
                rows, scores = everybodys(model.bundle, k=asked, categories=bits)  # type: ignore[assignment]
            kept = ~np.isin(rows, [] if keep_seen else seen)
            listed = _listed(model.bundle, rows[kept][:k], scores[kept][:k])
            journal = tuple(self._server.journal[began:])
            return Answered(
                listed,
                model.bundle,
                answer,
                paid,
                asked,
                int((~kept).sum()),
                model.counted(clicks),
                int((seen < 0).sum()),
                model.without_blanks(clicks),
                model.off_scale(clicks),
                journal,
                model.first_unknown(clicks),
                hidden,
                share,
            )
        raise ProtocolError(
            "the server retires models faster than they can be asked",
            "Ask again later: what was paid for is kept.",
        )

    def local(
        self,
        clicks: Clicks,
        *,
        k: int = 10,
        categories: Sequence[str] = (),
        items: Sequence[str] | None = None,
        keep_seen: bool = False,
    ) -> Answered:
        """The k best by the clicks themselves, ranked on this device.

        Nothing about them leaves, and nothing is spent.

        Args:
            clicks: The person's history.
            k: Length of the list.
            categories: Names of public categories to choose from; none for all.
            items: Ids of the only items that are ranked; None for all.
            keep_seen: Whether items of the clicks may be listed.

        Returns:
            The list.

        Raises:
            DataError: The model has none of `items`.
        """
        began = len(self._server.journal)
        model = self._newest_here()
        seen = model.rows(clicks)
        events = [
            (int(row), click.rating)
            for row, click in zip(seen, clicks.events, strict=True)
            if row >= 0
        ]
        bits = model.category_bits(categories)
        allowed = None
        if items is not None:
            require_named(items, model.bundle.ids.all(), "the model", what="items of --items")
            allowed = [row for row in model.rows(Clicks.of(items)).tolist() if row >= 0]
        chosen: dict[str, Any] = {"k": k, "categories": bits, "allowed": allowed}
        window = model.window(clicks)
        rows, scores = best(model.bundle, window, events, **chosen, keep_seen=keep_seen)
        plain = rows  # of all items: a few are often in everybody's order by chance
        if allowed is not None or keep_seen:
            plain, _ = best(model.bundle, window, events, k=k, categories=bits)
        journal = tuple(self._server.journal[began:])
        return Answered(
            _listed(model.bundle, rows, scores),
            model.bundle,
            None,
            False,
            0,
            0,
            model.counted(clicks),
            int((seen < 0).sum()),
            model.without_blanks(clicks),
            model.off_scale(clicks),
            journal,
            model.first_unknown(clicks),
            is_everybodys(model.bundle, events, plain, categories=bits),
        )

    def _ranks_here(self) -> bool:
        """By the size of the bundle alone."""
        if self._via != "auto":
            return self._via == "device"
        model = self._newest_here()
        return self._cache.bytes_of(model.version) <= self._device_bytes

    def _newest_here(self) -> PublicModel:
        """The newest model, or the one that is here where the server does not answer."""
        try:
            return self._newest()
        except UnreachableError:
            if (model := self._current()) is None:
                raise
            return model

    def _rehearse(self, model: PublicModel) -> None:
        if self._rehearsed != model.bundle.sha256:
            rehearse(model.bundle, self.guarantee)
            self._rehearsed = model.bundle.sha256

    def _model(self, edit: str, *, may_be_old: bool, last: bool) -> PublicModel:
        """The model asked before, for as long as it answers and nothing would be paid; else the
        newest."""
        current = self._current() if may_be_old else None
        if current is not None:
            ledger = self.ledger
            paid_for = (
                ledger.last(current.asked_with)
                if last
                else ledger.kept(current.question(edit, self.guarantee))
            )
            if paid_for is not None:
                return current
        return self._newest()

    def _current(self) -> PublicModel | None:
        if self._used is None and (bundle := self._cache.current(self._name)) is not None:
            self._used = PublicModel(bundle)
        return self._used

    def _newest(self) -> PublicModel:
        version = self._server.newest()
        if self._used is None or self._used.version != version:
            bundle = self._cache.get(version) or self._cache.fetch(
                version, self._server.bundle(version)
            )
            self._cache.use(self._name, bundle)
            self._used = PublicModel(bundle)
        return self._used

    def _answer(
        self, model: PublicModel, clicks: Clicks, edit: str, *, last: bool, may_pay: bool
    ) -> tuple[PaidAnswer, bool]:
        question = model.question(edit, self.guarantee)
        if last:
            if (answer := self.ledger.last(question.asked_with)) is None:
                raise BudgetExceededError(
                    "no answer was given to this model yet", "Ask without --last."
                )
            return answer, False
        if not may_pay and self.ledger.kept(question) is None:
            cause = (
                "the model was retired after an answer for it was paid for, and the newest has "
                "other rows"
            )
            raise ProtocolError(cause, "Ask again to pay for an answer to the newest model.")
        return self.ledger.answer(question, lambda: self._drawn(model, clicks))

    def _warn_of_a_generic_list(self, model: PublicModel, clicks: Clicks) -> None:
        """Before an answer is paid for whose noise hides the clicks; said on this device alone."""
        counted = model.counted(clicks)
        if counted and not model.telling(clicks):
            warn(
                GenericListWarning(
                    f"nothing is known of the {counted} items of this history: the list will be "
                    "what everybody gets, and costs as much as another"
                )
            )
            return
        share = self._share_told(model, clicks)
        if share is None or share >= HIDDEN:
            return
        said = (
            f"noise of epsilon {self.guarantee.epsilon:g} per click leaves about {share:.0%} of "
            f"what {counted} {'click says' if counted == 1 else 'clicks say'}: the list will be "
            "what everybody gets, and costs as much as another. More clicks, a larger "
            "epsilon, or the list of this device (--via device) show more"
        )
        warn(GenericListWarning(said))

    def _share_told(self, model: PublicModel, clicks: Clicks) -> float | None:
        """Which share of what the clicks say a fresh answer leaves; None where nobody knows."""
        if not self.guarantee.private:
            return None
        of = (model.version, model.telling(clicks))
        if of not in self._shares:  # readers may be invented for it, which takes a while
            self._shares[of] = told(model.bundle, of[1], guarantee=self.guarantee)
        return self._shares[of]

    def _drawn(self, model: PublicModel, clicks: Clicks) -> Drawn:
        # past the limits: a refusal says nothing of the history
        self._warn_of_a_generic_list(model, clicks)
        try:
            return self._drawn_for(model, model.window(clicks))
        except Exception:
            # the model was bounded and rehearsed, so this history alone fails; that must not be
            # seen
            logs.say(log, "history-stays-silent", level=logging.WARNING)
            return self._drawn_for(model, model.nothing)

    def _drawn_for(self, model: PublicModel, history: npt.NDArray[np.int32]) -> Drawn:
        key = self._keys.key("serving", round=len(self.ledger.entries))
        asked = ask(model.bundle, history[None], guarantee=self.guarantee, key=key)
        return Drawn(asked.raw[0], asked.sent[0], asked.noise_std, asked.event)


def _query(
    model: PublicModel, answer: PaidAnswer, asked: int, categories: Sequence[str], bits: int
) -> ServingQuery:
    """What leaves.

    An answer that was drawn for another version is decoded again, which is post-processing."""
    sent = answer.sent
    bundle = model.bundle
    if answer.version != model.version and isinstance(answer.event, GaussianEvent):
        sent = query(bundle, Coefficients(answer.raw[None], answer.noise_std, answer.event))[0]
    return ServingQuery(bundle.version, sent, asked, tuple(categories), bits)


def _checked(reply: ServingReply, bundle: Bundle, asked: int) -> npt.NDArray[np.int64]:
    rows = reply.items
    scores = reply.scores
    whole = (
        reply.version == bundle.version
        and rows.ndim == 1
        and rows.shape == scores.shape
        and len(rows) <= asked
    )
    if (
        not whole
        or (len(rows) and (rows.min() < 0 or rows.max() >= bundle.size))
        or len(np.unique(rows)) != len(rows)
    ):
        raise ProtocolError("the server's list is not one of this model", "Do not use this server.")
    if not np.isfinite(scores).all():
        raise ProtocolError(
            "the server's list has scores that are not finite", "Do not use this server."
        )
    return rows


def _listed(
    bundle: Bundle, rows: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]
) -> tuple[Recommendation, ...]:
    return tuple(
        Recommendation(bundle.ids[int(row)], bundle.titles[int(row)], float(score))
        for row, score in zip(rows, scores, strict=True)
    )
