"""What people of other libraries write works, or is an error that says what to write."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.api.habits import SAY, remedy
from fedrec.settings_tables.data import DataSettings
from fedrec.settings_tables.splitting import SplitSettings

pytest.importorskip("sklearn")
from sklearn.decomposition import NMF, TruncatedSVD
from sklearn.neighbors import NearestNeighbors

from tests.release import habits_page
from tests.release.habits_page import HABITS, answer

PAGE = Path(__file__).parents[2] / "docs" / "habits.md"
NOT_ASKED = {
    *("XtX", "YtY", "self", "args", "kwargs", "params", "X", "y", "deep", "init", "p", "H", "W"),
    *("input_features", "mode", "sort_results", "return_distance", "filter_users"),
    "users_items_offset",
}
"""Of calls that are refused by their name, or of both libraries' own."""


@pytest.mark.parametrize(("library", "line", "gives"), HABITS, ids=[line for _, line, _ in HABITS])
def test_a_habit_works_or_its_error_says_what_to_write(library: str, line: str, gives: str) -> None:
    said = answer(line)
    assert bool(said) != bool(gives)
    assert "There are:" not in said  # the list of all words is for words that nobody has


def test_the_page_is_made_of_the_habits() -> None:
    assert PAGE.read_text() == habits_page.page(), "stale: run make docs"
    assert len(HABITS) >= 60


def _words_of(kind: Any) -> set[str]:
    """Arguments and names that a class of another library has."""
    found = {name for name in dir(kind) if not name.startswith("_")}
    for name in (*found, "__init__"):
        member = getattr(kind, name)
        if callable(member):
            found |= {*inspect.signature(member).parameters}
    return found


def test_every_word_of_implicit_and_of_scikit_learns_factorisations_has_its_remedy() -> None:
    """From their own signatures, so that a word which a later release has is seen."""
    kinds: list[Any] = [NMF, TruncatedSVD, NearestNeighbors]
    try:
        from implicit.cpu import als, bpr, lmf
        from implicit.nearest_neighbours import BM25Recommender
    except ImportError:  # of the extra bench
        pass
    else:
        kinds += [als.AlternatingLeastSquares, bpr.BayesianPersonalizedRanking]
        kinds += [lmf.LogisticMatrixFactorization, BM25Recommender]
    model = fedrec.MatrixFactorization
    own = {*dir(model), *(p for f in dir(model) for p in _parameters(getattr(model, f)))}
    known = {word.rpartition(".")[2] for word in SAY}
    lacking = {word for kind in kinds for word in _words_of(kind)} - own - known - NOT_ASKED
    assert not lacking


def _parameters(member: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(member).parameters) if inspect.isfunction(member) else ()


def test_no_remedy_takes_a_key_of_a_scenario_from_those_who_may_give_it() -> None:
    """`from_file`, `planted` and `split` take keys of the tables data and split."""
    assert not {*DataSettings.model_fields, *SplitSettings.model_fields} & SAY.keys()


def test_near_words_are_proposed_and_python_and_libraries_see_plain_errors() -> None:
    model = fedrec.ItemItem()
    with pytest.raises(TypeError, match="recommend has no argument histry") as refused:
        model.recommend(histry=["3"])  # type: ignore[call-arg]
    assert isinstance(refused.value, fedrec.SettingsError)
    assert refused.value.remedy.startswith("Did you mean history?")
    for owner in (model, fedrec.Dataset, fedrec):
        assert not hasattr(owner, "no_such_name")
    with pytest.raises(fedrec.SettingsError, match="random_state") as seeded:
        fedrec.ItemItem(random_state=7)  # type: ignore[call-arg]
    assert seeded.value.remedy == "Say seed=7."
    assert remedy("dimension_", ["seed"]) == "There are: seed."
