"""The guarantee of serving, as the device keeps it."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy.stats import kstest

from fedrec.errors import BudgetExceededError
from fedrec.privacy.bounded_mean import Coefficients
from fedrec.randomness import Streams
from fedrec.serving import asking
from fedrec.serving.bundle import Bundle
from fedrec_client import recommending
from fedrec_client.clicks import Click, Clicks
from fedrec_client.public_model import PublicModel

from .conftest import HISTORY, ITEMS, TOPICS, Asking, PlainServer, by_rows

pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")


def some_clicks(seed: int, count: int) -> Clicks:
    return Clicks.of(by_rows(np.random.default_rng(seed).integers(0, ITEMS, count)))


def test_what_leaves_is_a_function_of_the_release_alone(
    served: PlainServer, tmp_path: Path, bundle: Bundle, monkeypatch: Any
) -> None:
    """The same release under any history: the same query, all fields of it."""
    release = asking.ask(
        bundle,
        PublicModel(bundle).window(some_clicks(0, 5))[None],
        guarantee=_click(5.0),
        key=bytes(32),
    )
    monkeypatch.setattr(recommending, "ask", lambda *_, **__: release)
    for number, count in enumerate((0, 1, HISTORY, 3 * HISTORY)):
        with Asking(served, tmp_path / str(number)) as recommender:
            clicks = some_clicks(count, count)
            recommender.recommend(
                Clicks(tuple(Click(c.item, rating=5.0, line=9) for c in clicks.events))
            )
    queries = {
        (q.version, q.sent.tobytes(), q.k, q.categories, q.category_bits) for q in served.queries
    }
    assert len(served.queries) == 4
    assert len(queries) == 1


def test_what_leaves_can_be_made_from_what_the_ledger_calls_the_release(
    served: PlainServer, tmp_path: Path, bundle: Bundle
) -> None:
    with Asking(served, tmp_path / "state") as recommender:
        answer = recommender.recommend(some_clicks(1, 8)).answer
    assert answer is not None
    made = asking.query(bundle, Coefficients(answer.raw[None], answer.noise_std, answer.event))  # type: ignore[arg-type]
    assert made[0].tobytes() == served.queries[0].sent.tobytes()


def test_the_second_question_is_the_first_byte_for_byte_until_the_history_changes(
    served: PlainServer, tmp_path: Path
) -> None:
    clicks = some_clicks(2, 8)
    for _ in range(3):
        # noise from the operating system
        with Asking(served, tmp_path / "state") as recommender:
            recommender.recommend(clicks)
            recommender.recommend(clicks, k=3)
    assert len({query.sent.tobytes() for query in served.queries}) == 1
    with Asking(served, tmp_path / "state") as recommender:
        assert recommender.recommend(Clicks((*clicks.events, Click("i0")))).fresh
        assert not recommender.recommend(Clicks((*clicks.events, Click("i0")))).fresh


def test_a_click_that_leaves_the_window_as_it_was_is_a_change_too(
    served: PlainServer, tmp_path: Path
) -> None:
    """Whether an answer is fresh must not depend on what was clicked: a history of one item alone
    grows like any other."""
    with Asking(served, tmp_path / "state", limit=100.0) as recommender:
        for count in range(HISTORY, HISTORY + 3):
            assert recommender.recommend(Clicks.of(["i7"] * count)).fresh


def test_the_noise_of_what_is_kept_and_sent_has_the_stated_std(
    served: PlainServer, tmp_path: Path, bundle: Bundle
) -> None:
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-4, on 75 answers of 16 numbers; 2/3 and 3/2 of
    the std are noticed."""
    z = list[float]()
    model = PublicModel(bundle)
    with Asking(
        served, tmp_path / "state", epsilon=1.0, limit=math.inf, keys=Streams(11)
    ) as recommender:
        for count in range(75):
            clicks = Clicks((*some_clicks(count, 2).events, *[Click("i0")] * count))
            answer = recommender.recommend(clicks).answer
            assert answer is not None
            exact = asking.exact(bundle, model.window(clicks)[None])
            z += list((answer.raw - exact[0]) / answer.noise_std)
    assert len(z) == 75 * TOPICS
    assert kstest(z, "norm").pvalue > 1e-4
    assert kstest(np.array(z) * 1.5, "norm").pvalue < 1e-4
    assert kstest(np.array(z) / 1.5, "norm").pvalue < 1e-4


