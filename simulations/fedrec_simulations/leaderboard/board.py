"""The leaderboard: rows of each protocol in sections of one unit, neighbours, epsilon and split,
ranked within a section and nowhere else.

Ranked are measured rows with an established guarantee (or none promised, epsilon inf), a delta that
the protocol allows, and enough seeds. Two rows whose 95% intervals overlap are not told apart: a
rank is one more than the number of rows whose whole interval is better. Published rows stand in the
section of their own unit and are never ranked: their split, and often their accounting, is another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedrec.errors import DataError
from fedrec_simulations.experiments.intervals import Interval, interval
from fedrec_simulations.leaderboard.protocol import Protocol
from fedrec_simulations.leaderboard.rows import Row


@dataclass(frozen=True)
class Entry:
    """A row with its place: `rank` None where `unranked` says why."""

    row: Row
    value: Interval
    rank: int | None
    unranked: str


@dataclass(frozen=True)
class Section:
    """Rows that may be compared: of one protocol, one unit and neighbours, one epsilon of training
    and of serving, the best first."""

    protocol: Protocol
    unit: str
    neighbours: str
    epsilon: float
    serving_epsilon: float | None
    entries: tuple[Entry, ...]

    @property
    def words(self) -> str:
        """What is promised, for a heading."""
        training = (
            "no privacy"
            if math.isinf(self.epsilon)
            else f"ε = {self.epsilon:g} per {self.unit} ({self.neighbours})"
        )
        if self.serving_epsilon is None:
            return training
        served = (
            "served without noise"
            if math.isinf(self.serving_epsilon)
            else f"each answer ε = {self.serving_epsilon:g} per click (replace)"
        )
        return f"{training}, {served}"


def sections(rows: Sequence[Row], known: Mapping[str, Protocol]) -> list[Section]:
    """In the order of protocols, then units, then epsilons.

    Raises DataError on a row that does not fit the protocol that it names."""
    groups = dict[tuple[str, str, str, float, float | None], list[Row]]()
    for row in rows:
        _require_fits(row, known)
        promised = row.guarantee
        groups.setdefault(
            (
                row.protocol,
                promised.unit,
                promised.neighbours,
                promised.epsilon,
                row.serving_epsilon,
            ),
            [],
        ).append(row)
    order = {name: number for number, name in enumerate(known)}
    keys = sorted(
        groups,
        key=lambda key: (order[key[0]], key[1], key[2], key[3], -1.0 if key[4] is None else key[4]),
    )
    return [Section(known[key[0]], *key[1:], _entries(groups[key], known[key[0]])) for key in keys]


def _require_fits(row: Row, known: Mapping[str, Protocol]) -> None:
    named = f"the row of {row.system} under {row.protocol}"
    if row.protocol not in known:
        raise DataError(
            f"{named}: there is no such protocol",
            f"There are: {', '.join(known)}. Put a new one's file beside its rows.",
        )
    protocol = known[row.protocol]
    if protocol.metric not in row.metrics:
        raise DataError(f"{named} has no {protocol.metric}", f"It has: {', '.join(row.metrics)}.")
    if row.source == "measured" and protocol.split.sha256 not in ("", row.split.sha256):
        raise DataError(
            f"{named} has another split than its protocol", "Run it on the protocol's split."
        )


def _entries(rows: Sequence[Row], protocol: Protocol) -> tuple[Entry, ...]:
    sign = 1 if protocol.best == "lowest" else -1
    found = [
        (row, interval(row.metrics[protocol.metric]), _unranked(row, rows, protocol))
        for row in rows
    ]
    found.sort(key=lambda one: (sign * one[1].mean, one[0].digest))
    ranked = [value for _, value, why in found if not why]

    def better(value: Interval) -> int:
        return sum(
            sign * other.mean + other.half < sign * value.mean - value.half for other in ranked
        )

    return tuple(
        Entry(row, value, None if why else 1 + better(value), why) for row, value, why in found
    )


def _unranked(row: Row, beside: Sequence[Row], protocol: Protocol) -> str:
    """Why a row has no rank; empty where it has one."""
    if row.source == "published":
        return "published: not run here"
    if not row.guarantee.established:
        return "guarantee not established"
    if row.guarantee.delta > protocol.largest_delta:
        return f"δ above {protocol.largest_delta:g}"
    if len(row.seeds) < protocol.least_seeds:
        return f"{len(row.seeds)} of {protocol.least_seeds} seeds"
    splits = [other.split.sha256 for other in beside if other.source == "measured"]
    if len(set(splits)) > 1 and splits.count(row.split.sha256) < max(map(splits.count, splits)):
        return "another split than most rows"
    return ""
