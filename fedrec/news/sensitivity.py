"""Per-category sensitivity (Sec. 3.1): categories are declared, publicly, to need no protection,
and clicks on them spend nothing.

An item is open where all of its categories are. The additive report in two parts, over the same
topics: the mean of the protected clicks with noise, and beside it that of the open ones as it is
(`opened`). An impression in which no protected candidate was clicked tells its open click; every
other answers among its protected candidates alone (`report_labels`).

Guarantee of both: that of the plain report or label; unit "click", neighbours "replace" where both
clicks, the one exchanged and the one it is exchanged for, are of protected items; in a history
either may also be missing. Proof: the declaration is public. Neighbours have the same open clicks,
so the exact part, and which labels are told, are the same. The noised part is `bounded_mean.report`
with a table in which open items have the row of padding: one term changes by at most the largest
distance of two protected rows, or of one and 0, which is the table's diameter. A label is told
where no protected candidate was clicked, which is so in both neighbours or in none; else one
protected click is drawn, and answers among the same protected candidates with the same mechanism.

Not covered, and to be said with it (`exempt`): that a click was on an open item at all, how many
were, and so how many places of a history remain. Where one candidate alone is protected, there is
nothing to exchange its click for, and the answer names it. A declaration comes first: made after
the fact it would be a function of the clicks. A user's own, instead of a scenario's for everybody,
is the same with a table of the user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Bools
from fedrec.data.impressions import Impressions, News
from fedrec.errors import SettingsError
from fedrec.news.labels import LabelReports, Mechanism, drawn_clicks, report_clicks
from fedrec.news.topics import listed_categories
from fedrec.privacy.bounded_mean import BITS, TopicTable, diameter
from fedrec.privacy.keystream import derive


def exempt(categories: Sequence[str]) -> str:
    """What a guarantee leaves out, in words; nothing for none."""
    return (
        f"clicks on open categories ({', '.join(categories)}) are not protected"
        if categories
        else ""
    )


def opened(table: TopicTable, news: News, categories: Sequence[str]) -> TopicTable:
    """The table with coordinates of their own, told, for items of these categories alone; the same
    for none.

    Raises SettingsError on a category that no item has, or where nothing is left to protect.
    """
    if not categories:
        return table
    free = _open_items(news, categories)
    guarded = np.where(free[:, None], 0, table.rows)
    bare = np.where(free[:, None], table.rows, 0)
    return TopicTable(
        np.concatenate([guarded, bare], axis=1),
        diameter(guarded) * 2.0**-BITS,
        told=table.topics,
        open_items=free,
    )


def _open_items(news: News, categories: Sequence[str]) -> Bools:
    listed = listed_categories(news)
    known = sorted({name for names in listed for name in names})
    if unknown := [name for name in categories if name not in known]:
        raise SettingsError(
            f"news.open_categories: no item has category {unknown[0]!r}",
            f"There are: {', '.join(known)[:300]}.",
        )
    free = np.array([bool(names) and set(names) <= set(categories) for names in listed])
    if free.all():
        raise SettingsError(
            "news.open_categories leaves nothing to protect",
            'Name fewer, or train with news.variant = "centralized".',
        )
    return free


def report_labels(
    data: Impressions, open_items: Bools, *, epsilon: float, key: bytes, mechanism: Mechanism
) -> LabelReports:
    """Answers with open clicks told and protected ones randomised among themselves.

    Every impression needs a click, or ValueError."""
    ptr = data.candidate_ptr
    free = open_items[data.candidates]
    guarded = _any(data.clicked & ~free, ptr)
    told = np.flatnonzero(~guarded)
    places = drawn_clicks(data.select(told), key=derive(key, "told"))
    if (places < 0).any():
        raise ValueError(f"impression {told[places < 0][0]} has no click")
    kept = ~free & np.repeat(guarded, np.diff(ptr))
    among = np.concatenate(
        [[0], np.cumsum(np.add.reduceat(kept, ptr[:-1], dtype=np.int64)[guarded])]
    )
    asked = replace(
        data,
        users=data.users[guarded],
        candidate_ptr=among,
        candidates=data.candidates[kept],
        clicked=data.clicked[kept],
    )
    answers = report_clicks(asked, epsilon=epsilon, key=key, mechanism=mechanism)
    reported = np.zeros(len(free), np.bool_)
    null = np.zeros(len(data), np.bool_)
    reported[kept] = answers.reported
    reported[ptr[told] + places] = True
    return replace(answers, candidate_ptr=ptr, reported=reported, null=null)


def eligible(labels: LabelReports, open_shown: Bools) -> Bools:
    """Aligned with the candidates: those that the click of each report may have been on. A function
    of the reports.

    log P = log(sum of pi over these + (e^epsilon - 1) sum over the reported), up to a constant.
    """
    told = np.repeat(
        _any(labels.reported & open_shown, labels.candidate_ptr), np.diff(labels.candidate_ptr)
    )
    return np.where(told, labels.reported, ~open_shown)


def _any(flags: Bools, ptr: npt.NDArray[np.int64]) -> Bools:
    counts = np.concatenate([[0], np.cumsum(flags)])
    return np.asarray(np.diff(counts[ptr]) > 0)