def test_the_std_is_the_sensitivity_of_the_rows_over_mu(
    served: PlainServer, tmp_path: Path, bundle: Bundle
) -> None:
    rows = bundle.rows.astype(np.float64) * 2.0**-20
    farthest = max(np.linalg.norm(a - b) for a in (*rows, 0 * rows[0]) for b in rows)
    with Asking(served, tmp_path / "state", epsilon=2.0) as recommender:
        answer = recommender.recommend(some_clicks(3, 5)).answer
    assert answer is not None
    assert answer.noise_std == pytest.approx(
        farthest / HISTORY / float(mu_by_quadrature(2.0)), rel=1e-6
    )


def test_the_totals_of_the_ledger_equal_an_independent_computation(
    served: PlainServer, tmp_path: Path
) -> None:
    """epsilon(delta) of n Gaussian answers by mpmath's quadrature of the hockey-stick divergence of
    two Gaussians."""
    spent = list[float]()
    for number, epsilon in enumerate((1.0, 5.0, 2.0, 5.0)):
        with Asking(served, tmp_path / "state", epsilon=epsilon, limit=20.0) as recommender:
            recommender.recommend(some_clicks(number, 5))
            spent.append(epsilon)
            mu = mpmath.sqrt(sum(mu_by_quadrature(e) ** 2 for e in spent))
            assert float(delta_by_quadrature(mu, recommender.ledger.epsilon)) == pytest.approx(
                1e-5, rel=1e-6
            )
            left = mpmath.sqrt(mu_by_quadrature(20.0) ** 2 - mu**2)
            assert float(
                delta_by_quadrature(left, recommender.ledger.epsilon_left)
            ) == pytest.approx(1e-5, rel=1e-6)


def test_past_the_limit_nothing_leaves_and_the_last_answer_is_still_free(
    served: PlainServer, tmp_path: Path
) -> None:
    with Asking(served, tmp_path / "state", epsilon=5.0, limit=6.0) as recommender:
        recommender.recommend(some_clicks(1, 5))
        with pytest.raises(BudgetExceededError):
            recommender.recommend(some_clicks(2, 5))
        assert len(served.queries) == 1
        repeated = recommender.recommend(some_clicks(2, 5), last=True)
        assert not repeated.fresh
        assert served.queries[1].sent.tobytes() == served.queries[0].sent.tobytes()
        assert recommender.local(some_clicks(2, 5)).items


def _click(epsilon: float) -> Any:
    from fedrec.privacy.guarantee import Guarantee

    return Guarantee(epsilon, 1e-5, "click", "replace")


def delta_by_quadrature(mu: Any, epsilon: float) -> Any:
    """sup_S P(S) - e^epsilon Q(S) for P = N(mu, 1), Q = N(0, 1): the integral of the positive
    part."""
    start = epsilon / mu + mu / 2  # where the likelihood ratio is e^epsilon
    density = lambda x: mpmath.npdf(x, mu, 1) - mpmath.exp(epsilon) * mpmath.npdf(x)  # noqa: E731
    return mpmath.quad(density, [start, start + 2, start + 12])


@lru_cache
def mu_by_quadrature(epsilon: float, delta: float = 1e-5) -> Any:
    return mpmath.findroot(
        lambda mu: mpmath.log(delta_by_quadrature(mu, epsilon) / delta),
        (0.2, 5.0),
        solver="ridder",
        tol=1e-16,
    )
