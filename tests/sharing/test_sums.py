"""Sums of shares are the sums of reports, whatever the reports, batches and order; one aggregator's
part of them is uniform."""

import os

import numpy as np
import pytest
from scipy import stats

from fedrec.errors import PrivacyError
from fedrec.federation.messages import Question, ReleaseSpec, Reports
from fedrec.federation.reports import block, exact_sums
from fedrec.sharing.layout import RowLayout, layout, plain_numbers, require_sharable
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.servers import ShareSums, total
from fedrec.sharing.shares import Shares, fresh_seeds, share, zero_share
from tests.sharing.reports import ITEMS, QUESTION, some_reports

LAYOUT = layout(QUESTION)


def no_noise() -> list[np.ndarray]:
    return [np.zeros((spec.rows, spec.columns), np.int64) for spec in QUESTION.blocks]


def shared(reports: Reports) -> Shares:
    return share(plain_numbers(reports, LAYOUT), fresh_seeds(reports.num_users))


def outputs(
    batches: list[Shares], keys: list[bytes], noise: list[list[np.ndarray]]
) -> list[tuple[np.ndarray, ...]]:
    found = []
    for i in range(3):
        sums = ShareSums(LAYOUT)
        for sent in batches:
            sums.add(*sent.held_by(i))
        found.append(sums.output(noise[i], (keys[i], keys[(i + 1) % 3]), b"run/3/0"))
    return found


@pytest.mark.parametrize("num_users", [0, 1, 3, 70])
def test_outputs_add_up_to_the_sums_of_the_reports_and_all_three_noises(num_users: int) -> None:
    reports = some_reports(num_users, num_users)
    rng = np.random.default_rng(1)
    noise = [[rng.integers(-(2**40), 2**40, block.shape) for block in no_noise()] for _ in range(3)]
    found = total(outputs([shared(reports)], [os.urandom(32) for _ in range(3)], noise))
    for made, expected, *drawn in zip(
        found, exact_sums(reports, QUESTION.blocks), *noise, strict=True
    ):
        assert (made == expected + sum(drawn)).all()


def test_batches_and_the_order_of_users_change_no_bit() -> None:
    keys = [os.urandom(32) for _ in range(3)]
    noise = [no_noise()] * 3
    some = [some_reports(seed, 9) for seed in (1, 2, 3)]
    forwards = total(outputs([shared(reports) for reports in some], keys, noise))
    backwards = total(outputs([shared(reports) for reports in reversed(some)], keys, noise))
    assert all((a == b).all() for a, b in zip(forwards, backwards, strict=True))
    with pytest.raises(ValueError, match="numbers a user"):
        ShareSums(LAYOUT).add(np.zeros((2, 3), np.uint64), np.zeros((2, 3), np.uint64))


def test_a_row_is_as_long_for_one_item_as_for_all() -> None:
    reports = some_reports(5, 3)
    assert np.diff(reports.user_ptr).tolist() == [ITEMS, 0, 3]
    assert shared(reports).explicit.shape == (3, LAYOUT.length)
    assert LAYOUT.length == (ITEMS + 8 * 5) + (1 + 7) + (ITEMS + 1) + (1 + 1) + (4 + 4)
    assert upload_bytes(LAYOUT.length) == 8 * LAYOUT.length + 5 * 32 + 3 * 128


def test_a_matrix_for_each_item_is_refused() -> None:
    with pytest.raises(PrivacyError, match="three aggregators cannot"):
        layout(
            Question(0, "s", {}, (ReleaseSpec("gram", (block("gram", "outer", rows=4, width=2),)),))
        )


def test_blocks_of_different_rows_are_refused() -> None:
    """An item beyond the rows of one block would be written among the coefficients of another, and
    count there by its step: a report of many radii."""
    blocks = (block("a", "linear", rows=2, width=1), block("b", "linear", rows=ITEMS, width=1))
    with pytest.raises(PrivacyError, match="blocks of one question have"):
        layout(Question(0, "s", {}, (ReleaseSpec("r", blocks),)))


def test_an_item_that_a_block_does_not_have_is_refused() -> None:
    reports = some_reports(5, 3)
    last = int(reports.user_ptr[1]) - 1
    reports.items[last] = ITEMS
    for read in (plain_numbers, require_sharable):
        with pytest.raises(ValueError, match="does not have"):
            read(reports, LAYOUT)


