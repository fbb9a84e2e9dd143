"""Means over seeds and their intervals, against the textbook."""

import math

import pytest

from fedrec.evaluation import intervals


def test_the_error_of_a_mean_is_the_textbook_s() -> None:
    mean, error = intervals.mean_and_error([1.0, 2.0, 6.0])
    assert mean == pytest.approx(3)
    assert error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3))
    assert math.isnan(intervals.mean_and_error([1.0])[1])


def test_intervals_are_students_t_on_paired_differences() -> None:
    """2.776 is the 97.5% quantile of t with 4 degrees of freedom in any table."""
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    error = math.sqrt(sum((v - 4.0) ** 2 for v in values) / 4 / 5)
    found = intervals.interval(values)
    assert found.mean == pytest.approx(4.0)
    assert found.half == pytest.approx(2.776 * error, rel=1e-3)
    shifted = intervals.paired([v + 0.5 for v in values], values)
    assert shifted.mean == pytest.approx(0.5)
    assert shifted.half == pytest.approx(0.0, abs=1e-12)
    lone = intervals.interval([1.0])
    assert not any((lone.above, lone.below))
