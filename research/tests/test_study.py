"""The study: rows that resume, a page that says what rows say, and verdicts that turn where rows
turn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings import validated
from fedrec_research.claims import lines, listed
from fedrec_research.claims.claim import Claim, Evidence, Test
from fedrec_research.papers.figures import paper as paper_named
from fedrec_research.study import (
    chart,
    forms,
    inventory,
    measure,
    page,
    ratings_settings,
    search,
    searched,
    systems,
    training,
)
from fedrec_research.study.judging import Verdict
from fedrec_research.study.results import Study
from fedrec_research.study.systems import EPSILONS, SYSTEMS, Place
from fedrec_research.trials import Asked, merged
from research.tests.paper_rows import write_lists

ROOT = Path(__file__).parents[1]
FEW = ("default-plain", "dpals-tail", "item-mean")
PLANTED = Place("planted", "planted", "ratings")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three systems, two seeds, trained in this process; the names of rows that were made."""
    made = list[str]()
    make = training.study_row

    def noted(place: Place, name: str, epsilon: float, seed: int) -> dict[str, Any]:
        made.append(f"{name} {epsilon:g} {seed}")
        return make(place, name, epsilon, seed)

    monkeypatch.setattr(measure, "study_row", noted)
    monkeypatch.setattr(measure, "QUICK_EPSILONS", (math.inf,))
    monkeypatch.setitem(SYSTEMS, "ratings", {name: SYSTEMS["ratings"][name] for name in FEW})
    return made


def test_a_quick_study_measures_every_system_and_resumes_without_a_new_row(
    few: list[str], tmp_path: Path
) -> None:
    first = measure.run(Asked(("planted",), quick=True, folder=tmp_path))
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert sorted(few) == sorted(f"{name} inf {seed}" for name in FEW for seed in (1, 2))
    again = measure.run(Asked(("planted",), quick=True, folder=tmp_path))
    assert again == first
    assert len(few) == 6
    study = Study.of(first)
    # some are validation
    assert study.sizes["alone"]["train"] + study.sizes["alone"]["test"] < 7_500
    tenth = study.mean("item-mean", 5.0)
    assert tenth is not None
    assert 0.5 < tenth.mean < 1.5


def test_some_systems_measured_again_leave_the_others_as_they_are_kept(
    few: list[str], tmp_path: Path
) -> None:
    kept = measure.run(Asked(("planted",), quick=True, folder=tmp_path / "a"))
    old = {cell["system"]: {**cell, "code": "of old"} for cell in kept["cells"]}
    output = tmp_path / "study.json"
    more = {"cells": list(old.values()), "missing": {FEW[0]: "then"}, "note": "told"}
    output.write_text(json.dumps({**kept, **more}))
    asked = Asked(("planted",), quick=True, only=FEW[:1], folder=tmp_path / "b")
    again = measure.run(asked, kept_in=output)
    cells = {cell["system"]: cell for cell in again["cells"]}
    assert list(cells) == list(old)
    for name in FEW[1:]:
        assert cells[name] == old[name]
    assert cells[FEW[0]]["code"] == kept["cells"][list(old).index(FEW[0])]["code"]
    assert (again["note"], again["missing"]) == ("told", {})
    every = measure.beside(kept, {**kept, **more})
    assert "note" not in every  # it was said of cells that are gone
    made = len(few)
    output.write_text(json.dumps({**kept, "data": {**kept["data"], "name": "other"}}))
    with pytest.raises(SettingsError, match="holds a study of other"):
        measure.run(asked, kept_in=output)
    assert len(few) == made


def test_one_system_alone_and_one_that_is_not_there(few: list[str], tmp_path: Path) -> None:
    found = measure.run(Asked(("planted",), quick=True, only=("item-mean",), folder=tmp_path))
    assert {cell["system"] for cell in found["cells"]} == {"item-mean"}
    one = Asked(("planted",), seeds=1, only=("default-plain",), epsilons=(5.0,), folder=tmp_path)
    assert [cell["epsilon"] for cell in measure.run(one)["cells"]] == [5.0]
    with pytest.raises(SettingsError, match="there is no system 'spam'"):
        measure.run(Asked(("planted",), only=("spam",), folder=tmp_path))
    with pytest.raises(SettingsError, match="data folder"):
        measure.run(Asked(folder=tmp_path))


