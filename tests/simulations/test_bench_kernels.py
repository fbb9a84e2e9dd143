import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from fedrec.data.interactions import ItemOrder, order_by_item
from fedrec.factorization.item_statistics import item_statistics
from fedrec.numerics.packed import unpack
from fedrec_simulations.bench import kernels, longtail, stopwatch, torch_forms

pytestmark = pytest.mark.slow


def test_generated_interactions_have_the_asked_shape_distinct_pairs_and_a_long_tail() -> None:
    data = longtail.generate(longtail.QUICK, rng=np.random.default_rng(0))
    assert (len(data), data.num_users, data.num_items) == (20_000, 700, 110)
    assert len(np.unique(data.users.astype(np.int64) * 110 + data.items)) == 20_000
    counts = np.sort(np.bincount(data.items, minlength=110))
    assert counts[-11:].sum() > 2 * counts[:11].sum()


def test_every_torch_form_computes_our_statistics() -> None:
    rng = np.random.default_rng(1)
    data = longtail.generate(longtail.QUICK, rng=rng)
    order = order_by_item(data.user_ptr, data.items, data.num_items)
    grouped = ItemOrder(order.item_ptr, order.users, np.empty(0, np.int64))
    U, columns = rng.standard_normal((700, 6), np.float32), rng.random((2, len(data)), np.float32)
    ours = unpack(item_statistics(grouped, U, columns[0], columns[1]).gram, 6)
    tensors = [torch.from_numpy(a) for a in (U, columns[0], columns[1])]
    forms = [
        torch_forms.padded_buckets(grouped, *tensors),
        torch_forms.item_loop(grouped, *tensors),
    ]
    for form in [*forms, torch_forms.chunks(grouped, *tensors, length=16)]:
        np.testing.assert_allclose(form().numpy(), ours, atol=1e-3)


def test_the_stopwatch_keeps_the_fastest_turn_of_each_form() -> None:
    calls: list[str] = []
    times = stopwatch.best_ms(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, turns=2
    )
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert all(0 <= ms < 1000 for ms in times.values())


def test_the_benchmark_reports_every_figure_that_is_promised() -> None:
    found = kernels.run(quick=True)
    (statistics,) = found["item_statistics"].values()
    (projection,) = found["projection"].values()
    assert statistics["largest_error_to_torch"] < 1e-5
    assert projection["largest_difference"] < 1e-5
    assert {"share_of_sgemm", "best_batched_torch_over_ours", "exact_over_float32"} <= set(
        statistics
    )
    assert all(rate > 0 for rate in found["noise"]["million_per_second"].values())
