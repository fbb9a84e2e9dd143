"""Reports of every form that a question may ask for, for the tests of sharing."""

import numpy as np

from fedrec.federation.messages import Question, ReleaseSpec, Reports
from fedrec.federation.reports import RealBlock, block, bounded

ITEMS = 37
FOLDED = ReleaseSpec(
    "step/0",
    (
        block("step/0", "linear", rows=ITEMS, width=5, folds=8),
        block("scales/0", "linear", rows=1, width=7),
    ),
    radius=2.0,
)
COUNTS = ReleaseSpec(
    "counts",
    (block("counts", "linear", rows=ITEMS, width=1), block("mean", "linear", rows=1, width=1)),
)
SQUARE = ReleaseSpec("moments", (block("moments", "outer", rows=1, width=4),))
QUESTION = Question(3, "step", {}, (FOLDED, COUNTS, SQUARE))


def some_reports(seed: int, num_users: int, question: Question = QUESTION) -> Reports:
    """A user with every item, one with none, one silent, and others."""
    rng = np.random.default_rng(seed)
    held: list[np.ndarray] = [
        np.flatnonzero(rng.random(ITEMS) < rng.random()) for _ in range(num_users)
    ]
    for number, items in ((0, np.arange(ITEMS)), (1, np.arange(0)), (2, np.arange(3))):
        if number < num_users:
            held[number] = items
    ptr = np.concatenate([[0], np.cumsum([len(each) for each in held])]).astype(np.int64)
    items = np.concatenate([*held, np.empty(0, np.int64)]).astype(np.int32)
    blocks = []
    for spec in question.blocks:
        coefficients = rng.normal(size=num_users if spec.rows == 1 else len(items))
        if spec.rows == 1 and num_users > 2:
            coefficients[2] = 0
        blocks.append(
            RealBlock(coefficients, rng.normal(size=(num_users * spec.folds, spec.width)))
        )
    return bounded(ptr, items, blocks, question.releases)
