"""Messages that leave a device in a run, for its report: those of an invented user, byte for
byte."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.federation.messages import BlockReports, BlockSpec, Question, Reports
from fedrec.report.content import TO_THREE, Departure, ExampleReport
from fedrec.sharing.layout import layout, plain_numbers
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.shares import SEEDS, share

if TYPE_CHECKING:  # which imports what is drawn from this
    from fedrec.run.outcomes import Run

INVENTED_ITEMS = 20


def departed(
    run: Run, questions: list[Question]
) -> tuple[tuple[Departure, ...], ExampleReport | None]:
    """What an invented user would have sent in every round, byte for byte."""
    if run.main.prepared.curated is not None:
        words = "every rating as it is: the curator is trusted with all of them"
        return (Departure("ratings", "item and value of each", 0, words),), None
    invented = _invented_user(run.split.train)
    rows = list[Departure]()
    last = None
    for question in questions:
        reports = run.main.prepared.steps[question.step](question, invented)
        if last is None:
            which = (
                "which items the coefficients below belong to, in every round; the aggregator "
                "reads them, nobody else"
            )
            rows.append(
                Departure(
                    "item ids", f"{len(reports.items)} numbers", 4 * len(reports.items), which
                )
            )
        for spec, part in zip(question.blocks, reports.blocks, strict=True):
            rows.append(
                Departure(
                    spec.name,
                    _shape(spec, part),
                    2 * (len(part.coefficients) + part.vectors.size),
                    _words(spec),
                )
            )
        last = (question, reports)
    return tuple(rows), _example(*last) if last else None


def departed_in_shares(
    run: Run, questions: list[Question]
) -> tuple[tuple[Departure, ...], ExampleReport | None]:
    """Return what an invented user would have sent in every round where three aggregate: numbers
    that say nothing to any one of them.

    Seeds of an example are no secret."""
    invented = _invented_user(run.split.train)
    rows = list[Departure]()
    example = None
    for question in questions:
        reports = run.main.prepared.steps[question.step](question, invented)
        shape = layout(question)
        seeds = np.frombuffer(
            b"".join(sha256(b"example" + bytes([i])).digest() for i in range(SEEDS)), np.uint8
        ).reshape(1, SEEDS, -1)
        sent = share(plain_numbers(reports, shape), seeds)
        words = (
            "as many for one item as for all; two seeds, and what is left of the report without "
            "the numbers that they expand to"
        )
        rows.append(
            Departure(
                question.step,
                f"{shape.length} numbers",
                upload_bytes(shape.length),
                words,
                TO_THREE,
            )
        )
        numbers = {
            f"{question.step}: share 2, first of {shape.length}": tuple(
                map(int, sent.explicit[0, :40])
            )
        }
        payload = seeds.tobytes() + sent.explicit.astype("<u8").tobytes()
        example = ExampleReport(
            f"an invented user with {len(reports.items)} items, round {question.round}",
            numbers,
            payload,
        )
    return tuple(rows), example


def _invented_user(train: Interactions) -> Interactions:
    items = np.unique(
        np.linspace(0, train.num_items - 1, min(INVENTED_ITEMS, train.num_items)).astype(np.int64)
    )
    low, high = train.value_range
    values = (
        np.where(np.arange(len(items)) % 3 == 0, high, (low + high) / 2) if train.rated else None
    )
    users = np.zeros(len(items), np.int64)
    columns = {
        "num_users": 1,
        "num_items": train.num_items,
        "value_range": train.value_range,
        "kind": train.kind,
    }
    return Interactions.from_columns(users, items, values, **columns)  # type: ignore[arg-type]


def _shape(spec: BlockSpec, part: BlockReports) -> str:
    if spec.rows == 1:
        return f"{part.vectors.size} number{'' if part.vectors.size == 1 else 's'}"
    return (
        f"{len(part.coefficients)} coefficients, {len(part.vectors)} "
        f"vector{'s' if spec.folds > 1 else ''} of {spec.width}"
    )


def _words(spec: BlockSpec) -> str:
    what = spec.form.words
    where = (
        "for the whole user"
        if spec.rows == 1
        else "with one coefficient for each of the user's items"
    )
    if spec.folds > 1:
        what = f"{spec.folds} vectors, one for each fold of the items"
    return f"{what}, {where}; bounded, summed with everybody's, then noised"


def _example(question: Question, reports: Reports) -> ExampleReport:
    groups = {"item ids": reports.items}
    for spec, part in zip(question.blocks, reports.blocks, strict=True):
        groups |= {
            f"{spec.name}: coefficients": part.coefficients,
            f"{spec.name}: vector": part.vectors[: spec.folds].ravel(),
        }
    payload = b"".join(
        array.astype("<i4" if name == "item ids" else "<i2").tobytes()
        for name, array in groups.items()
    )
    integers = {name: tuple(int(x) for x in array) for name, array in groups.items()}
    return ExampleReport(
        f"an invented user with {len(reports.items)} items, round {question.round}",
        integers,
        payload,
    )
