"""[evaluation], [compare] and [run]: what is measured, what a model is set beside, and where it
goes."""

from __future__ import annotations

import itertools
from typing import Self

from pydantic import Field, model_validator

from fedrec.settings_tables.table import Epsilon, Table


class EvaluationSettings(Table):
    """What is measured."""

    cutoffs: tuple[int, ...] = Field(
        (10, 20), min_length=1, description="list lengths of ranking metrics, ascending"
    )
    ranking: bool = Field(
        True,
        description=(
            "rank the full catalogue too, at every epsilon and beside controls (always on for "
            "clicks)"
        ),
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.cutoffs[0] < 1 or any(a >= b for a, b in itertools.pairwise(self.cutoffs)):
            raise ValueError(
                "evaluation.cutoffs must be ascending lengths of at least 1, as in [10, "
                f"20]; found {list(self.cutoffs)}"
            )
        return self


class CompareSettings(Table):
    """What the report sets the run beside."""

    epsilons: tuple[Epsilon, ...] = Field(
        (), description="further epsilons, for the privacy-utility curve"
    )
    baselines: bool = Field(
        True, description="global mean, item means, item+user biases, popularity"
    )
    published: bool = Field(
        False,
        description='of ratings: recipe = "published" too, at the same epsilons, with verdicts; '
        "what [model] "
        "leaves at zero is chosen by "
        'epsilon; needs recipe = "default"',
    )
    als: bool = Field(
        True,
        description=(
            "non-private alternating least squares and item-item similarities, references and no "
            "upper bound; dp-bias or dp-item-item at the run's epsilon"
        ),
    )


class RunSettings(Table):
    """Where results go."""

    directory: str = Field("runs", description="folder that run folders are made in")
    examples: int = Field(
        8, ge=0, le=50, description="items whose nearest neighbours the report shows"
    )
