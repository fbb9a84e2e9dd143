import numpy as np
import pytest

from fedrec.factorization.am_ssp.gradient import Adam, GradientDescent, Optimizer

EVERY = [GradientDescent(), Adam(0.8, 0.95, 1e-3)]


@pytest.mark.parametrize("optimizer", EVERY, ids=lambda o: type(o).__name__)
def test_rows_without_a_gradient_keep_their_bytes_and_their_memory(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((6, 3))
    memory = np.zeros((optimizer.slots, 6, 3))
    before = table.copy()
    rows = np.array([1, 4], np.int32)
    optimizer.step(table, rows, rng.standard_normal((2, 3)), memory, rate=0.1, time=1)
    assert np.flatnonzero(np.any(table != before, axis=1)).tolist() == [1, 4]
    assert not memory[:, [0, 2, 3, 5]].any()


@pytest.mark.parametrize(
    ("optimizer", "name", "options"),
    [
        (GradientDescent(), "SGD", {}),
        (Adam(0.8, 0.95, 1e-3), "Adam", {"betas": (0.8, 0.95), "eps": 1e-3}),
    ],
)
def test_steps_agree_with_torch(
    optimizer: Optimizer, name: str, options: dict[str, object]
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    table = rng.standard_normal((5, 4))
    theirs = torch.tensor(table.copy(), requires_grad=True)
    peer = getattr(torch.optim, name)([theirs], lr=0.1, **options)
    memory = np.zeros((optimizer.slots, 5, 4))
    for time in range(1, 8):
        g = rng.standard_normal((5, 4))
        optimizer.step(table, np.arange(5), g, memory, rate=0.1, time=time)
        theirs.grad = torch.tensor(g)
        peer.step()
    np.testing.assert_allclose(table, theirs.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("optimizer", EVERY, ids=lambda o: type(o).__name__)
def test_tables_of_networks_stay_float32(optimizer: Optimizer) -> None:
    table = np.ones((2, 3), np.float32)
    optimizer.step(
        table,
        np.arange(2),
        np.ones((2, 3), np.float32),
        np.zeros((optimizer.slots, 2, 3), np.float32),
        rate=0.1,
        time=1,
    )
    assert table.dtype == np.float32
    assert bool(np.all(table < 1))
