"""Products and seeds of Z_2^64, against Python's integers."""

import numpy as np
import pytest

from fedrec.numerics import threads
from fedrec.sharing import share_products, shares

EXTREME = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform, with one in four extreme."""
    drawn = rng.integers(0, 2**64, shape, np.uint64)
    return np.where(rng.random(shape) < 0.25, rng.choice(EXTREME, shape), drawn)


def slow_products(
    left: np.ndarray, right: np.ndarray, before: np.ndarray, folds: int
) -> np.ndarray:
    """One number at a time, in Python's integers."""
    (n, m), w = left.shape, before.shape[1]
    out = before.astype(object)
    for j in range(m):
        for k in range(w):
            out[j, k] = (
                int(before[j, k])
                + sum(int(left[u, j]) * int(right[u, j % folds * w + k]) for u in range(n))
            ) % 2**64
    return out.astype(np.uint64)


@pytest.mark.parametrize(
    ("n", "m", "w", "folds"),
    [(0, 3, 2, 1), (1, 1, 1, 1), (3, 65, 9, 8), (4, 7, 8, 3), (9, 130, 5, 1), (5, 4, 17, 8)],
)
def test_products_equal_those_of_pythons_integers(n: int, m: int, w: int, folds: int) -> None:
    rng = np.random.default_rng(n + m)
    left = numbers(rng, (n, m))
    right = numbers(rng, (n, folds * w))
    sums = numbers(rng, (m, w))
    expected = slow_products(left, right, sums, folds)
    share_products.add_products(left, right, sums, folds=folds)
    assert (sums == expected).all()


def test_ranges_of_items_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    left = numbers(rng, (23, 301))
    right = numbers(rng, (23, 8 * 9))
    once = np.zeros((301, 9), np.uint64)
    pieces = np.zeros((301, 9), np.uint64)
    share_products.add_products(left, right, once, folds=8)
    monkeypatch.setattr(share_products, "_WORK", 1)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    share_products.add_products(left, right, pieces, folds=8)
    assert (once == pieces).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    left = np.zeros((2, 3), np.uint64)
    right = np.zeros((2, 4), np.uint64)
    with pytest.raises(ValueError, match="do not make sums"):
        share_products.add_products(left, right, np.zeros((3, 3), np.uint64))
    with pytest.raises(ValueError, match="do not make sums"):
        share_products.add_products(left, right, np.zeros((4, 4), np.uint64))


def test_a_seed_expands_to_the_counter_mode_of_aes_256() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    seed = bytes(range(32))
    blocks = b"".join(i.to_bytes(16, "big") for i in range(5))
    # second code: counter mode by hand
    second = Cipher(algorithms.AES(seed), modes.ECB()).encryptor().update(blocks)
    assert shares.expand(seed, 9).tobytes() == second[:72]
    with pytest.raises(ValueError, match="32 bytes"):
        shares.expand(seed[:16], 1)
