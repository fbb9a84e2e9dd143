"""Releases are read by how many clicks they seem to hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import RunError
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.serving import bundle as files
from fedrec.serving.asking import told
from fedrec.serving.factorization_basis import (
    BasisSettings,
    Synthetic,
    counted_rows,
    factorization_basis,
    leading,
)
from fedrec.serving.user_map import Sizes, grouped
from fedrec_client.explaining import HIDDEN

from .test_factorization_bundles import ITEMS, SETTINGS, SYNTHETIC, export, released


def sizes(groups: int, B: int = 4, seed: int = 1) -> Sizes:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(groups, B, B)) * (1 + np.arange(groups))[:, None, None]
    shares = rng.uniform(1, 2, groups)
    return Sizes(
        10.0 * 2 ** np.arange(groups),
        shares / shares.sum(),
        3 * rng.normal(size=(groups, B)),
        roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(B),
        rng.normal(size=(groups, B, B)),
    )


def test_one_group_is_read_as_the_one_population() -> None:
    one = sizes(1)
    values = np.random.default_rng(2).normal(size=(5, 4))
    report = bounded_mean.Coefficients(
        values, 0.7, bounded_mean.GaussianEvent("a", 1.0, "click", "replace")
    )
    decoded = bounded_mean.decode(report, bounded_mean.Population(one.mean[0], one.covariance[0]))
    np.testing.assert_allclose(
        one.read(values, noise_std=0.7), (decoded - one.mean[0]) @ one.matrix[0], rtol=1e-10
    )


def test_a_query_is_the_posterior_mean_by_simulation() -> None:
    """Draws of the model whose noised release falls near one value; 12,000 fall there, so that a
    mean is known to 1%."""
    three = sizes(3, B=1)
    rng = np.random.default_rng(3)
    std = 0.5
    n = 1_000_000
    group = rng.choice(3, n, p=three.shares)
    true = three.mean[group, 0] + np.sqrt(three.covariance[group, 0, 0]) * rng.normal(size=n)
    said = true + std * rng.normal(size=n)
    query = (true - three.mean[group, 0]) * three.matrix[group, 0, 0]
    for at in (-1.0, 0.5, 2.0):
        near = np.abs(said - at) < 0.05
        error = query[near].std() / math.sqrt(near.sum())
        assert three.read(np.array([[at]]), noise_std=std)[0, 0] == pytest.approx(
            query[near].mean(), abs=5 * error + 0.02
        )


@given(st.lists(st.integers(0, 500), min_size=1, max_size=300))
def test_groups_hold_every_user_once_fewest_clicks_first(clicks: list[int]) -> None:
    groups = grouped(np.array(clicks))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(clicks)))
    assert all(len(group) >= 40 for group in groups) or len(groups) == 1
    ends = [(min(clicks[k] for k in g), max(clicks[k] for k in g)) for g in groups]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("kind", ["default", "ranked", "clicks"])
def test_no_two_rows_are_farther_apart_than_is_stated_and_the_number_of_clicks_is_free(
    kind: str,
) -> None:
    of = released(kind)
    liked = 4.0 if of.like.kind == "ratings" else 0.0
    people = Synthetic.of(
        of, SETTINGS, SYNTHETIC, liked=liked, rng=Streams(1).numpy("serving-basis")
    )
    table = counted_rows(leading(of, people), SETTINGS)
    assert bounded_mean.diameter(table.rows) * 2.0**-bounded_mean.BITS <= table.diameter <= 1.0
    assert len(np.unique(table.rows[:, -1])) == 1
    assert np.linalg.norm(
        table.rows[:, :-1] * 2.0**-bounded_mean.BITS, axis=1
    ).max() == pytest.approx(0.5, rel=1e-3)


def test_noise_takes_more_from_few_clicks_than_from_many() -> None:
    basis = factorization_basis(
        released("clicks"), SETTINGS, SYNTHETIC, liked=0.0, rng=Streams(1).numpy("serving-basis")
    )
    stds = [
        bounded_mean.noise_std(basis.table, basis.history, mu=mu_for(e, 1e-5))
        for e in (0.1, 1.0, 10.0)
    ]
    told = np.array([basis.sizes.told(noise_std=std) for std in stds])
    assert (np.diff(told, axis=0) > 0).all()
    assert told[1, 0] < told[1, -1]
    np.testing.assert_allclose(basis.sizes.told(noise_std=0.0), 1.0, rtol=1e-6)
    assert (told[0] < 0.2).all()


def test_a_report_that_is_all_noise_gets_the_prior_list() -> None:
    basis = factorization_basis(
        released("clicks"), SETTINGS, SYNTHETIC, liked=0.0, rng=Streams(1).numpy("serving-basis")
    )
    std = bounded_mean.noise_std(basis.table, basis.history, mu=0.001)
    values = basis.population.mean + std * np.random.default_rng(1).normal(
        size=(50, basis.table.topics)
    )
    moved = basis.sizes.read(values, noise_std=std) @ basis.directions.T
    assert np.abs(moved).max() < 0.05 * np.ptp(basis.prior)
    popular = released("clicks").shares
    np.testing.assert_array_equal(np.argsort(-basis.prior), np.argsort(-popular))


def test_places_and_coefficients_follow_what_people_hold() -> None:
    few, many = (
        factorization_basis(
            replace(released("clicks"), events=events),
            BasisSettings(),
            SYNTHETIC,
            liked=0.0,
            rng=Streams(1).numpy("serving-basis"),
        )
        for events in (3.0, 12.0)
    )
    assert 10 <= few.history < many.history <= ITEMS
    assert few.table.topics <= many.table.topics


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sizes.shares", lambda a: -a, "no share"),
        ("sizes.mean", lambda a: a[:, :-1], "fit together"),
        ("sizes.matrix", lambda a: a[:, :, :-1], "expected"),
    ],
)
def test_a_bundle_whose_groups_do_not_fit_is_refused(
    name: str, change: Callable[[np.ndarray], np.ndarray], words: str, tmp_path: Path
) -> None:
    about, arrays = export(released("clicks"))
    files.write(tmp_path / "b", about, arrays | {name: change(arrays[name])})
    with pytest.raises(RunError, match=words):
        files.read(tmp_path / "b")


def test_a_person_of_few_clicks_is_told_that_a_small_epsilon_hides_them(tmp_path: Path) -> None:
    files.write(tmp_path / "b", *export(released("clicks")))
    bundle = files.read(tmp_path / "b")

    def asked(clicks: int, epsilon: float) -> float:
        share = told(bundle, clicks, guarantee=Guarantee(epsilon, 1e-5, "click", "replace"))
        assert share is not None
        return share

    assert asked(0, 5.0) == 0.0
    assert asked(5, 0.1) < HIDDEN < asked(15, 10.0) < 1
    about, arrays = export(released("clicks"))
    files.write(
        tmp_path / "c",
        about,
        {name: array for name, array in arrays.items() if not name.startswith("sizes.")},
    )
    bundle = files.read(tmp_path / "c")  # of an earlier version: by invented readers
    assert asked(0, 5.0) == 0.0
    assert asked(5, 0.1) < HIDDEN < asked(15, 10.0) <= 1


@pytest.mark.parametrize("factor", [0.6, 0.99])
def test_a_bundle_that_states_less_than_one_row_can_do_is_refused(
    factor: float, tmp_path: Path
) -> None:
    """With taste columns of zero only the way from nothing to one row counts."""
    about, arrays = export(released("clicks"))
    rows = np.where(
        np.arange(arrays["rows"].shape[1]) == arrays["rows"].shape[1] - 1, arrays["rows"], 0
    ).astype(np.int32)
    longest = float(np.linalg.norm(rows[0])) * 2.0**-bounded_mean.BITS / about.history
    files.write(
        tmp_path / "b",
        about.model_copy(update={"sensitivity": factor * longest}),
        arrays | {"rows": rows},
    )
    with pytest.raises(RunError, match="can move coefficients"):
        files.read(tmp_path / "b")
    files.write(
        tmp_path / "c",
        about.model_copy(update={"sensitivity": 1.001 * longest}),
        arrays | {"rows": rows},
    )
    files.read(tmp_path / "c")
