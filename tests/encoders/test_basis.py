import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")
import torch

from fedrec.encoders.news_model import Basis, clipped, exact, noised, relu_share, stopped
from fedrec.news import attention
from fedrec.randomness import Streams

SIZES = [3, 5, 10, 32]


def a_basis(size: int = 5, width: int = 40) -> Basis:
    return Basis(size, width, rng=Streams(0).numpy("basis"))


@pytest.mark.parametrize("size", SIZES)
def test_attention_is_the_softmax_of_algorithm_2(size: int) -> None:
    basis = a_basis(size)
    users = Streams(2).numpy("users").standard_normal((6, 40))
    logits = users @ basis.vectors.detach().double().numpy().T / 40**0.5
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(
        basis.attention(torch.from_numpy(users.astype(np.float32))).detach(), shares, rtol=1e-4
    )


def test_no_noise_and_a_wide_clip_are_the_plain_decomposition() -> None:
    basis = a_basis()
    users = torch.from_numpy(Streams(2).numpy("users").standard_normal((6, 40)).astype(np.float32))
    plain = basis.decompose(users, exact)
    torch.testing.assert_close(
        basis.decompose(users, noised(torch.zeros(6, 5), radius=1.0, renormalise=relu_share)), plain
    )
    torch.testing.assert_close(basis.decompose(users, stopped(lambda weights: weights)), plain)


def test_clipping_bounds_long_rows_and_keeps_short_ones() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    torch.testing.assert_close(clipped(rows, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_shares_are_not_negative_and_sum_to_one_even_without_a_positive_weight() -> None:
    rows = torch.tensor(
        [[0.5, -1.0, 2.0], [-1.0, -2.0, -3.0], [-500.0, -900.0, -501.0]], requires_grad=True
    )
    shares = relu_share(rows)
    assert float(shares.detach().min()) >= 0
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
    (shares**2).sum().backward()
    assert torch.isfinite(rows.grad).all()


def test_shares_are_those_of_the_mechanisms() -> None:
    rows = 20 * Streams(5).numpy("rows").standard_normal((200, 5))
    found = relu_share(torch.from_numpy(rows.astype(np.float32)))
    np.testing.assert_allclose(found, attention.renormalise_relu(rows), rtol=1e-4, atol=1e-6)


def test_a_stopped_release_sends_no_gradient_to_the_history_and_an_as_printed_one_does() -> None:
    rng = Streams(4).numpy("noise")

    def mechanism(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return weights + rng.standard_normal(weights.shape)

    basis = a_basis()
    for release, flows in (
        (stopped(mechanism), False),
        (noised(torch.zeros(6, 5), radius=0.5, renormalise=relu_share), True),
    ):
        users = torch.from_numpy(
            Streams(2).numpy("users").standard_normal((6, 40)).astype(np.float32)
        ).requires_grad_()
        basis.zero_grad()
        basis.decompose(users, release).square().sum().backward()
        assert (users.grad is not None) == flows
        assert basis.vectors.grad is not None
        assert bool(basis.vectors.grad.any())


def test_what_flows_after_a_stopped_release_is_a_function_of_what_was_released() -> None:
    """Two histories, one released value: the gradient is the same, bit by bit."""
    basis = a_basis()
    gradients = []
    for seed in (1, 2):
        users = torch.from_numpy(
            Streams(seed).numpy("users").standard_normal((6, 40)).astype(np.float32)
        )
        basis.zero_grad()
        basis.decompose(
            users, stopped(lambda weights: np.full(weights.shape, 0.2))
        ).square().sum().backward()
        assert basis.vectors.grad is not None
        gradients.append(basis.vectors.grad.numpy().tobytes())
    assert gradients[0] == gradients[1]


def test_an_empty_basis_is_refused() -> None:
    with pytest.raises(ValueError, match="found 0"):
        Basis(0, 4, rng=Streams(0).numpy("basis"))
