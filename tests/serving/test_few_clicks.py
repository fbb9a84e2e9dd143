"""Lists of few clicks: noise does not make a taste of them, and what is said of such lists is
true."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedrec
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.serving.asking import HIDDEN, ask, told
from fedrec.serving.bundle import Bundle, read

pytestmark = pytest.mark.slow

K = 10
HELD = 12
Lists = npt.NDArray[np.intp]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, npt.NDArray[np.int32]]:
    """A bundle of planted clicks, and 12 clicks in random order of each of some 300 people whom it
    was not trained on."""
    sizes: dict[str, Any] = {"users": 3_000, "items": 500, "events": 150_000}
    data = fedrec.Dataset.planted(planted=sizes, kind="clicks")
    train, test = data.split("held-out-users")
    file = tmp_path_factory.mktemp("few") / "model.bundle"
    fedrec.MatrixFactorization(noise="seeded").fit(train).export(file)
    history = test.split.test.history
    rng = np.random.default_rng(1)
    people = np.split(history.items, history.user_ptr[1:-1])
    return read(file), np.array([rng.permutation(own)[:HELD] for own in people if len(own) >= HELD])


def lists(bundle: Bundle, people: npt.NDArray[np.int32], sent: npt.NDArray[np.float32]) -> Lists:
    scores = bundle.users(sent) @ bundle.items.T + bundle.bias
    np.put_along_axis(scores, people, -np.inf, axis=1)
    return np.argsort(-scores, axis=1)[:, :K]


def shared(one: Lists, other: Lists) -> float:
    """The mean share of titles in both lists."""
    both = (len(set(a) & set(b)) for a, b in zip(one.tolist(), other.tolist(), strict=True))
    return sum(both) / one.size


def answers(
    bundle: Bundle, people: npt.NDArray[np.int32], clicks: int, epsilon: float
) -> tuple[Lists, Lists, Lists]:
    """Everybody's list, and two fresh answers for each person."""
    own = people[:, :clicks]
    history = np.full((len(own), bundle.about.history), -1, np.int32)
    history[:, -clicks:] = own
    guarantee = Guarantee(epsilon, 1e-5, "click", "replace")
    drawn = [
        ask(bundle, history, guarantee=guarantee, key=Streams(seed).key("serving")).sent
        for seed in (1, 2)
    ]
    nothing = np.zeros_like(drawn[0])
    everybody, first, second = (lists(bundle, own, sent) for sent in (nothing, *drawn))
    return everybody, first, second


@pytest.mark.parametrize("clicks", [1, 2, 3, 6])
@pytest.mark.parametrize("epsilon", [0.5, 1, 2, 5])
def test_a_list_that_is_said_to_be_everybodys_is_nearly_that(
    asked: tuple[Bundle, npt.NDArray[np.int32]], clicks: int, epsilon: float
) -> None:
    """Shares of titles of some 300 independent draws are in [0, 1]. Were their mean .9, it would be
    below .8 with probability exp(-2 x 300 x .01) = .0025 (Hoeffding)."""
    bundle, people = asked
    share = told(bundle, clicks, guarantee=Guarantee(epsilon, 1e-5, "click", "replace"))
    assert share is not None
    if share >= HIDDEN and clicks > 2:
        pytest.skip(f"nothing is said: {share:.0%} is left")
    everybody, first, second = answers(bundle, people, clicks, epsilon)
    assert len(people) >= 250
    assert shared(first, everybody) > 0.8
    assert shared(first, second) > 0.8


def test_few_clicks_are_said_to_show_little_and_many_to_show_much(
    asked: tuple[Bundle, npt.NDArray[np.int32]],
) -> None:
    left = [
        told(asked[0], clicks, guarantee=Guarantee(5.0, 1e-5, "click", "replace")) or 0.0
        for clicks in (1, 2, 4, 8, 30)
    ]
    assert left == sorted(left)
    assert left[0] < 0.25 < 0.6 < left[-1]


@pytest.mark.parametrize("clicks", [1, 2, 4, 6, 10])
def test_an_answer_finds_no_less_than_popularity(
    asked: tuple[Bundle, npt.NDArray[np.int32]], clicks: int
) -> None:
    """The other clicks of each person are found; three standard errors of the paired difference,
    which chance passes once in 700 runs."""
    bundle, people = asked
    everybody, first, second = answers(bundle, people, clicks, 5.0)
    gains = np.array(
        [
            (len(set(a) & set(own)) + len(set(b) & set(own))) / 2 - len(set(c) & set(own))
            for a, b, c, own in zip(first, second, everybody, people[:, clicks:], strict=True)
        ]
    )
    assert gains.mean() >= -3 * gains.std() / np.sqrt(len(gains))
