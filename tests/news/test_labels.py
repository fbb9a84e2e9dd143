import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from fedrec.data.impressions import Impressions
from fedrec.news import labels
from fedrec.news.checkpoints import DeviceNoise
from fedrec.privacy.keystream import Keystream
from fedrec.privacy.selection import (
    largest_log_ratio,
    output_table,
    randomised_response,
    subset_selection,
)
from fedrec.randomness import Streams

KEY = Streams(8).key("labels")


def impressions(sizes: list[int], clicked: list[list[int]]) -> Impressions:
    """Impression i shows items 0 .. sizes[i] - 1, of which places clicked[i] were clicked."""
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    flags = np.zeros(ptr[-1], np.bool_)
    for start, places in zip(ptr, clicked, strict=False):
        flags[start + np.array(places, int)] = True
    shown = np.concatenate([np.arange(C) for C in sizes]).astype(np.int32)
    empty = np.zeros(len(sizes) + 1, np.int64)
    return Impressions(
        max(sizes),
        empty,
        np.empty(0, np.int32),
        np.arange(len(sizes), dtype=np.int32),
        ptr,
        shown,
        flags,
    )


def test_at_infinite_epsilon_the_clicked_candidate_is_reported() -> None:
    data = impressions([3, 5, 2, 1], [[1], [4], [0], [0]])
    got = labels.report_clicks(data, epsilon=math.inf, key=KEY)
    np.testing.assert_array_equal(got.reported, data.clicked)
    np.testing.assert_array_equal(got.single, [1, 4, 0, 0])


def test_people_who_saw_and_clicked_the_same_answer_by_coins_of_their_own() -> None:
    """Of 2,000 people at epsilon 1 among five candidates, the share that tells the truth is that of
    one person: within 6 standard errors of e / (e + 4). Under one key all would say the same."""
    people = 2_000
    data = impressions([5] * people, [[2]] * people)

    def answer(mine: Impressions, key: bytes) -> labels.LabelReports:
        return labels.report_clicks(mine, epsilon=1.0, key=key)

    noise = DeviceNoise.numbered(Streams(3), people)
    told = labels.reports_by_user(data, answer, noise, epsilon=1.0).single == 2
    truthful = math.e / (math.e + 4)
    assert abs(told.mean() - truthful) < 6 * math.sqrt(truthful * (1 - truthful) / people)


def test_one_click_of_several_is_drawn_uniformly_and_none_is_minus_one() -> None:
    """Chi-squared at level 1e-4, 30,000 impressions of three clicks."""
    data = impressions([5] * 30_000 + [2], [[0, 2, 3]] * 30_000 + [[]])
    drawn = labels.drawn_clicks(data, key=KEY)
    assert drawn[-1] == -1
    values, counts = np.unique(drawn[:-1], return_counts=True)
    np.testing.assert_array_equal(values, [0, 2, 3])
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("mechanism", [randomised_response, subset_selection])
def test_reports_follow_the_enumerated_table_with_and_without_clicks(
    mechanism: labels.Mechanism,
) -> None:
    """Chi-squared at level 1e-4 per kind of impression; 3 candidates and the null symbol at epsilon
    0.8."""
    epsilon = 0.8
    each = 20_000
    data = impressions([3] * 3 * each, [[1]] * each + [[]] * each + [[0, 2]] * each)
    got = labels.report_impressions(data, epsilon=epsilon, key=KEY, mechanism=mechanism)
    selection = mechanism(4, epsilon)
    sets = {S: i for i, S in enumerate(itertools.combinations(range(4), selection.size))}
    flags = np.column_stack([got.reported.reshape(-1, 3), got.null])
    outputs = np.array([sets[tuple(np.flatnonzero(row).tolist())] for row in flags])
    table = output_table(selection)
    for block, law in enumerate((table[1], table[3], (table[0] + table[2]) / 2)):
        counts = np.bincount(outputs[block * each : (block + 1) * each], minlength=len(sets))
        assert stats.chisquare(counts, law * each).pvalue > 1e-4
        assert stats.chisquare(counts, np.roll(law, 1) * each).pvalue < 1e-4


