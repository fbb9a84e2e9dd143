"""The best of large catalogues, beside FAISS.

Processor milliseconds a query of one thread, medians of five turns in which the forms alternate:
fedrec's 8-bit pass with its exact second step, its exact tiles, FAISS flat, FAISS with cells and
8-bit codes, whose proposals are ranked exactly, and one pass over memory alone (the sum of the
codes as 64-bit words, of the vectors as they are). Items, biases and queries are standard normal,
64 wide, k = 10. Recall is of the exact list; `equal_lists` is how many of the questions, 10,000 in
the kept result, have the exact tiles' list to the last bit of its scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.results import Row, Tables
from fedrec.numerics.threads import use_at_most
from fedrec.serving.compressed import Compressed
from fedrec.serving.ranking import Best, Exact, Query, rescored
from fedrec.serving.user_map import UserMap

_WIDTH = 64
_COEFFICIENTS = 32
_TURNS = 5
_OURS = "fedrec, 8-bit pass"
_CELLS = "FAISS cells, 8 bits"

Form = Callable[[list[Query]], Any]


def run(*, quick: bool) -> Tables:
    """Rows of times by batch, and what the codes are. `quick`: one small catalogue."""
    import faiss

    faiss.omp_set_num_threads(1)
    use_at_most(1)
    times = list[Row]()
    facts = list[Row]()
    for m in (20_000,) if quick else (100_000, 1_000_000):
        catalogue = made(m)
        exact = Exact(catalogue)
        start = time.process_time()
        coded = Compressed(catalogue)
        built_s = time.process_time() - start
        forms = _forms(catalogue, exact, coded)
        for size in (1, 16):
            times += _times(catalogue, size, forms, exact)
        questions = questions_of(np.random.default_rng(3), 64 if quick else 10_000)
        facts.append(
            {
                "items_x_width": f"{m:,} x {_WIDTH}",
                "codes_over_vectors": coded.nbytes / catalogue.items.nbytes,
                "coding_s": built_s,
                "questions": len(questions),
                "equal_lists": equal_lists(coded, exact, questions),
            }
        )
    return {"Processor time of a query": times, "Codes": facts}


def _forms(catalogue: Any, exact: Exact, coded: Compressed) -> dict[str, Form]:
    import faiss

    flat = faiss.IndexFlatIP(_WIDTH)
    flat.add(catalogue.items)
    codes = coded.codes.view(np.int64)
    words = catalogue.items.view(np.int64)
    return {
        _OURS: coded,
        "fedrec, exact tiles": exact,
        "FAISS flat (no bias)": lambda asked: flat.search(users_of(catalogue, asked), 10),
        _CELLS: _cells(catalogue),
        "one pass over the codes": lambda _: codes.sum(),
        "one pass over the vectors": lambda _: words.sum(),
    }


def _cells(catalogue: Any) -> Form:
    """Four times the square root of m cells, an eighth of which is searched for 140 proposals."""
    import faiss

    items = np.column_stack([catalogue.items, catalogue.bias])
    cells = 4 * math.isqrt(len(items))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(_WIDTH + 1),
        _WIDTH + 1,
        cells,
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    # 64 items a cell: FAISS warns under 39
    sample = np.linspace(0, len(items) - 1, min(len(items), 64 * cells)).astype(np.intp)
    index.train(items[sample])
    index.add(items)
    index.nprobe = cells // 8

    def ranked(asked: list[Query]) -> list[Best]:
        answers = list[Best]()
        for u in users_of(catalogue, asked):
            _, found = index.search(np.append(u, np.float32(1.0))[None], 140)
            answers.append(rescored(catalogue, u, np.sort(found[0][found[0] >= 0]), 10))
        return answers

    return ranked


def _times(catalogue: Any, size: int, forms: dict[str, Form], exact: Exact) -> list[Row]:
    rng = np.random.default_rng(2)
    took: dict[str, list[float]] = {name: [] for name in forms}
    found: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(_TURNS + 1):
        asked = questions_of(rng, size)
        best = exact(asked)
        for name, form in forms.items():
            start = time.process_time()
            answers = form(asked)
            if turn:  # the first is not timed
                took[name].append(1e3 * (time.process_time() - start) / size)
            if name == _CELLS:
                found[name] += [
                    len(np.intersect1d(a.items, b.items)) / len(b.items)
                    for a, b in zip(answers, best, strict=True)
                ]
    ours = float(np.median(took[_OURS]))
    return [
        {
            "items": f"{len(catalogue.items):,}",
            "batch": size,
            "form": name,
            "ms_a_query": float(np.median(of)),
            "over_the_8-bit_pass": float(np.median(of)) / ours,
            "recall": f"{np.mean(found[name]):.3f}" if found[name] else "",
        }
        for name, of in took.items()
    ]


def equal_lists(coded: Compressed, exact: Exact, questions: Sequence[Query]) -> int:
    """How many of the questions have the same list, to the last bit of its scores."""
    pairs = zip(_in_batches(coded, questions), _in_batches(exact, questions), strict=True)
    return sum(_same(*pair) for pair in pairs)


def made(m: int) -> Any:
    """m items with what a ranker asks of a catalogue, standard normal."""
    rng = np.random.default_rng(1)
    linear = rng.standard_normal((_COEFFICIENTS, _WIDTH)) / _COEFFICIENTS**0.5
    return SimpleNamespace(
        users=UserMap.of_linear(linear, rng.standard_normal(_WIDTH) / 4),
        items=rng.standard_normal((m, _WIDTH), dtype=np.float32),
        bias=rng.standard_normal(m, dtype=np.float32),
        categories=np.zeros(m, np.uint8),
    )


def questions_of(rng: np.random.Generator, count: int) -> list[Query]:
    """Questions for the ten best."""
    numbers = rng.standard_normal((count, _COEFFICIENTS)).astype(np.float32)
    return [Query(row, 10) for row in numbers]


def users_of(catalogue: Any, asked: Sequence[Query]) -> Any:
    """(n, width) their vectors."""
    return catalogue.users(np.stack([query.coefficients for query in asked]))


def _in_batches(
    rank: Callable[[Sequence[Query]], list[Best]], asked: Sequence[Query]
) -> list[Best]:
    return [best for at in range(0, len(asked), 16) for best in rank(asked[at : at + 16])]


def _same(a: Best, b: Best) -> bool:
    return a.items.tolist() == b.items.tolist() and a.scores.tobytes() == b.scores.tobytes()
