"""What people of other libraries write works, or is an error that says what to write."""

from __future__ import annotations

import ast
import inspect
import re
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


OWNERS = (fedrec, fedrec.Dataset, fedrec.ItemItem, fedrec.MatrixFactorization)


def test_every_call_that_a_remedy_names_exists_with_its_arguments() -> None:
    """A remedy that fails is worse than none. `split` takes the keys of its table too."""
    tried = set()
    for said in {*SAY.values()}:
        text = re.sub(r"\{value\}", "1", said).replace("{{", "{").replace("}}", "}")
        for name, words in re.findall(r"(\w+)(\((?:[^()]|\([^()]*\))*\))", text):
            found = next((getattr(owner, name) for owner in OWNERS if hasattr(owner, name)), None)
            if found is None or not callable(found):
                continue
            call = ast.parse(f"{name}{words.replace('...', 'None')}", mode="eval").body
            assert isinstance(call, ast.Call)
            known = {*inspect.signature(found).parameters}
            known |= {*SplitSettings.model_fields} if name == "split" else set()
            assert {keyword.arg for keyword in call.keywords} <= known, said
            tried.add(name)
    assert {"split", "recommend", "from_frame", "similar_items", "evaluate", "fit"} <= tried


@pytest.mark.parametrize(
    "kind",
    [fedrec.MatrixFactorization, fedrec.ItemItem, fedrec.Popularity, fedrec.ItemBias],
)
def test_what_a_parameter_says_settings_say_the_same_or_are_refused(kind: Any) -> None:
    """A curve would name epsilons that no copy of the model was trained at."""
    own = kind()._keys()
    assert {"recipe", "seed", "privacy.epsilon", "privacy.delta", "privacy.noise"} <= own.keys()
    other = {"privacy.epsilon": 3, "privacy.delta": 1e-6, "privacy.noise": "seeded", "seed": 7}
    for key, value in own.items():
        assert kind(settings={key: value}).scenario() == kind().scenario()
        said = {key: other.get(key, "dp-other")}
        with pytest.raises(fedrec.SettingsError, match=f"{key} is .* in settings"):
            kind(settings=said).scenario()


def test_a_value_that_is_no_number_is_named_by_its_key() -> None:
    with pytest.raises(fedrec.SettingsError, match=r"privacy\.epsilon: Input should be greater"):
        fedrec.ItemItem(epsilon=float("nan")).scenario()


def test_a_curve_refuses_an_epsilon_of_the_settings() -> None:
    train, test = fedrec.Dataset.planted("small", kind="clicks").split()
    model = fedrec.Popularity(noise="seeded", settings={"privacy": {"epsilon": 3}})
    with pytest.raises(fedrec.SettingsError, match=r"privacy\.epsilon is 3 in settings, 1\.0"):
        fedrec.privacy_curve(model, train, test, epsilons=[1, 20], controls=False)
