"""A mechanism from outside the package: registered, trained, audited, tested by the contract class,
saved and loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedrec
from fedrec import registry
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.federation.messages import Question, Reports
from fedrec.testing import RecipeContract

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "capped_counts.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capped_counts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(registry._REGISTERED)
    load_example()
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


class TestCappedCounts(RecipeContract):
    recipe = "capped-counts"
    kind = "clicks"
    own = {"most": 7}  # noqa: RUF012

    def plain(self, data: Interactions) -> dict[str, np.ndarray]:
        counts = np.zeros((data.num_items, 1))
        for user in range(data.num_users):
            for item in data.items[data.user_ptr[user] : data.user_ptr[user + 1]][:7]:
                counts[item] += 1 / np.sqrt(7)
        return {"counts": counts}


def test_the_contract_sees_reports_beyond_their_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = TestCappedCounts()
    made = contract.prepared(contract.data(), 5.0)
    loud = fedrec.Prepared(
        made.recipe,
        {"capped-counts/report": lambda question, mine: _loud(made, question, mine)},
        made.plan,
    )
    quiet = contract._questions
    monkeypatch.setattr(
        contract, "_questions", lambda data: [(question, loud) for question, _ in quiet(data)]
    )
    with pytest.raises(AssertionError):
        contract.test_a_user_moves_every_release_by_at_most_its_radius()


def _loud(made: fedrec.Prepared, question: Question, mine: Interactions) -> Reports:
    """Three times as long as honest reports."""
    reports = made.steps["capped-counts/report"](question, mine)
    loud = replace(reports.blocks[0], coefficients=reports.blocks[0].coefficients * 3)
    return replace(reports, blocks=(loud,))


def test_it_is_trained_and_reported_as_any_recipe(tmp_path: Path) -> None:
    data = fedrec.Dataset.planted("small", kind="clicks")
    settings = {"own.most": 10, "compare.als": False, "run.examples": 0}
    run = fedrec.simulate("capped-counts", data, epsilon=5, settings=settings, directory=tmp_path)
    assert run.report().exists()
    assert repr(run.guarantee).startswith("(5, 1e-05)-DP per user (add/remove")
    model = fedrec.MatrixFactorization(
        method="capped-counts", settings={"own.most": 10}, noise="seeded"
    ).fit(data)
    assert (
        fedrec.load(model.save(tmp_path / "model"))
        .recommend(history=["1"], k=3)
        .equals(model.recommend(history=["1"], k=3))
    )


def test_it_is_attacked_as_any_recipe() -> None:
    found = fedrec.audit("capped-counts", fedrec.Dataset.planted("small", kind="clicks"))
    assert found.exit_code == 0
    assert {row["attack"] for row in found.rows()} == {
        "membership: length",
        "membership: ratio test",
    }
    assert all(row["measured_epsilon"] <= row["claimed_epsilon"] for row in found.rows())


def test_an_installed_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    registry._REGISTERED.clear()
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    point = metadata.EntryPoint("capped-counts", "capped_counts:build", registry.GROUP)
    monkeypatch.setattr(
        metadata,
        "entry_points",
        lambda **chosen: [point] if chosen.get("name", "capped-counts") == "capped-counts" else [],
    )
    sys.modules.pop("capped_counts", None)
    assert "capped-counts" in registry.outside()
    assert registry.find("capped-counts") is not None
    bad = metadata.EntryPoint("broken", "no_such_module:build", registry.GROUP)
    monkeypatch.setattr(
        metadata, "entry_points", lambda **chosen: [bad] if chosen.get("name") == "broken" else []
    )
    with pytest.raises(SettingsError, match="cannot be loaded"):
        registry.find("broken")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ({"recipe": "capped-count"}, "did you mean 'capped-counts'"),
        ({"recipe": "capped-counts", "own": {"mots": 3}}, "did you mean own.most"),
        ({"recipe": "capped-counts", "own": {"most": 0}}, "own.most"),
        ({"recipe": "capped-counts", "model": {"dimension": 3}}, "model.dimension has no effect"),
        ({"recipe": "capped-counts", "data": {"kind": "ratings"}}, "fits clicks"),
        (
            {"recipe": "default", "own": {"most": 3}},
            "own.most is of a recipe that an extension registers",
        ),
    ],
)
def test_wrong_settings_are_refused(content: dict[str, object], cause: str) -> None:
    with pytest.raises(SettingsError) as failure:
        fedrec.simulate(content)  # type: ignore[arg-type]
    assert cause in failure.value.cause


def test_a_name_of_fedrec_is_not_taken() -> None:
    with pytest.raises(SettingsError, match="fedrec's own"):
        fedrec.recipe("default")
