"""Names of the papers in research/docs/papers.md: each is a recipe, with a test of one step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fedrec.settings import load
from fedrec_research.papers.names import NAMES, NEWS

ROOT = Path(__file__).parents[2]


def test_every_name_is_a_recipe_of_a_shipped_scenario_and_its_step_is_tested() -> None:
    page = (ROOT / "research/docs/papers.md").read_text()
    rows = re.findall(
        r"^\| .+? \| (`.+`) \| `((?:research/)?tests/.+?)::(test_\w+)` \|$", page, re.MULTILINE
    )
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert names == {*NAMES, NEWS}
    for _, file, test in rows:
        tree = ast.parse((ROOT / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in sorted(names - {NEWS}):
        assert load(ROOT / "simulations/planted.toml", [f"recipe={name}"]).recipe
    assert load(ROOT / "simulations/privaterec_as_printed.toml", []).recipe == "privaterec"
