"""Checks of hostile clients: who is refused, what an opening costs, and that nothing else about an
honest user is opened."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedrec.arrays import UInt64s
from fedrec.errors import PrivacyError
from fedrec.federation import hostile_clients
from fedrec.federation.hostile_clients import (
    ATTEMPTS,
    MARGIN,
    ROWS,
    SHARE,
    SPREAD,
    on_checked_grid,
    opening_mu,
    projection_limit,
)
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.releases import noise_mu, noise_stds, priced
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.sharing.layout import (
    LARGEST,
    CheckedRow,
    RowLayout,
    checked_layout,
    four_squares,
    plain_numbers,
    with_own_noise,
)
from fedrec.sharing.servers import accepted, coin_term, opening, projection
from fedrec.sharing.shares import fresh_seeds, share

ITEMS = 60
WIDTH = 3
FOLDS = 2
USERS = 64
QUESTION = Question(
    1,
    "s",
    {},
    (
        ReleaseSpec(
            "s",
            (
                block("s", "linear", rows=ITEMS, width=WIDTH, folds=FOLDS),
                block("m", "linear", rows=1, width=2, radius=0.5),
            ),
        ),
        ReleaseSpec("g", (block("g", "outer", rows=1, width=4),)),
    ),
)
KEYS = [bytes([i]) * 32 for i in range(3)]


def plan(epsilon: float = 5.0, **more: str) -> Plan:
    return among_three(
        calibrate(Guarantee(epsilon, 1e-5), {"s": 0.5, "g": 0.5}),
        calibrated_for="one-corrupt",
        hostile_clients="checked",
    )


ASKED = on_checked_grid(QUESTION, plan())
LAYOUT = checked_layout(ASKED)


def checked() -> CheckedRow:
    assert LAYOUT.checked is not None
    return LAYOUT.checked


def honest(seed: int = 0, users: int = USERS) -> UInt64s:
    rng = np.random.default_rng(seed)
    held = [np.flatnonzero(rng.random(ITEMS) < rng.random()) for _ in range(users)]
    held[0] = np.arange(ITEMS)
    held[1] = np.arange(0)
    ptr = np.concatenate([[0], np.cumsum([len(h) for h in held])]).astype(np.int64)
    blocks = [
        RealBlock(rng.normal(size=int(ptr[-1])), rng.normal(size=(FOLDS * users, WIDTH))),
        RealBlock(rng.normal(size=users), rng.normal(size=(users, 2))),
        RealBlock(np.ones(users), rng.normal(size=(users, 4))),
    ]
    return plain_numbers(
        bounded(ptr, np.concatenate(held).astype(np.int32), blocks, ASKED.releases), LAYOUT
    )


def with_noise(rows: UInt64s, seed: int = 0) -> UInt64s:
    return with_own_noise(
        rows, LAYOUT, [np.random.default_rng([seed, k]).bytes(32) for k in range(len(rows))]
    )


def openings(rows: UInt64s, coin: bytes = b"c", shape: RowLayout = LAYOUT) -> list[UInt64s]:
    sent = share(rows, fresh_seeds(len(rows)))
    C = projection([coin_term(key, coin, b"b") for key in KEYS], checked().data.stop)
    return [
        opening(*sent.held_by(i), checked(), C, i, (KEYS[i], KEYS[(i + 1) % 3]), coin)
        for i in range(3)
    ]


def judged(rows: UInt64s, coin: bytes = b"c") -> np.ndarray:
    return accepted(openings(rows, coin), checked())


def test_honest_users_are_accepted_whatever_they_hold_and_their_norms_open_to_zero() -> None:
    rows = with_noise(honest())
    terms = openings(rows)
    opened = terms[0] + terms[1] + terms[2]
    assert (opened[:, : len(checked().equations)] == 0).all()
    assert accepted(terms, checked()).all()
    y = opened[:, len(checked().equations) :].view(np.int64)
    assert np.abs(y).max() < 6.5 * checked().noise_std  # of 2,560 numbers, once in 4 million runs


def test_an_honest_user_is_refused_once_in_a_billion_attempts() -> None:
    """By the tails: |C x| beyond 8 |x| with probability 2 exp(-64) a row, and the client's own
    noise beyond what is left of the limit."""
    longest = 8 * math.sqrt(sum(equation.square for equation in checked().equations))
    assert longest < checked().limit / 100
    beyond = stats.norm.sf((checked().limit - longest) / checked().noise_std)
    assert 2 * ROWS * (beyond + math.exp(-64)) < 1e-9


def test_the_projection_opens_to_c_x_and_the_noise_in_pythons_integers() -> None:
    rows = with_noise(honest(users=3))
    C = projection([coin_term(key, b"c", b"b") for key in KEYS], checked().data.stop).view(np.int64)
    terms = openings(rows)
    y = (terms[0] + terms[1] + terms[2])[:, len(checked().equations) :].view(np.int64)
    for k, row in enumerate(rows.view(np.int64).tolist()):
        for r in range(ROWS):
            assert (
                y[k, r]
                == sum(int(c) * x for c, x in zip(C[:, r], row[: checked().data.stop], strict=True))
                + row[checked().noise.start + r]
            )


def cheat(name: str, rows: np.ndarray, rng: np.random.Generator) -> None:
    """Changes rows (n, L) in place as a client that means harm would, before slack is made for
    them."""
    coefficients = LAYOUT.parts[0].left
    vector = LAYOUT.parts[0].right
    match name:
        case "ten times too long":
            rows[:, coefficients] *= 10
        case "a vector of norm 1.01":
            rows[:, vector] = 0
            rows[:, vector.start] = int(1.01 / ASKED.blocks[0].vector_step)
        case "2^63 in a vector":
            rows[:, vector.start + 1] = np.int64(np.iinfo(np.int64).min)
        case "all coefficients 2^26":
            rows[:, coefficients] = rng.choice([-1, 1], (len(rows), ITEMS)) * 2**26
        case "a matrix's vector too long":
            rows[:, LAYOUT.parts[2].left] *= 3
        case _:
            rows[:, coefficients.start + 7] = np.int64(np.uint64(1 << int(name)).view(np.int64))


WRAPS = ["31", "32", "40", "62", "63"]
CHEATS = [
    "ten times too long",
    "a vector of norm 1.01",
    "2^63 in a vector",
    "all coefficients 2^26",
    "a matrix's vector too long",
    "25",
    "31",
    "32",
    "40",
    "62",
    "63",
]


@pytest.mark.parametrize("name", CHEATS)
def test_cheaters_are_refused_beside_honest_users_whatever_slack_they_add(name: str) -> None:
    rng = np.random.default_rng(5)
    rows = honest().view(np.int64)
    hostile = rows[: USERS // 2]
    before = rows[: USERS // 2].copy()
    cheat(name, hostile, rng)
    changed = (hostile != before).any(axis=1)
    assert changed.sum() >= USERS // 2 - 1  # all but who holds nothing
    # the slack that makes the equation hold modulo 2^64, where four squares can
    for equation in checked().equations:
        total = sum(
            w * (hostile[:, where].view(np.uint64) ** 2).sum(axis=1) for where, w in equation.terms
        )
        left = (np.uint64(equation.square) - np.asarray(total, np.uint64)).view(np.int64)
        fits = (left >= 0) & (left < LARGEST)
        hostile[fits, equation.slack] = four_squares(left[fits])
    found = judged(with_noise(rows.view(np.uint64)))
    assert not found[: USERS // 2][changed].any()
    assert found[USERS // 2 :].all()


def test_without_projections_a_number_that_wraps_around_passes() -> None:
    """Why they are there: 2^32 in an entry, whose square is 0 modulo 2^64."""
    rows = honest(users=4)
    before = rows[:, 7].view(np.int64) ** 2
    rows[:, 7] = np.uint64(2**32)
    for row, square in zip(rows.view(np.int64), before, strict=True):
        slack = checked().equations[FOLDS + 1].slack
        row[slack] = four_squares(
            np.array(
                [(row[slack] ** 2).sum() + checked().equations[FOLDS + 1].terms[0][1] * square]
            )
        )[0]
    terms = openings(with_noise(rows))
    assert ((terms[0] + terms[1] + terms[2])[:, : len(checked().equations)] == 0).all()
    assert not accepted(terms, checked()).any()


def test_slack_that_is_negative_or_large_helps_nobody() -> None:
    rows = with_noise(honest())
    start = checked().equations[0].slack.start
    rows[0, start] += np.uint64(1)
    rows[1, start] = np.uint64(2**63)
    rows[2, start : start + 4] = np.uint64(2**32)
    # the same squares: its own numbers are as long as before
    rows[3:4, start] *= np.uint64(2**64 - 1)
    assert judged(rows).tolist() == [False, False, False] + [True] * (USERS - 3)


def test_rows_at_the_limit_of_the_lemma_cannot_wrap_around() -> None:
    """Numbers up to 2 B keep both sides of every equation below 2^64."""
    specs = {spec.name: spec for spec in ASKED.blocks}
    for bound in hostile_clients.norm_bounds(ASKED):
        weights = 4 + (
            specs[bound.vector[0]].width
            if bound.vector
            else sum(weight * specs[name].rows for name, weight in bound.coefficients)
        )
        assert weights * (2 * checked().limit) ** 2 < 2**64
        assert bound.square < 2**64
    C = projection([b"1", b"2", b"3"], 50_000).view(np.int64)
    assert {-1, 0, 1} == set(np.unique(C))
    counts = [(value == C).sum() for value in (-1, 0, 1)]
    # false alarm once in a million
    assert stats.chisquare(counts, np.array([1, 2, 1]) * C.size / 4).pvalue > 1e-6
    assert (projection([b"1", b"2", b"4"], 50_000).view(np.int64) != C).mean() > 0.6


def test_each_projection_catches_a_number_beyond_the_limit_with_probability_one_half() -> None:
    """With one projection of forty, a wrap passes half of the time; a binomial of 40 * 200 draws,
    false alarm below 10^-9."""
    rows = np.zeros((1, LAYOUT.length), np.uint64)
    rows[0, 7] = np.uint64(2 * checked().limit + 2)
    passed = 0
    for trial in range(200):
        terms = openings(rows, coin=bytes([trial]))
        y = (terms[0] + terms[1] + terms[2])[0, len(checked().equations) :].view(np.int64)
        passed += int((np.abs(y) <= checked().limit).sum())
    assert abs(passed - 4_000) < 6.2 * math.sqrt(8_000 / 4)


# --- what an opening costs ---


def test_two_rows_are_as_far_apart_as_the_price_says_and_no_farther() -> None:
    """Against the empty report, which is slack alone: |z|^2 <= 2 Q, with equality where slack does
    not overlap."""
    rows = honest().view(np.int64)
    empty = np.zeros((1, LAYOUT.length), np.int64)
    for equation in checked().equations:
        empty[:, equation.slack] = four_squares(np.array([equation.square]))
    data = checked().data
    apart = ((rows[:, data] - empty[:, data]) ** 2).sum(axis=1)
    total = sum(bound.square for bound in hostile_clients.norm_bounds(ASKED))
    assert apart.max() <= 2 * total
    assert (rows[:, data] >= -total).all()
    assert all((rows[:, equation.slack] >= 0).all() for equation in checked().equations)


def test_projections_are_spread_as_the_price_says() -> None:
    """exp(20 - a) (a / 20)^20 < 2^-100 at a = SPREAD in exact arithmetic; and 2,000 drawn
    projections are far below."""
    a = Fraction(SPREAD)
    assert math.log2(math.e) * (20 - SPREAD) + 20 * math.log2(float(a / 20)) < -100
    rng = np.random.default_rng(1)
    for z in (rng.normal(size=200), np.eye(200)[0], np.ones(200)):
        squares = [
            ((projection([t.to_bytes(2, "big"), b"", b""], 200).view(np.int64).T @ z) ** 2).sum()
            / (z @ z)
            for t in range(600)
        ]
        assert np.mean(squares) == pytest.approx(ROWS / 2, rel=0.05)
        assert max(squares) < SPREAD / 2


def test_openings_cost_what_the_plan_says_by_the_noise_that_clients_draw() -> None:
    """Second computation of mu from the definition; and drawn noise passes Kolmogorov-Smirnov at
    its std and fails at 2/3 and 3/2 of it."""
    limit = projection_limit(ASKED)
    opened = opening_mu(ASKED)
    by_hand = (
        math.sqrt(sum(2 * bound.square for bound in hostile_clients.norm_bounds(ASKED)))
        * math.sqrt(SPREAD * ATTEMPTS)
        / (limit / MARGIN)
    )
    assert math.hypot(*opened.values()) == pytest.approx(by_hand, rel=1e-9)
    noise = (
        with_noise(np.zeros((500, LAYOUT.length), np.uint64), seed=3)[:, checked().noise]
        .view(np.int64)
        .ravel()
    )
    for factor, fits in ((1.0, True), (2 / 3, False), (1.5, False)):
        found = stats.kstest(noise / (factor * limit / MARGIN), "norm").pvalue
        assert (found > 1e-6) == fits


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, 20.0])
def test_releases_with_their_checks_cost_what_was_planned(epsilon: float) -> None:
    made = plan(epsilon)
    asked = on_checked_grid(QUESTION, made)
    assert on_checked_grid(asked, made) == asked
    opened = opening_mu(asked)
    stds = {
        spec.name: noise_stds(asked, made)[of.name] for of in asked.releases for spec in of.blocks
    }
    for event in priced(asked, stds, made):
        assert event.mu <= made[event.name].mu * (1 + 1e-9)
        assert event.mu == pytest.approx(made[event.name].mu, rel=1e-4)
        assert opened[event.name] ** 2 <= SHARE * made[event.name].mu ** 2
        assert noise_mu(asked, made)[event.name] < made[event.name].mu
    unchecked = replace(made, hostile_clients="trusted-sites")
    assert all(
        noise_stds(asked, made)[name] > std for name, std in noise_stds(asked, unchecked).items()
    )
    assert on_checked_grid(QUESTION, unchecked) is QUESTION


def test_a_grid_that_checks_cannot_pay_for_is_refused() -> None:
    with pytest.raises(PrivacyError, match="cost more than was planned"):
        noise_mu(QUESTION, plan(0.01))
    with pytest.raises(PrivacyError, match="no grid"):
        on_checked_grid(QUESTION, plan(0.0001))
    joint = replace(
        QUESTION,
        releases=(ReleaseSpec("s", (*QUESTION.releases[0].blocks, *QUESTION.releases[1].blocks)),),
    )
    with pytest.raises(PrivacyError, match="a coefficient for each user"):
        on_checked_grid(joint, plan())


# --- four squares ---


@pytest.mark.parametrize("kind", ["small", "random", "legendre"])
def test_every_number_is_a_sum_of_four_squares(kind: str) -> None:
    numbers = {
        "small": np.arange(300_000),
        "random": np.random.default_rng(1).integers(0, LARGEST, 100_000),
        "legendre": np.array(
            [
                4**a * (8 * b + 7)
                for a in range(14)
                for b in range(100)
                if 4**a * (8 * b + 7) < LARGEST
            ]
        ),
    }[kind]
    found = four_squares(numbers)
    assert ((found**2).sum(axis=1) == numbers).all()
    assert (found >= 0).all()
    with pytest.raises(ValueError, match="must lie"):
        four_squares(np.array([-1]))


def test_one_aggregators_opening_confirms_no_guess_of_a_report() -> None:
    """Aggregator 1 knows shares 1 and 2, and share 0 of a row that it guesses: aggregator 0's terms
    would be those that it computes."""
    rows = with_noise(honest(users=2))
    C = projection([coin_term(key, b"c", b"b") for key in KEYS], checked().data.stop)
    sent = share(rows, fresh_seeds(2))
    told = opening(*sent.held_by(0), checked(), C, 0, (KEYS[0], KEYS[1]), b"c")
    guessed = rows - sent.of(1) - sent.of(2)
    nothing = bytes(32)
    bare = opening(guessed, sent.of(1), checked(), C, 0, (nothing, nothing), b"c")
    assert (told != bare).all()