def test_a_user_who_names_an_item_twice_is_refused() -> None:
    reports = some_reports(5, 3)
    reports.items[1] = reports.items[0]
    with pytest.raises(ValueError, match="twice"):
        plain_numbers(reports, LAYOUT)


def test_any_two_aggregators_have_the_report_and_each_has_two_of_three_shares() -> None:
    numbers = plain_numbers(some_reports(4, 5), LAYOUT)
    sent = share(numbers, fresh_seeds(5))
    for i in range(3):
        own, following = sent.held_by(i)
        _, last = sent.held_by((i + 1) % 3)
        assert (own + following + last == numbers).all()


def p_uniform(words: np.ndarray) -> float:
    """Of the bytes of uint64 words, by chi-square."""
    counts = np.bincount(np.ascontiguousarray(words).view(np.uint8).ravel(), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def views(numbers: np.ndarray) -> list[float]:
    """What each aggregator holds of one report that is sent again and again: each share, their
    difference, xor and sum."""
    again = np.repeat(numbers, 400, axis=0)
    sent = share(again, fresh_seeds(len(again)))
    found = list[float]()
    for i in range(3):
        a, b = sent.held_by(i)
        found += [
            p_uniform(words)
            for words in (a, b, a - b, a ^ b, a + b, np.diff(a, axis=0), np.diff(b, axis=0))
        ]
    return found


def test_what_one_aggregator_holds_is_uniform_whatever_the_report() -> None:
    """42 tests of fresh randomness, each failing by chance once in 10^8: a false alarm in two
    million runs."""
    full = some_reports(4, 2)
    empty = np.zeros((1, LAYOUT.length), np.uint64)
    for numbers in (plain_numbers(full, LAYOUT)[:1], empty):
        assert min(views(numbers)) > 1e-8


def test_users_and_attempts_never_share_a_seed() -> None:
    seeds = np.concatenate([fresh_seeds(50), fresh_seeds(50)]).reshape(-1, 32)
    assert len({seed.tobytes() for seed in seeds}) == 200


def test_masks_cancel_and_belong_to_their_context() -> None:
    keys = [os.urandom(32) for _ in range(3)]
    masks = [zero_share(keys[i], keys[(i + 1) % 3], b"a", 500) for i in range(3)]
    assert not (masks[0] + masks[1] + masks[2]).any()
    assert all(p_uniform(mask) > 1e-8 for mask in masks)
    assert not (masks[0] == zero_share(keys[0], keys[1], b"b", 500)).any()


def guess_is_confirmed(
    reports: Reports, guessed: np.ndarray, layout: RowLayout, mask: bool
) -> bool:
    """Aggregator 1 and the server look at aggregator 0's output.

    Aggregator 1 lacks share 0, but a guess of the report gives it."""
    keys = [os.urandom(32) for _ in range(3)] if mask else [bytes(32)] * 3
    noise = [
        [np.random.default_rng(7).integers(-1000, 1000, block.shape) for block in no_noise()]
    ] * 3
    sent = shared(reports)
    first = outputs([sent], keys, noise)[0]
    one, two = sent.held_by(1)
    predicted = ShareSums(layout)
    predicted.add(guessed - one - two, one)
    zeros = predicted.output(no_noise(), (bytes(32), bytes(32)), b"")
    off = np.concatenate(
        [(a - b).view(np.int64).ravel() for a, b in zip(first, zeros, strict=True)]
    )
    return bool((np.abs(off.astype(float)) < 2**40).all())


def test_an_output_confirms_no_guess_of_a_report_and_without_masks_it_would() -> None:
    reports = some_reports(8, 1)
    other = plain_numbers(some_reports(9, 1), LAYOUT)
    numbers = plain_numbers(reports, LAYOUT)
    assert not guess_is_confirmed(reports, numbers, LAYOUT, mask=True)
    assert guess_is_confirmed(reports, numbers, LAYOUT, mask=False)
    assert not guess_is_confirmed(reports, other, LAYOUT, mask=False)


def test_one_user_more_changes_the_sums_by_exactly_that_users_report() -> None:
    everybody = some_reports(6, 20)
    last = some_reports(6, 1)
    keys = [os.urandom(32) for _ in range(3)]
    noise = [no_noise()] * 3
    without, with_one = (
        total(outputs(batches, keys, noise))
        for batches in ([shared(everybody)], [shared(everybody), shared(last)])
    )
    for before, after, own in zip(
        without, with_one, exact_sums(last, QUESTION.blocks), strict=True
    ):
        assert (after - before == own).all()
