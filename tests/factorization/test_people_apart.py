"""What one person reports does not depend on who else is in the batch: a bound that holds for each
person alone then holds for all."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.federation.messages import Reports
from tests.factorization.test_recipes import RECIPES, prepared_for, questions_of, some_events
from tests.factorization.test_recipes import _clicks_of_few as _clicks_of_few  # a fixture


def of_person(reports: Reports, k: int, folds: list[int]) -> list[bytes]:
    a = reports.user_ptr[k]
    b = reports.user_ptr[k + 1]
    parts = [reports.items[a:b].tobytes()]
    for block, per_user in zip(reports.blocks, folds, strict=True):
        dense = len(block.coefficients) == reports.num_users
        own = block.coefficients[k : k + 1] if dense else block.coefficients[a:b]
        parts += [own.tobytes(), block.vectors[k * per_user : (k + 1) * per_user].tobytes()]
    return parts


# which examples are sampled belongs to a person's number, which is another one alone
SAMPLED = ("batches", "example")


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if not any(word in name for word in SAMPLED)]
)
def test_each_persons_report_is_the_same_bytes_whoever_else_is_there(name: str) -> None:
    events = some_events(name, 11)
    made = prepared_for(name, events, 5)
    for question in questions_of(events, made):
        step = made.steps[question.step]
        folds = [spec.folds for spec in question.blocks]
        together = step(question, events)
        for k in range(events.num_users):
            alone = step(question, events.users_subset(np.array([k])))
            assert of_person(together, k, folds) == of_person(alone, 0, folds), question.step
