"""Settings of published systems on ratings at every epsilon, from the file beside this one, which
says how they were chosen."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from fedrec_research.trials import Row


def model(method: str, epsilon: float) -> Row:
    """[model] of a method. Raises KeyError on another method or epsilon."""
    return dict(_tables()[method]["model"][f"{epsilon:g}"])


def sides(method: str, epsilon: float) -> Row:
    """Return the weights and ridges of a method's sides, keys of [collective]."""
    return dict(_tables()[method]["collective"][f"{epsilon:g}"])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(
        resources.files(__package__).joinpath("ratings_settings.toml").read_text(encoding="utf-8")
    )
