import math

import numpy as np
import pytest
from scipy import stats

from fedrec.errors import PrivacyError
from fedrec.privacy import discrete_gaussian, gaussian
from fedrec.privacy.accounting import delta_of, epsilon_of
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.recipes.published import am_ssp_plan

KEY = Streams(3).key("test")


def test_without_noise_the_sums_come_back_in_real_units() -> None:
    sums = np.arange(-6, 6, dtype=np.int64).reshape(2, 6)
    got = gaussian.add_to_rows(sums, step=0.25, std=0.0, key=KEY)
    np.testing.assert_array_equal(got, sums * 0.25)
    none = gaussian.symmetric_noise(sums.shape, step=0.25, std=0.0, key=KEY, isometric=True)
    assert not none.any()


@pytest.mark.parametrize(("isometric", "off"), [(True, 1 / math.sqrt(2)), (False, 1.0)])
def test_a_symmetric_release_has_the_declared_std_on_and_off_the_diagonal(
    isometric: bool, off: float
) -> None:
    """KS at level 1e-4 for each part; 4,000 and 6,000 numbers."""
    width = 4
    std = 3.0
    step = 2.0**-10
    noise = step * gaussian.symmetric_noise(
        (1000, 10), step=step, std=std, key=KEY, isometric=isometric
    )
    diagonal = np.equal(*np.triu_indices(width))
    for part, factor in ((noise[:, diagonal], 1.0), (noise[:, ~diagonal], off)):
        assert stats.kstest(part.ravel() / (std * factor), "norm").pvalue > 1e-4
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(part.ravel() / (std * factor * wrong), "norm").pvalue < 1e-4


def test_isometric_noise_has_equal_variance_in_every_direction_of_the_frobenius_norm() -> None:
    """<B, noise> for |B|_F = 1 has the declared std: on, off and between.

    Each within 5 standard errors (false alarm < 1e-6)."""
    width = 3
    std = 2.0
    draws = 20_000
    step = 2.0**-10
    packed = step * gaussian.symmetric_noise(
        (draws, 6), step=step, std=std, key=KEY, isometric=True
    )
    rows, columns = np.triu_indices(width)
    full = np.zeros((draws, width, width))
    full[:, rows, columns] = full[:, columns, rows] = packed
    rng = np.random.default_rng(1)
    for B in (
        np.diag([1.0, 0, 0]),
        np.ones((3, 3)) - np.eye(3),
        (M := rng.normal(size=(3, 3))) + M.T,
    ):
        products = np.einsum("nij,ij->n", full, B / np.linalg.norm(B))
        assert abs(products.std() / std - 1) < 5 / math.sqrt(2 * draws)


@pytest.mark.parametrize("mu", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("step", [2.0**-28, 2.0**-12, 2.0**-6])
def test_the_lattice_is_paid_for(mu: float, step: float) -> None:
    """The discrete release is post-processing of a continuous one of smaller std; that one's mu is
    the plan's, to the last bits."""
    std = gaussian.noise_std(radius=1.0, mu=mu, coarsest_step=step)
    for lattice in (step, math.sqrt(2) * step):  # on the diagonal, and off it in svec coordinates
        assert 1.0 / math.sqrt(std**2 - 4 * lattice**2) <= mu * (1 + 1e-12)


def test_a_grid_that_the_noise_would_drown_in_is_refused() -> None:
    assert gaussian.noise_std(radius=1.0, mu=math.inf, coarsest_step=1.0) == 0.0
    with pytest.raises(PrivacyError, match="finer"):
        gaussian.noise_std(radius=1.0, mu=10.0, coarsest_step=1.0)


@pytest.mark.parametrize(("shift", "std"), [(1, 8.0), (5, 12.0)])
def test_the_discrete_mechanism_is_as_private_as_its_continuous_price(
    shift: int, std: float
) -> None:
    """Second code: the hockey-stick divergence of the two lattices, summed, against the closed form
    at the declared mu."""
    z = np.arange(-400, 401)
    law = lambda centre: np.exp(-((z - centre) ** 2) / (2 * std**2))  # noqa: E731
    p, q = (law(c) / law(c).sum() for c in (shift, 0))
    mu = shift / math.sqrt(std**2 - 4)
    for epsilon in (0.05, 0.2, 0.5, 1.0):
        true = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert true <= delta_of(mu, epsilon) * (1 + 1e-9)


def test_two_keys_give_two_noises_and_one_key_one() -> None:
    draws = [
        gaussian.add_to_rows(
            np.zeros((5, 5), np.int64), step=1e-3, std=1.0, key=Streams(s).key("a")
        )
        for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).all()
    assert (
        discrete_gaussian.sample(9, std=1e6, key=KEY)
        != discrete_gaussian.sample(9, std=1e6, key=KEY + b"x")
    ).all()


def test_the_papers_own_conversion_says_that_it_is_not_established_and_what_is_true() -> None:
    """AM-SSP Thm 2: sigma = w sqrt(8 log 1/delta) / epsilon for A and for b, in each of S steps."""
    nominal = Guarantee(1.0, 1e-5)
    S = 3
    delta = 1e-5
    plan = am_ssp_plan(nominal, {f"{part}/{s}": 1.0 for s in range(S) for part in "Ab"}, steps=S)
    sigma = math.sqrt(8 * math.log(1 / delta)) / 1.0
    for planned in plan.releases:
        assert planned.noise_multiplier == pytest.approx(sigma)
    assert not plan.guarantee.established
    true = epsilon_of(math.sqrt(2 * S) / sigma, delta)
    assert f"{true:.4g}" in str(plan.guarantee)
    with pytest.raises(ValueError):
        am_ssp_plan(non_private(1e-5), {"a": 1.0}, steps=1)


@pytest.mark.parametrize("isometric", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 1_000, 30_000])
@pytest.mark.parametrize("columns", [1, 6, 55, 1_275])
def test_noise_is_as_wide_in_a_block_of_any_shape(
    columns: int, rows: int, isometric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: what the sampler is asked for, of shapes that no test could draw often."""
    asked = list[tuple[int, float]]()

    def sample(size: int, *, std: float, key: bytes) -> np.ndarray:
        asked.append((size, std))
        return np.broadcast_to(np.int64(0), size)

    monkeypatch.setattr(gaussian, "sample", sample)
    noise = {"step": 2.0**-9, "std": 0.75, "key": bytes(32)}
    gaussian.row_noise((rows, columns), **noise)
    assert asked == [(rows * columns, 0.75 * 2**9)]
    asked.clear()
    gaussian.symmetric_noise((rows, columns), **noise, isometric=isometric)
    width = math.isqrt(2 * columns)
    off = columns - width
    parts = [(width, 0.75), (off, 0.75 / math.sqrt(2))] if isometric else [(columns, 0.75)]
    assert asked == [(rows * n, pytest.approx(std * 2**9)) for n, std in parts if n]
