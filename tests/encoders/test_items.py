import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.encoders import items
from fedrec.encoders.items import EncoderGradient, EncoderParameters, ItemInputs

Floats = npt.NDArray[np.floating]


def a_catalogue(m: int = 23, *, seed: int = 0) -> PublicFeatures:
    """Three categories with repetitions; items 3 and 7 have no person, item 7 has nothing at
    all."""
    rng = np.random.default_rng(seed)
    bags = {}
    for name, p, rate in (("year", 5, 0.3), ("genre", 8, 0.5), ("person", 40, 0.2)):
        counts = rng.poisson(rate, (m, p)).astype(np.float32)
        counts[7] = 0
        if name == "person":
            counts[3] = 0
        bags[name] = FeatureBag(tuple(f"{name}{v}" for v in range(p)), sparse.csr_matrix(counts))
    return PublicFeatures(bags)


def in_double(parameters: EncoderParameters, rng: np.random.Generator) -> EncoderParameters:
    return EncoderParameters(
        parameters.embeddings.astype(float),
        parameters.dense.astype(float),
        rng.standard_normal(len(parameters.bias)),
    )


def a_model(
    d: int = 6, *, identities: bool = False
) -> tuple[ItemInputs, EncoderParameters, Floats]:
    rng = np.random.default_rng(1)
    inputs = items.prepare(a_catalogue(), identities=identities)
    theta = in_double(items.init(inputs, d, rng=rng), rng)
    return inputs, theta, rng.standard_normal((inputs.num_items, d))


def spread(gradient: EncoderGradient, theta: EncoderParameters) -> Floats:
    """The gradient of the stacked tables with its zero rows."""
    full = np.zeros_like(theta.embeddings)
    full[gradient.features] = gradient.embeddings
    return full


def by_the_formula(
    features: PublicFeatures, inputs: ItemInputs, theta: EncoderParameters
) -> Floats:
    """App. E.1 written again, item by item and category by category."""
    offsets = np.concatenate([[0], np.cumsum(inputs.sizes)])
    V = []
    for j in range(inputs.num_items):
        parts = []
        for c, bag in enumerate(features.bags.values()):
            x = bag.counts[[j]].toarray()[0].astype(float)
            table = theta.embeddings[offsets[c] : offsets[c + 1]]
            parts.append(x @ table / x.sum() if x.sum() else np.zeros(theta.embeddings.shape[1]))
        V.append(np.concatenate(parts) @ theta.dense + theta.bias)
    return np.array(V)


@pytest.mark.slow
def test_forward_averages_each_bag_with_repetitions_and_gives_an_empty_bag_zero() -> None:
    inputs, theta, _ = a_model()
    V = items.forward(theta, inputs)
    np.testing.assert_allclose(V, by_the_formula(a_catalogue(), inputs, theta), atol=1e-6)
    np.testing.assert_array_equal(V[7], theta.bias)


def test_pullback_is_the_gradient_of_a_weighted_output_by_finite_differences() -> None:
    inputs, theta, dV = a_model()
    gradient = items.pullback(theta, inputs, dV)
    got = {"embeddings": spread(gradient, theta), "dense": gradient.dense, "bias": gradient.bias}
    for name, analytic in got.items():
        for position in np.random.default_rng(2).integers(0, analytic.size, 25):
            ends = []
            for sign in (1, -1):
                tables = {k: v.copy() for k, v in vars(theta).items()}
                tables[name].flat[position] += sign * 1e-4
                ends.append(float(np.sum(items.forward(EncoderParameters(**tables), inputs) * dV)))
            assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(analytic.flat[position], abs=1e-6), (
                name
            )


