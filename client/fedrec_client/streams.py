"""Clicks that each person of a site has told in a stream (`privacy.horizon`), in the site's ledger.

The ledger keeps, with the entry of the round that asked first and in one transaction with it, in
which week each click of a person was hers first, and in which week each item was asked for first.
A click that she has no more keeps its week. The step of a week gets both in place of times and of
what the server says: so each row of hers is in one report of the stream, and the squared norms of
her reports add up to 1, in whatever order and with whatever numbers a server asks
(`factorization.default_clicks.stream`). Weeks in which this client did not answer are told in the
next one that it answers. What came since the week's first question waits for the next week, so that
the same question again gets the same report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedrec.arrays import Int64s, UInt8s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_clicks.stream import on_device
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Refusal, refused
from fedrec.federation.releases import require_week
from fedrec.privacy.calibration import Plan
from fedrec_client.ledger import ClientLedger

Keep = Callable[[Any], None]
"""Writes what a week brought, in the transaction of its entry."""


def of_week(
    question: Question, run: str, plan: Plan, mine: Interactions, tokens: UInt8s,
    ledger: ClientLedger,
) -> tuple[Question, Interactions, Keep]:  # fmt: skip
    """The question and the site's clicks as the step of a week of a stream gets them, and what to
    keep with the round's entry. tokens: (num_users, 16) of the users of `mine`.

    Raises PrivacyError where the question is of no week of the plan, RefusedError
    (`WRONG_QUESTION`) where its step is of no stream."""
    require_week(question, plan)
    (spec,) = question.releases
    if question.step != f"stream/{spec.name}":
        raise refused(
            Refusal.WRONG_QUESTION,
            f"step {question.step!r} keeps no year's norm",
            "Use the same version of fedrec everywhere.",
        )
    week, round = spec.week, question.round
    rounds = {entry.round for entry in ledger.entries if entry.run == run}
    told = _told(ledger, run, mine, tokens)
    # a week begins with the plan's first release, so that every click is in both or waits for both
    begins = spec.name == plan.releases[0].name and round not in rounds
    new = mine.select(~np.isin(_keys(mine), _keys(told)) & begins)
    since = ledger.asked_items(run)
    added = [int(item) for item in question.public.get("items", ()) if int(item) not in since]

    def keep(database: Any) -> None:
        ledger.keep_asked(database, run, week, added)
        each = zip(new.user_ptr, new.user_ptr[1:], tokens, strict=False)
        clicks = [(token.tobytes(), new.items[start:end]) for start, end, token in each]
        ledger.keep_told(database, run, week, [one for one in clicks if len(one[1])])

    ever = np.zeros(mine.num_items, np.int64)
    ever[list(since)] = list(since.values())
    ever[added] = week
    place = round % len(plan.releases)
    answered = np.array(
        sorted(k // len(plan.releases) + 1 for k in {*rounds, round}
               if k % len(plan.releases) == place)
    )  # fmt: skip

    def told_in(first: Int64s) -> Int64s:
        """The first week from then on that this ledger has an answer in; 0 for never."""
        return np.where(first > 0, answered[np.searchsorted(answered, first)], 0)

    weeks = np.concatenate([told.times, np.full(len(new), week)])
    has = np.concatenate([np.isin(_keys(told), _keys(mine)), np.ones(len(new), bool)])
    clicks = Interactions.from_columns(
        np.concatenate([told.users, new.users]),
        np.concatenate([told.items, new.items]),
        has.astype(np.float32),
        num_users=mine.num_users,
        num_items=mine.num_items,
        value_range=mine.value_range,
        kind=mine.kind,
        times=told_in(weeks),
        user_words=mine.user_words,
        item_words=mine.item_words,
    )
    return on_device(question, told_in(ever), plan.horizon), clicks, keep


def _told(ledger: ClientLedger, run: str, mine: Interactions, tokens: UInt8s) -> Interactions:
    """The clicks that the ledger has of these users, with their first weeks in place of times."""
    number = {token.tobytes(): k for k, token in enumerate(tokens)}
    kept = [one for one in ledger.told_clicks(run) if one[0] in number]
    lengths = [len(items) for _, items, _ in kept]
    return Interactions.from_columns(
        np.repeat(np.array([number[token] for token, _, _ in kept], np.int64), lengths),
        np.concatenate([np.zeros(0, np.int32), *(items for _, items, _ in kept)]),
        None,
        num_users=mine.num_users,
        num_items=mine.num_items,
        value_range=mine.value_range,
        kind=mine.kind,
        times=np.repeat(np.array([week for _, _, week in kept], np.int64), lengths),
    )


def _keys(clicks: Interactions) -> Int64s:
    return clicks.users.astype(np.int64) * clicks.num_items + clicks.items
