"""Claims that points of kept figures decide: differences of two points, paired by seed, or values
of one.

Two points of a pair are of one model, one split and the same users, and their settings were chosen
by the same search on validation ratings, which the scenario of the figure states; where they were
not, the claim says so and is not tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedrec.evaluation.intervals import Interval, interval, paired
from fedrec_research.claims.claim import Evidence, Test
from fedrec_research.study.judging import Point, Verdict, judged, of_counts
from fedrec_research.trials import Row

Figures = Mapping[str, Sequence[Row]]
_LOWER = ("rmse", "seconds", "noise std", "cost ratio")
"""Metrics of which less is better, by a part of their names."""


LAST = "last"
"""The place of a series' last point, where places are measured too."""


@dataclass(frozen=True)
class Spot:
    """One point of a figure."""

    figure: str
    series: str
    x: float | str
    metric: str = "rmse"

    def by_seed(self, figures: Figures) -> dict[int, float]:
        """Values, the larger the better; none where the figure has no such point."""
        sign = -1 if any(part in self.metric for part in _LOWER) else 1
        rows = [
            row
            for row in figures.get(self.figure, ())
            if (row["metric"], row["series"]) == (self.metric, self.series)
        ]
        x = max((row["x"] for row in rows), default="") if self.x == LAST else self.x
        return {
            seed: sign * value
            for row in rows
            if row["x"] == x or _near(row["x"], x)
            # what was computed and not drawn has no seeds
            for seed, value in zip(row["seeds"] or [0], row["each"], strict=True)
        }

    def value(self, figures: Figures) -> float:
        """Return the mean as the figure has it; nan where it has no such point."""
        sign = -1 if any(part in self.metric for part in _LOWER) else 1
        found = self.by_seed(figures)
        return sign * math.fsum(found.values()) / len(found) if found else math.nan


def _near(one: float | str, other: float | str) -> bool:
    """Thirds are kept as decimals."""
    return not isinstance(one, str) and not isinstance(other, str) and abs(one - other) < 1e-9


@dataclass(frozen=True)
class Pair:
    """`better` is said to be better than `worse`, in one reading of a claim, at one place of its
    axis."""

    reading: str
    at: float | str
    better: Spot
    worse: Spot

    def gain(self, figures: Figures) -> Interval | None:
        """Over the seeds that both have; None where they share none."""
        first = self.better.by_seed(figures)
        second = self.worse.by_seed(figures)
        shared = sorted(first.keys() & second.keys())
        return paired([first[s] for s in shared], [second[s] for s in shared]) if shared else None


def ahead(pairs: Iterable[Pair], axis: str = "ε", note: str = "") -> Test:
    """Every pair's first is ahead of its second. note: what a reader must know of the rows."""
    listed = tuple(pairs)

    def judge(evidence: Evidence) -> Verdict:
        return _noted(_known(_points(listed, evidence.figures), axis), note)

    return _test(listed, judge)


def never_behind(pairs: Iterable[Pair], axis: str = "ε", note: str = "") -> Test:
    """The paper says that the first is as good as the second: not being told apart is no loss. The
    claim held where it is behind nowhere, and in part where it is behind somewhere."""
    listed = tuple(pairs)

    def judge(evidence: Evidence) -> Verdict:
        points = _points(listed, evidence.figures)
        verdict = _known(points, axis)
        if verdict.outcome == "not tested":
            return _noted(verdict, note)
        kept = sum(not point.gain.below for point in points)
        unseen = max(point.gain.half - point.gain.mean for point in points)
        power = f"; a loss of up to {unseen:.4f} would not be seen" if unseen > 0 else ""
        return _noted(Verdict(of_counts(kept, len(points)), f"{verdict.found}{power}"), note)

    return _test(listed, judge)


def more(pairs: Iterable[tuple[Pair, Pair]], axis: str, note: str = "") -> Test:
    """The first pair's lead is larger than the second's, seed by seed."""
    listed = tuple(pairs)

    def judge(evidence: Evidence) -> Verdict:
        points = list[Point]()
        for large, small in listed:
            leads = [_by_seed(pair, evidence.figures) for pair in (large, small)]
            shared = sorted(leads[0].keys() & leads[1].keys())
            if shared:
                gain = interval([leads[0][s] - leads[1][s] for s in shared])
                points.append(Point(large.reading, large.at, gain))
        return _noted(_known(points, axis), note)

    return _test([pair for both in listed for pair in both], judge)


def at_least(reading: str, bounds: Mapping[float, tuple[Spot, float]], axis: str) -> Test:
    """At each place a value is at least what the paper prints, by its 95% interval."""

    def judge(evidence: Evidence) -> Verdict:
        points = list[Point]()
        for place, (spot, bound) in bounds.items():
            if each := spot.by_seed(evidence.figures):
                points.append(Point(reading, place, interval([v - bound for v in each.values()])))
        said = " / ".join(f"{spot.value(evidence.figures):.3f}" for spot, _ in bounds.values())
        verdict = judged(points, axis)
        return replace(verdict, found=f"{reading}: {said}") if points else verdict

    return _test([Pair("", "", spot, spot) for spot, _ in bounds.values()], judge)