@pytest.mark.parametrize("mechanism", [randomised_response, subset_selection])
def test_no_word_of_a_keystream_is_drawn_twice(
    mechanism: labels.Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impressions of all sizes with one click and several: answers that shared words would tell of
    each other."""
    begun = list[tuple[bytes, int]]()
    begin = Keystream.__init__

    def init(self: Keystream, key: bytes, *, section: int, buffer_words: int) -> None:
        begun.append((key, section))
        begin(self, key, section=section, buffer_words=buffer_words)

    monkeypatch.setattr(Keystream, "__init__", init)
    data = impressions([*range(4, 9)] * 3, [[0]] * 5 + [[0, 2]] * 5 + [[1, 2, 3]] * 5)
    for answer in (
        partial(labels.report_clicks, epsilon=1.0, mechanism=mechanism),
        partial(labels.report_impressions, epsilon=1.0, mechanism=mechanism),
        partial(labels.as_printed, epsilon=1.0, negatives=2),
    ):
        begun.clear()
        answer(data, key=KEY)
        assert len(begun) >= 7
        assert len(set(begun)) == len(begun)


def all_sets(C: int) -> list[tuple[int, ...]]:
    return [S for n in range(C + 1) for S in itertools.combinations(range(C), n)]


@pytest.mark.parametrize("mechanism", [randomised_response, subset_selection])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_exhaustive_table_over_all_click_sets_has_ratio_exp_epsilon(
    mechanism: labels.Mechanism, epsilon: float
) -> None:
    """Every set of clicked candidates of 4, the empty one too: uniform draw, then the mechanism
    over 5 symbols. Replacing, adding, removing a click are pairs of rows; the largest over all
    pairs is e^epsilon to rounding."""
    table = output_table(mechanism(5, epsilon))
    laws = np.array([table[list(S)].mean(0) if S else table[4] for S in all_sets(4)])
    assert largest_log_ratio(laws) == pytest.approx(epsilon, rel=1e-9)


def test_the_event_covers_the_dearest_size_and_costs_epsilon() -> None:
    got = labels.report_clicks(impressions([2, 9, 4], [[0], [0], [0]]), epsilon=1.5, key=KEY)
    assert got.event == randomised_response(2, 1.5).event("label")
    assert got.weight == pytest.approx(math.e**1.5 - 1)


def test_the_printed_permutation_names_the_clicked_one_by_its_support() -> None:
    """Exhaustively at C = 4: infinite epsilon for k = 1, 2; exactly epsilon when the whole
    impression is sent."""
    for k in (1, 2):
        table = labels.table_as_printed(4, k, 1.0)
        np.testing.assert_allclose(table.sum(1), 1)
        assert math.isinf(largest_log_ratio(table))
        guarantee = labels.printed_guarantee(4, k, 1.0)
        assert not guarantee.established
        assert "infinite" in str(guarantee)
    assert largest_log_ratio(labels.table_as_printed(4, 3, 1.0)) == pytest.approx(1.0)
    # the floor: no epsilon below log(36 / 4) is reached
    assert labels.printed_beta(37, 4, 1.0) == 0.0


def test_the_printed_draws_follow_the_printed_table_and_always_hold_the_click() -> None:
    """Chi-squared at level 1e-4, 30,000 impressions."""
    data = impressions([4] * 30_000, [[2]] * 30_000)
    rows, guarantee = labels.as_printed(data, epsilon=2.0, negatives=2, key=KEY)
    assert (rows == 2).any(1).all()
    assert not guarantee.established
    outputs = {
        (S, x): i
        for i, (S, x) in enumerate((S, x) for S in itertools.combinations(range(4), 3) for x in S)
    }
    counts = np.bincount(
        [outputs[tuple(sorted(row)), row[0]] for row in rows.tolist()], minlength=len(outputs)
    )
    law = labels.table_as_printed(4, 2, 2.0)[2]
    assert (counts[law == 0] == 0).all()
    assert stats.chisquare(counts[law > 0], law[law > 0] * counts.sum()).pvalue > 1e-4


def test_what_cannot_be_answered_is_refused() -> None:
    none = impressions([3], [[]])
    with pytest.raises(ValueError, match="report_impressions"):
        labels.report_clicks(none, epsilon=1.0, key=KEY)
    with pytest.raises(ValueError):
        labels.as_printed(none, epsilon=1.0, negatives=1, key=KEY)
    with pytest.raises(ValueError, match="shows nothing"):
        labels.report_impressions(impressions([3, 0], [[0], []]), epsilon=1.0, key=KEY)
