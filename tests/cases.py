"""Cases of a parametrised test: which of them `make test` runs, and which `make test-rest` does."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(first: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, of which all but those of `first` are marked slow. A case of several arguments is
    a tuple."""
    return [
        case
        if case in first
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
