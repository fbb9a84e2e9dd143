"""A sealed split opens once, and says for which model it was opened."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.errors import LeakageError
from fedrec.settings import load
from fedrec_research.sealed import load_sealed

PLANTED = ["data.preset=small"]


def test_a_seal_opens_once_and_lets_nobody_train_afterwards() -> None:
    seal = load_sealed(load(None, PLANTED))[1]
    assert len(seal.train) > len(seal.validation.targets) > 0
    opened = seal.open({"V": np.zeros((2, 3))})
    assert len(opened.split.test.targets) > 0
    for part in (lambda: seal.train, lambda: seal.validation, lambda: seal.open({})):
        with pytest.raises(LeakageError, match="after the test events had been read"):
            part()


def test_another_training_has_a_seal_of_its_own() -> None:
    one, other = (load_sealed(load(None, PLANTED))[1] for _ in range(2))
    one.open({})
    assert len(other.train) == len(one.again().train)


def test_an_opening_keeps_which_model_it_was_for() -> None:
    seal = load_sealed(load(None, PLANTED))[1]
    V = np.arange(6.0).reshape(2, 3)
    digests = [
        seal.again().open({"V": found}).model_sha256
        for found in (V, V.copy(), V.T, V + 1e-12, V.astype(np.float32))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[1:])) == 4


@pytest.mark.parametrize(
    ("key", "value"), [("split.seed", 2), ("data.kind", "clicks"), ("seed", 2)]
)
def test_other_data_or_another_division_is_not_taken_from_memory(key: str, value: object) -> None:
    one, other = (
        load_sealed(load(None, [*PLANTED, *more]))[1] for more in ([], [f"{key}={value}"])
    )
    assert not np.array_equal(one.train.items, other.train.items)