def test_pullback_agrees_with_torch_autograd_through_embedding_bags() -> None:
    torch = pytest.importorskip("torch")
    features = a_catalogue()
    inputs, theta, dV = a_model()
    tables = torch.tensor(theta.embeddings, requires_grad=True)
    dense = torch.tensor(theta.dense, requires_grad=True)
    bias = torch.tensor(theta.bias, requires_grad=True)
    offsets = np.concatenate([[0], np.cumsum(inputs.sizes)])
    parts = []
    for c, bag in enumerate(features.bags.values()):
        counts = bag.counts.tocsr()
        shares = counts.data / np.repeat(
            np.maximum(counts.sum(axis=1).A1, 1), np.diff(counts.indptr)
        )
        where = torch.tensor(counts.indices + offsets[c]).long()
        starts = torch.tensor(counts.indptr[:-1]).long()
        weights = torch.tensor(shares, dtype=torch.float64)
        parts.append(
            torch.nn.functional.embedding_bag(
                where, tables, starts, mode="sum", per_sample_weights=weights
            )
        )
    V = torch.cat(parts, 1) @ dense + bias
    V.backward(torch.tensor(dV))
    np.testing.assert_allclose(items.forward(theta, inputs), V.detach().numpy(), atol=1e-6)
    gradient = items.pullback(theta, inputs, dV)
    np.testing.assert_allclose(spread(gradient, theta), tables.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(gradient.dense, dense.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(gradient.bias, bias.grad.numpy(), atol=1e-12)


def test_the_gradient_of_a_batch_touches_only_features_of_its_items() -> None:
    inputs, theta, dV = a_model()
    chosen = np.array([2, 5, 7, 11])
    gradient = items.pullback(theta, inputs.batch(chosen), dV[chosen])
    stacked = sparse.hstack([bag.counts for bag in a_catalogue().bags.values()]).tocsr()
    np.testing.assert_array_equal(gradient.features, np.unique(stacked[chosen].indices))
    masked = np.zeros_like(dV)
    masked[chosen] = dV[chosen]
    np.testing.assert_allclose(
        spread(gradient, theta), spread(items.pullback(theta, inputs, masked), theta), atol=1e-12
    )


def test_batches_give_the_rows_of_the_whole_in_the_order_asked_for() -> None:
    inputs, theta, _ = a_model()
    chosen = np.array([11, 3, 20])
    # a product of another shape may round another way, by processor
    np.testing.assert_allclose(
        items.forward(theta, inputs.batch(chosen)), items.forward(theta, inputs)[chosen], rtol=1e-12
    )


def test_an_identity_category_gives_each_item_a_free_vector() -> None:
    inputs, theta, _ = a_model(identities=True)
    assert inputs.categories[-1] == items.ID_CATEGORY
    moved = theta.embeddings.copy()
    moved[sum(inputs.sizes[:-1]) + 4] += 1.0
    change = items.forward(
        EncoderParameters(moved, theta.dense, theta.bias), inputs
    ) - items.forward(theta, inputs)
    assert np.flatnonzero(np.abs(change).max(axis=1) > 1e-9).tolist() == [4]


def test_one_core_and_many_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, theta, dV = a_model()
    many = items.pullback(theta, inputs, dV)
    monkeypatch.setattr("fedrec.numerics.threads.cores", lambda: 1)
    one = items.pullback(theta, inputs, dV)
    assert many.embeddings.tobytes() == one.embeddings.tobytes()


def test_named_arrays_return_the_same_parameters() -> None:
    inputs, theta, _ = a_model(identities=True)
    named = items.to_named_arrays(theta, inputs)
    assert set(named) == {
        "embedding/year",
        "embedding/genre",
        "embedding/person",
        "embedding/id",
        "dense",
        "bias",
    }
    back = items.from_named_arrays(named, inputs)
    for name, array in vars(theta).items():
        np.testing.assert_array_equal(getattr(back, name), array)


def test_named_arrays_of_another_catalogue_are_refused_by_name() -> None:
    inputs, theta, _ = a_model()
    named = items.to_named_arrays(theta, inputs) | {"embedding/genre": np.zeros((9, 6))}
    with pytest.raises(ValueError, match=r"embedding/genre.*\(8, 6\).*\(9, 6\)"):
        items.from_named_arrays(named, inputs)


def test_a_catalogue_without_categories_or_with_negative_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one feature category"):
        items.prepare(PublicFeatures({}))
    with pytest.raises(ValueError, match="'year' holds a negative count -1"):
        items.prepare(
            PublicFeatures({"year": FeatureBag(("a",), sparse.csr_matrix(np.array([[-1.0]])))})
        )
