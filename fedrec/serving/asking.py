"""Queries that a device makes of its own history: coefficients over public rows, noise, and the
query that leaves.

    a = (1/H) sum of the rows of the history        exact(...): stays on the device
    raw = a + noise of real std `noise_std`         the release, in integers
                                                    (`privacy.bounded_mean`)
    sent = (E[a | raw] - mean) / scale              float32: what leaves, a function of raw and of
                                                    public numbers; with groups of sizes, what they
                                                    make of raw (`sizes`), over scale

Guarantee of `ask`: that which is asked for, and its `event` says what one answer costs; unit
"click", neighbours "replace" (one click of the history exchanged for another, added or removed).
The proof is that of `additive`, with rows that may have any sign: exchanging one click moves a by
at most `About.sensitivity`, which `bundle.read` checks against the rows that it read. A bundle with
an attention form is asked by `attention_form`, since its user encoder is a network.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import Coefficients, Population, TopicTable
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.serving.asked import Asked
from fedrec.serving.bundle import Bundle
from fedrec.serving.user_map import Sizes

Histories = npt.NDArray[np.integer]
HIDDEN = 0.1
"""Share of what clicks say below which a list is said to be nearly everybody's."""
READERS = 64
"""Invented readers, by whom `told` compares lists where a bundle has no groups of sizes."""
LISTED = 10
"""Items of their lists."""
_CLICK = Guarantee(1.0, 0.5, "click", "replace")


def exact(bundle: Bundle, history: Histories) -> Float64s:
    """(n, B) without noise, for (n, H) rows of items with -1 in front for padding.

    Private: never leaves the device."""
    if bundle.about.form == "attention":
        return ask(
            bundle,
            history,
            guarantee=non_private(bundle.about.delta, "click", "replace"),
            key=bytes(32),
        ).raw
    return bounded_mean.coefficients(_of_length(history, bundle), public_table(bundle))


def ask(bundle: Bundle, history: Histories, *, guarantee: Guarantee, key: bytes) -> Asked:
    """One query a row of `history` (n, H), each with `guarantee`; exact for an infinite one.

    key: 32 bytes, secret and never used before (`randomness.SystemStreams`). Raises ValueError on a
    history of another length or an item that there is none of, UnitMismatchError on a guarantee of
    another unit.
    """
    if bundle.about.form == "attention":
        from fedrec.serving.attention_form import ask_attention  # brings torch

        return ask_attention(bundle, _of_length(history, bundle), guarantee=guarantee, key=key)
    guarantee.require_same_unit(_CLICK)
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    report = bounded_mean.report(
        _of_length(history, bundle), public_table(bundle), mu=mu, name="serving", key=key
    )
    return Asked(query(bundle, report), report.values, report.noise_std, report.event)


def query(bundle: Bundle, report: Coefficients) -> Float32s:
    """(n, B) what is sent for a release: its posterior mean, centred and scaled by public numbers.

    Post-processing."""
    if (sizes := Sizes.of(bundle.more)) is not None:
        return np.asarray(
            sizes.read(report.values, noise_std=report.noise_std) / bundle.about.scale, np.float32
        )
    decoded = bounded_mean.decode(report, Population(bundle.mean, bundle.covariance))
    return np.asarray((decoded - bundle.mean) / bundle.about.scale, np.float32)


def told(bundle: Bundle, clicks: int, *, guarantee: Guarantee) -> float | None:
    """Which share of what so many clicks say of their list the noise leaves, by public numbers and
    invented histories; None where that cannot be known."""
    if (sizes := Sizes.of(bundle.more)) is None:
        try:  # a bundle that fails, or takes long, at some number of clicks would ask for it
            share = _told_of_invented(bundle, max(clicks, 1), guarantee=guarantee)
        except Exception:
            return None
        return share if clicks else 0.0
    std = bounded_mean.noise_std(
        public_table(bundle), bundle.about.history, mu=mu_for(guarantee.epsilon, guarantee.delta)
    )
    nearest = int(np.argmin(np.abs(np.log(np.maximum(sizes.clicks, 1)) - math.log(max(clicks, 1)))))
    return float(sizes.told(noise_std=std)[nearest]) if clicks else 0.0


def _told_of_invented(bundle: Bundle, clicks: int, *, guarantee: Guarantee) -> float:
    """The share of an own list that a noised answer has beyond that of another reader, at most 1.

    A mean over `READERS` invented readers of one subject each, who say more than most people do."""
    rng = np.random.default_rng(0)
    n = min(clicks, bundle.about.history, bundle.size)
    centred = bundle.items - bundle.items.mean(axis=0)
    units = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    near = units[rng.integers(0, bundle.size, READERS)] @ units.T
    histories = np.full((READERS, bundle.about.history), -1, np.int32)
    histories[:, bundle.about.history - n :] = _first(near, n)
    mine, noised = (
        # the histories are invented, so the key may be known
        _first(bundle.users(asked.sent) @ bundle.items.T + bundle.bias, min(LISTED, bundle.size))
        for asked in (
            ask(bundle, histories, guarantee=each, key=bytes(32))
            for each in (non_private(bundle.about.delta, "click", "replace"), guarantee)
        )
    )
    shared = (noised[:, None, :, None] == mine[None, :, None, :]).any(axis=3).mean(axis=2)
    own = float(np.trace(shared)) / READERS
    others = float(shared.sum() - np.trace(shared)) / (READERS * (READERS - 1))
    return max(own - others, 0.0) / max(1.0 - others, 1e-9)


def _first(scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """(n, k) columns of the highest scores (n, m), in any order."""
    return np.argpartition(-scores, k - 1, axis=1)[:, :k]


def public_table(bundle: Bundle) -> TopicTable:
    """The rows of a bundle, with the sensitivity that it states."""
    rows = bundle.rows.astype(np.int64)
    H = bundle.about.history
    return TopicTable(rows, math.nextafter(bundle.about.sensitivity * H, math.inf))


def _of_length(history: Histories, bundle: Bundle) -> Histories:
    if history.ndim != 2 or history.shape[1] != bundle.about.history:
        raise ValueError(
            f"a history is (n, {bundle.about.history}) rows of items, -1 in front for "
            f"padding; found shape {history.shape}"
        )
    return history