def _known(points: Sequence[Point], axis: str) -> Verdict:
    """Verdict as `judged` gives it; one seed has no interval and tells nothing."""
    if points and not any(math.isfinite(point.gain.half) for point in points):
        said = " / ".join(f"{point.gain.mean:+.4f}" for point in points)
        return Verdict("not tested", f"one seed has no interval; differences {said}")
    return judged(points, axis)


def _noted(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, found=f"{verdict.found}. {note}") if note and verdict.found else verdict


def _by_seed(pair: Pair, figures: Figures) -> dict[int, float]:
    first = pair.better.by_seed(figures)
    second = pair.worse.by_seed(figures)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def best(
    curves: Mapping[str, Sequence[Spot]],
    within: Mapping[str, tuple[float, float]] | tuple[float, float],
) -> Test:
    """On each curve the best point, by its mean, lies in the printed range of x: of all curves one,
    or each its own."""

    def judge(evidence: Evidence) -> Verdict:
        found = dict[str, float]()
        for name, spots in curves.items():
            values = {
                float(s.x): math.fsum(v.values()) / len(v)
                for s in spots
                if (v := s.by_seed(evidence.figures))
            }
            if values:
                found[name] = max(values, key=values.__getitem__)
        if not found:
            return Verdict("not tested", "")
        ranges = within if isinstance(within, Mapping) else dict.fromkeys(found, within)
        won = sum(ranges[n][0] - 1e-6 <= x <= ranges[n][1] + 1e-6 for n, x in found.items())
        said = ", ".join(f"{n}: {x:.3g}" for n, x in found.items())
        return Verdict(of_counts(won, len(found)), f"best by means: {said}")

    return _test([Pair(n, "", s, s) for n, spots in curves.items() for s in spots], judge)


def computed(
    spots: Sequence[Spot], judge: Callable[[Sequence[float]], tuple[int, int, str]]
) -> Test:
    """From the values of spots alone: how many conditions hold, of how many, and the words."""

    def verdict(evidence: Evidence) -> Verdict:
        values = [spot.value(evidence.figures) for spot in spots]
        if any(map(math.isnan, values)):
            return Verdict("not tested", "")
        won, of, found = judge(values)
        return Verdict(of_counts(won, of), found)

    return _test([Pair("", "", spot, spot) for spot in spots], verdict)


def of_other_data(spots: Sequence[Spot], why: str, digits: int = 3) -> Test:
    """A number of the paper's data or machine: ours stands beside it, and judges nothing."""

    def verdict(evidence: Evidence) -> Verdict:
        values = [spot.value(evidence.figures) for spot in spots]
        ours = " / ".join(f"{value:.{digits}f}" for value in values)
        return Verdict("not tested", f"{why}; ours {ours}")

    return _test([Pair("", "", spot, spot) for spot in spots], verdict)


def _points(pairs: Sequence[Pair], figures: Figures) -> list[Point]:
    return [
        Point(pair.reading, pair.at, gain)
        for pair in pairs
        if (gain := pair.gain(figures)) is not None
    ]


def _test(pairs: Sequence[Pair], judge: Callable[[Evidence], Verdict]) -> Test:
    spots = [spot for pair in pairs for spot in (pair.better, pair.worse)]
    commands = tuple(dict.fromkeys(_command(spot.figure) for spot in spots))
    series = dict.fromkeys(f"{spot.metric} of {spot.series}" for spot in spots)
    return Test(commands, "; ".join(series), judge)


def _command(figure: str) -> str:
    if figure == "privaterec/text":
        return "fedrec research measure news-noise"
    if figure.startswith("privaterec/"):
        return "fedrec research measure news-paper"
    return f"fedrec research figures {figure}"


def along(
    figure: str,
    better: str,
    worse: str,
    places: Iterable[float | str],
    metric: str = "rmse",
    *,
    reading: str = "",
) -> list[Pair]:
    """Two series of a figure at the same places."""
    words = reading or f"{better} against {worse}"
    return [
        Pair(words, x, Spot(figure, better, x, metric), Spot(figure, worse, x, metric))
        for x in places
    ]


def at_epsilon(
    figure: str,
    better: str,
    worse: str,
    epsilon: float,
    places: Iterable[float],
    metric: str = "rmse",
    *,
    reading: str = "",
) -> list[Pair]:
    """Two series that name their epsilon, as "AM-SSP, epsilon = 5", at places of another axis."""
    ends = [f"{name}, epsilon = {epsilon:g}" for name in (better, worse)]
    words = reading or f"{better} against {worse}, ε = {epsilon:g}"
    return along(figure, ends[0], ends[1], places, metric, reading=words)