def test_a_system_that_refuses_is_named_and_the_rest_goes_on(
    few: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbuilt = systems.System(
        "dpals-tail",
        "tail",
        "published",
        "nothing",
        lambda data, epsilon: {"recipe": "nobody built this"},
    )
    monkeypatch.setitem(SYSTEMS["ratings"], "dpals-tail", unbuilt)
    found = measure.run(Asked(("planted",), quick=True, folder=tmp_path))
    assert "recipe" in found["missing"]["dpals-tail"]
    assert {cell["system"] for cell in found["cells"]} == {"default-plain", "item-mean"}


@pytest.mark.parametrize("kind", list(SYSTEMS))
def test_every_system_has_a_scenario_at_every_epsilon(kind: str) -> None:
    place = Place("planted", "yelp2018", kind)  # type: ignore[arg-type]
    for name, system in SYSTEMS[place.kind].items():
        assert system.name == name
        for epsilon in system.epsilons(place.name):
            scenario = system.scenario(place, epsilon, 3)
            assert (scenario.privacy.epsilon, scenario.privacy.delta, scenario.seed) == (
                epsilon,
                1e-5,
                3,
            )
            assert scenario.data.features or scenario.model.encoder == "id"


def test_settings_on_ratings_are_there_for_every_epsilon() -> None:
    for method in (
        "Ada-DPALS",
        "DPALS (tail)",
        "DPALS (uniform)",
        "DP-CMF metadata",
        "DP-CMF users",
        "DP-CMF all",
        "sampler",
    ):
        assert all(
            ratings_settings.model(method, epsilon)["dimension"] >= 1 for epsilon in EPSILONS
        )


def test_clicks_train_on_all_given_events_and_a_private_model_beats_popularity(
    tmp_path: Path,
) -> None:
    write_lists(tmp_path)
    place = measure.place_of(str(tmp_path))
    assert place == Place(str(tmp_path), tmp_path.name, "clicks")
    private = training.study_row(place, "default", math.inf, 1)
    popular = training.study_row(place, "popularity", math.inf, 1)
    assert private["sizes"] == popular["sizes"] == {"users": 200, "items": 60, "train": 2_000}
    assert private["test"] == 400
    assert private["ndcg@20"] > popular["ndcg@20"]


def test_clicks_without_test_events_are_refused() -> None:
    with pytest.raises(SettingsError, match="test events"):
        training.study_row(Place("planted", "planted", "clicks"), "popularity", math.inf, 1)


def test_systems_with_and_without_public_people_have_the_same_private_users() -> None:
    whole = training.study_row(PLANTED, "item-mean", math.inf, 1)["sizes"]
    rows = [
        training.study_row(PLANTED, name, math.inf, 1)
        for name in ("ada-dpals-half", "public-users-alone", "als-half")
    ]
    assert all(row["sizes"] == rows[0]["sizes"] and row["test"] == rows[0]["test"] for row in rows)
    # each by its own hash: four std
    assert abs(rows[0]["sizes"]["users"] - whole["users"] / 2) < 2 * math.sqrt(whole["users"])


def test_the_sampler_is_never_called_established() -> None:
    row = training.study_row(PLANTED, "sgld", 5.0, 1)
    assert not Guarantee(**row["guarantee"]).established
    assert len(row["model_sha256"]) == 64


def _content(
    values: Mapping[tuple[str, float], Sequence[float]],
    *,
    kind: str = "ratings",
    name: str = "made-up",
) -> dict[str, Any]:
    """A study as `measure.run` writes it, of these values by seed."""
    first, second = training.METRICS[kind]
    cells = [
        {
            "system": system,
            "epsilon": epsilon if math.isfinite(epsilon) else "inf",
            "seeds": list(range(1, len(each) + 1)),
            first: list(each),
            second: list(each),
            "guarantee": {
                "epsilon": epsilon if math.isfinite(epsilon) else "inf",
                "delta": 1e-5,
                "unit": "user",
                "neighbours": "add/remove",
            },
            "accountants": {},
            "seconds": [60.0] * len(each),
            "train_seconds": [each[0]] * len(each),
        }
        for (system, epsilon), each in values.items()
    ]
    sizes = {
        group: {"users": 10, "items": 5, "train": 80, "test": 10}
        for group in ("alone", "one model", "people")
    }
    return {
        "data": {"name": name, "kind": kind, "sizes": sizes},
        "protocol": {},
        "cells": cells,
        "missing": {"dpals-tail": "why"},
        "seconds": 1e4,
    }


OURS = [0.90, 0.91, 0.92, 0.91, 0.90]
THEIRS = [0.95, 0.95, 0.96, 0.97, 0.95]


def _two(
    ours: Sequence[float], theirs: Sequence[float]
) -> dict[tuple[str, float], Sequence[float]]:
    cells = {
        (name, e): each
        for e in (1.0, math.inf)
        for name, each in (("default", ours), ("ada-dpals", theirs))
    }
    return cells | {("item-mean", math.inf): [1.0] * 5}


def _page(tmp_path: Path, *contents: dict[str, Any]) -> str:
    (tmp_path / "results").mkdir(exist_ok=True)
    for content in contents:
        (tmp_path / "results" / f"study-{content['data']['name']}.json").write_text(
            json.dumps(content)
        )
    page.write(tmp_path / "study.md", tmp_path / "results")
    return (tmp_path / "study.md").read_text()


def test_the_headline_turns_when_rows_turn(tmp_path: Path) -> None:
    found = _page(tmp_path, _content(_two(THEIRS, OURS)))
    assert (
        "**The default is not ahead of every other system measured here, each in the form of "
        "its line, by more than its interval"
    ) in found
    assert "at ε = 1 (Ada-DPALS: behind by" in found
    overlapping = [v + 0.3 * (-1) ** k for k, v in enumerate(OURS)]
    found = _page(tmp_path, _content(_two(OURS, overlapping)))
    assert "is not ahead of every" in found


def test_one_seed_tells_no_system_from_another(tmp_path: Path) -> None:
    found = _page(
        tmp_path,
        _content({(name, 1.0): [value] for name, value in (("default", 0.9), ("ada-dpals", 1.0))}),
    )
    assert "**One seed has no intervals: no system is told apart from another.**" in found
    assert "| **default** | item features | 0.9000 |" in found
    assert "nan" not in found


def test_higher_is_better_for_clicks(tmp_path: Path) -> None:
    cells = {(name, 1.0): each for name, each in (("default", THEIRS), ("ada-dpals", OURS))}
    found = _page(tmp_path, _content(cells, kind="clicks"))
    assert "in the form of its line, at every ε" in found
    assert "higher is better" in found


def test_verdicts_turn_when_rows_turn() -> None:
    test = lines.on_one_model("ada-dpals", "dpals-tail")

    def verdict(
        at_one: tuple[Sequence[float], Sequence[float]],
        at_five: tuple[Sequence[float], Sequence[float]],
    ) -> Verdict:
        names = ("ada-dpals, made sound", "dpals-tail, made sound")
        cells = {
            (n, e): each
            for e, pair in ((1.0, at_one), (5.0, at_five))
            for n, each in zip(names, pair, strict=True)
        }
        return _judged(test, Study.of(_content(cells)))

    assert verdict((OURS, THEIRS), (OURS, THEIRS)).outcome == "held"
    mixed = verdict((OURS, THEIRS), (THEIRS, OURS))
    assert mixed.outcome == "in part"
    assert "ahead at ε 1 (≥" in mixed.found
    assert "behind at ε 5 (≤" in mixed.found
    assert verdict((THEIRS, OURS), (THEIRS, OURS)).outcome == "did not hold"
    assert _judged(test, Study.of(_content({("default", 1.0): OURS}))).outcome == "not tested"


def _judged(test: Test, *studies: Study) -> Verdict:
    return test.judge(Evidence(studies, {}))


def _of_studies(studies: Sequence[Study]) -> list[tuple[Claim, Verdict]]:
    """Claims that the study's lines decide."""
    return [
        (claim, verdict)
        for claim, verdict in listed.verdicts(Evidence(studies, {}))
        if claim.test.by_study and verdict.outcome != "not tested"
    ]


def test_every_verdict_on_a_published_claim_compares_two_lines_of_one_model() -> None:
    """Judged by the declared fields alone, without the code that withdraws."""
    judged = [claim.test.rows for claim, _ in _of_studies(_one_apart(1e-3))]
    pairs = {rows: rows.partition(" on one model")[0].split(" and ") for rows in judged}
    assert len(judged) == 11
    table = SYSTEMS["ratings"]
    for pair in pairs.values():
        for form in ("made sound", "as printed"):
            first, second = (table.get(f"{name}, {form}") for name in pair)
            if first and second:
                assert first.model is not None
                assert second.model is not None
                assert not any(
                    (
                        first.model.biases,
                        first.model.user_means,
                        second.model.biases,
                        second.model.user_means,
                    )
                )
                assert first.model.start == second.model.start == "random"
                assert first.tried == second.tried == (forms.TRIALS, forms.TRIALS)


def test_every_kept_search_tried_the_same_number_of_settings_and_its_best_is_what_a_line_runs_with() -> None:  # fmt: skip
    """Of every line at every epsilon: settings of the stated space, all different, judged alike."""
    folder = ROOT / "fedrec_research" / "study" / "searched"
    for path in folder.glob("*.json"):
        for name, by_epsilon in json.loads(path.read_text())["lines"].items():
            method, form = name.split(", ")
            kind: Kind = "clicks" if path.stem.endswith(systems.LIKES) else "ratings"
            space = forms.METHODS[method].choices(form, kind)  # type: ignore[arg-type]
            for epsilon, trials in by_epsilon.items():
                assert len(trials) == forms.TRIALS
                tried = [tuple(trial["settings"].items()) for trial in trials]
                assert len(set(tried)) == forms.TRIALS
                assert all(value in space[key] for settings in tried for key, value in settings)
                least = (
                    min(trials, key=lambda trial: float(trial["rmse"]))
                    if kind == "ratings"
                    else max(trials, key=lambda trial: float(trial["ndcg@20"]))
                )["settings"]
                place = Place("planted", path.stem, kind, likes=kind == "clicks")
                scenario = SYSTEMS[kind][name].scenario(place, float(epsilon), 1)
                said = scenario.model_dump(mode="json")
                assert all(
                    said[key.split(".")[0]][key.split(".")[1]] == value
                    for key, value in least.items()
                )


def test_a_search_finds_the_best_of_a_space_and_never_repeats_itself() -> None:
    space = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": (0, 1, 2, 3)}
    suggested = search.proposals(space, 40, np.random.default_rng(0))
    seen = [next(suggested)]
    for _ in range(39):
        seen.append(suggested.send(sum((value - 3) ** 2 for value in seen[-1].values())))
    assert seen[0] == {"a": 2, "b": 2, "c": 2}
    assert len({tuple(each.values()) for each in seen}) == 40
    assert {"a": 3, "b": 3, "c": 3} in seen


def test_settings_at_movielens_20ms_sizes_are_those_found_under_the_same_skew() -> None:
    line = "ada-dpals, made sound"
    found = searched.best("planted-ml20m", line, 5.0)
    assert (
        found == searched.best("planted-skewed", line, 5.0) != searched.best("ml-100k", line, 5.0)
    )


def test_likes_are_clicks_of_ratings_divided_at_random_and_every_method_has_a_line_on_them() -> (
    None
):
    place = measure.place_of("planted", likes=True)
    assert (place.kind, place.given, place.name) == ("clicks", False, "planted-likes")
    lines = [s for s in SYSTEMS["clicks"].values() if s.group == "one model"]
    assert {s.name.partition(", ")[0] for s in lines} == set(forms.METHODS) - {"am-dpsgd"}
    assert {s.form for s in lines} == set(forms.JUDGED)
    for system in lines:
        method = forms.METHODS[system.name.partition(", ")[0]]
        form = system.form
        assert form
        middle = {key: some[len(some) // 2] for key, some in method.choices(form, "clicks").items()}
        said = merged(systems.common(place, 5.0, 1), method.forms[form], searched.tables(middle))
        scenario = validated(said, source=system.name)
        assert scenario.data.kind == "clicks"
        assert scenario.split.kind == "random"


@pytest.mark.slow
def test_a_search_on_likes_keeps_the_setting_of_the_best_list(tmp_path: Path) -> None:
    asked = Asked(("planted",), only=("ada-dpgd, made sound",), folder=tmp_path)
    found = search.run(asked, likes=True, trials=2)
    trials = found["lines"]["ada-dpgd, made sound"]["5"]
    assert [set(trial) for trial in trials] == [{"settings", "ndcg@20", "seconds"}] * 2
    assert min(trials, key=searched.error)["ndcg@20"] == max(t["ndcg@20"] for t in trials)
    assert found["judged_by"].startswith("validation NDCG@20")


def test_lines_of_a_form_say_the_same_of_biases_and_none_has_additions_where_claims_are_judged() -> None:  # fmt: skip
    for name, method in forms.METHODS.items():
        for form, said in method.forms.items():
            content = merged(
                {"recipe": said["recipe"]},
                said,
                {"data": {"preset": "small"}, "model": {"max_items_per_user": 5}},
            )
            if name in {"ada-dpgd", "am-dpsgd", "encoder-descent"}:
                del content["model"]["max_items_per_user"]
            scenario = validated(content, source=name)
            has = (
                scenario.model.biases
                if name in {"ada-dpgd", "encoder-descent"}
                else scenario.model.own_means
            )
            assert has == (form == "with our additions")


LIKE = systems.Model("free", biases=False, user_means=False, start="random")


def _system(**fields: Any) -> systems.System:
    return systems.System(
        **{
            "name": "x",
            "label": "X",
            "origin": "published",
            "public": "nothing",
            "says": None,
            "model": LIKE,
            "tried": (15, 15),
        }
        | fields
    )


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ({"model": replace(LIKE, biases=True)}, "item biases"),
        ({"model": replace(LIKE, user_means=True)}, "users' own means"),
        ({"model": replace(LIKE, item_vectors="of features")}, "item vectors"),
        ({"model": replace(LIKE, start="public data")}, "start"),
        ({"model": None}, "no declared model"),
        ({"public": "item features"}, "public data"),
        ({"tried": (16, 16)}, "settings tried"),
        ({"tried": (15, 20)}, "settings tried"),
        ({"tried": None}, "settings tried"),
        ({"origin": "own"}, "a design of our own"),
        ({"origin": "ours"}, "a design of our own"),
    ],
    ids=str,
)
def test_a_verdict_is_withheld_where_two_lines_differ_beside_the_claim(
    field: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SYSTEMS, "ratings", {"one": _system(name="one"), "other": _system(name="other", **field)}
    )
    monkeypatch.setitem(SYSTEMS, "clicks", {})
    study = Study.of(_content({("one", 1.0): OURS, ("other", 1.0): THEIRS}))
    verdict = _judged(lines.ahead("one", "other"), study)
    assert verdict.outcome == "not tested"
    assert verdict.found.startswith("not comparable: ")
    assert word in verdict.found
    monkeypatch.setitem(
        SYSTEMS,
        "ratings",
        {"one": _system(name="one"), "other": _system(name="other", tried=(15, 15))},
    )
    assert _judged(lines.ahead("one", "other"), study).outcome == "held"


def test_a_line_of_a_longer_search_on_the_same_model_softens_a_verdict_and_is_told() -> None:
    searched = {("ada-dpals, made sound", 5.0): THEIRS, ("ada-dpgd, made sound", 5.0): OURS}
    test = lines.on_one_model("ada-dpals", "ada-dpgd")
    alone = _judged(test, Study.of(_content(searched)))
    assert alone.outcome == "did not hold"
    assert "longest searches" not in alone.found
    better = [value - 0.1 for value in OURS]
    beside = _judged(test, Study.of(_content(searched | {("ada-dpals", 5.0): better})))
    assert beside.outcome == "in part"
    assert "Made sound, longest searches" in beside.found
    assert "made-up: ahead at ε 5 (≥0.1000" in beside.found
    # a line with biases is another model, and softens nothing
    biased = _judged(test, Study.of(_content(searched | {("dp-gd", 5.0): better})))
    assert biased.found == alone.found


def test_a_claim_about_one_kind_of_data_is_not_judged_by_another() -> None:
    names = ("dp-cmf, made sound", "ada-dpals, made sound")
    ratings, clicks = (
        Study.of(
            _content(
                {(name, 5.0): each for name, each in zip(names, (OURS, THEIRS), strict=True)},
                kind=kind,
                name=kind,
            )
        )
        for kind in ("ratings", "clicks")
    )  # the same numbers: lower is ahead in one kind, higher in the other
    of_ratings = lines.on_one_model("dp-cmf", "ada-dpals", about=ABOUT, kinds=("ratings",))
    of_both = lines.on_one_model("dp-cmf", "ada-dpals", about=ABOUT)
    assert _judged(of_ratings, ratings, clicks).outcome == "held"
    assert "clicks" not in _judged(of_ratings, ratings, clicks).found
    assert _judged(of_ratings, clicks).outcome == "not tested"
    assert _judged(of_both, ratings, clicks).outcome == "in part"


ABOUT = frozenset({"item_vectors", "public"})


def test_every_figure_and_table_of_the_papers_is_in_the_inventory_once() -> None:
    for name, every in inventory.PAPERS.items():
        made = [figure for shown in every for figure in shown.made]
        assert sorted(made) == sorted(paper_named(name).figures)
        assert all(shown.why for shown in every)
        for kind in ("Figure", "Table"):
            numbers = [
                int(number)
                for shown in every
                if shown.number.startswith(kind)
                for number in shown.number.split(" ", 1)[1].split(", ")
            ]
            assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_what_a_claim_varies_on_purpose_may_differ_and_nothing_else() -> None:
    features = _system(model=replace(LIKE, item_vectors="of features"), public="item features")
    about = frozenset({"item_vectors", "public"})
    assert systems.differences(_system(), features, about=about) == ()
    assert systems.differences(_system(), features)
    assert systems.differences(
        _system(), replace(features, model=replace(LIKE, biases=True)), about=about
    )


def test_weights_that_are_uniform_are_no_line_of_adaptive_weights() -> None:
    for kind, place in (("ratings", "ml-1m"), ("clicks", "yelp2018"), ("clicks", "amazon-book")):
        table = SYSTEMS[kind]  # type: ignore[index]
        adaptive, uniform = (table[name].epsilons(place) for name in ("ada-dpals", "dpals-mu0"))
        assert sorted([*adaptive, *uniform]) == sorted(EPSILONS)
        for name, epsilons, held in (("ada-dpals", adaptive, True), ("dpals-mu0", uniform, False)):
            scenarios = [
                table[name].scenario(Place("planted", place, kind), e, 1) for e in epsilons
            ]  # type: ignore[arg-type]
            assert all((scenario.model.weight_exponent > 0) == held for scenario in scenarios)


def test_kept_rows_are_of_lines_that_run_at_their_epsilon() -> None:
    for path in (ROOT / "results").glob("study-*.json"):
        data = json.loads(path.read_text())
        for cell in data["cells"]:
            assert float(cell["epsilon"]) in SYSTEMS[data["data"]["kind"]][cell["system"]].epsilons(
                data["data"]["name"]
            )


def _one_apart(step: float) -> list[Study]:
    """All systems alike but for one step from each to the next."""
    names = [name for kind in SYSTEMS for name in SYSTEMS[kind]]
    rank = {name: k for k, name in enumerate(dict.fromkeys(names))}
    studies = []
    for kind, table in SYSTEMS.items():
        sign = step if kind == "ratings" else -step
        data = "ml-100k" if kind == "ratings" else "ml-100k-likes"
        cells = {
            (name, e): [0.9 + sign * rank[name] + 1e-6 * s for s in range(3)]
            for name, s_ in table.items()
            for e in s_.epsilons(data)
        }
        studies.append(Study.of(_content(cells, kind=kind, name=kind)))
    return studies


def test_every_claim_can_come_out_either_way() -> None:
    """All systems alike but for the sign: whatever is measured at all flips."""
    up, down = (
        [verdict.outcome for _, verdict in _of_studies(_one_apart(step))] for step in (1e-3, -1e-3)
    )
    assert len(up) == len(down) == 11
    assert all(a != b for a, b in zip(up, down, strict=True))


def test_epsilons_of_different_units_never_share_a_study() -> None:
    content = _content(_two(OURS, THEIRS))
    content["cells"][0]["guarantee"]["unit"] = "click"
    with pytest.raises(ValueError, match="different guarantees"):
        Study.of(content)


def test_the_figure_names_every_system_and_keeps_its_bars_inside() -> None:
    study = Study.of(_content(_two([0.7, 1.2, 0.8, 1.0, 0.9], THEIRS)))
    drawn = ElementTree.fromstring(str(chart.drawing(study, "alone", name="made-up")))
    words = [element.text for element in drawn.iter("text")]
    assert {"default", "Ada-DPALS", "item mean", "∞"} <= set(words)
    bars = [element for element in drawn.iter("line") if "error" in element.get("class", "")]
    assert len(bars) == 4
    assert all(
        chart.TOP - 1 <= float(bar.get(key, "nan")) <= chart.BOTTOM + 1
        for bar in bars
        for key in ("y1", "y2")
    )


def test_a_line_is_broken_where_an_epsilon_was_not_measured() -> None:
    cells = {("default", e): OURS for e in (1.0, 5.0, 10.0)} | {
        ("dpals-mu0", e): THEIRS for e in (1.0, 10.0)
    }
    drawn = ElementTree.fromstring(
        str(chart.drawing(Study.of(_content(cells)), "alone", name="made-up"))
    )
    routes = [
        element.get("d", "")
        for element in drawn.iter("path")
        if "line" in element.get("class", "").split()
    ]
    assert sorted((route.count("M"), route.count("L")) for route in routes) == [(1, 2), (2, 0)]
