"""Estimators: the bytes of the command line, the conventions of scikit-learn, and lists for people
that training never saw."""

from __future__ import annotations

import copy
import html
import json
import math
import pickle
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import (
    BudgetExceededError,
    DataWarning,
    GenericListWarning,
    LeakageError,
    RunError,
    SettingsError,
)

KEYS = [
    "data.preset=small",
    "privacy.noise=seeded",
    "compare.als=false",
    "run.examples=0",
    "evaluation.cutoffs=[10,20]",
]


@pytest.fixture(scope="module")
def parts() -> tuple[fedrec.TrainingSet, fedrec.TestSet]:
    return fedrec.Dataset.planted("small").split("random", seed=1)


@pytest.fixture(scope="module")
def model(parts: tuple[fedrec.TrainingSet, fedrec.TestSet]) -> fedrec.Recommender:
    return fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(parts[0])


@pytest.fixture(scope="module")
def clicks() -> tuple[fedrec.TrainingSet, fedrec.TestSet]:
    return fedrec.Dataset.planted("small", kind="clicks").split("random", seed=1)


@pytest.mark.slow
def test_the_command_line_simulate_and_fit_give_the_same_bytes_and_metrics(
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet],
    model: fedrec.Recommender,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = [*KEYS, f"run.directory={tmp_path / 'cli'}"]
    assert guarded(["simulate", *(word for key in keys for word in ("--set", key)), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    settings = {
        "data.preset": "small",
        "compare.als": False,
        "run.examples": 0,
        "evaluation.cutoffs": [10, 20],
    }
    run = fedrec.simulate({}, settings=settings, noise="seeded", directory=tmp_path / "api")
    assert (
        run.metrics
        == printed["metrics"]
        == fedrec.evaluate(model, parts[1], controls=False).metrics
    )
    kept = model.save(tmp_path / "model")
    for name in (
        "model.safetensors",
        "manifest.json",
        "popularity.safetensors",
        "training.json",
        "README.md",
    ):
        of_cli = (Path(printed["run_dir"]) / "model" / name).read_bytes()
        assert of_cli == (run.folder / "model" / name).read_bytes()
        assert of_cli == (kept / name).read_bytes()
    assert run.model.recommend(history=["3"]).equals(model.recommend(history=["3"]))
    assert run.report().read_text().startswith("<!doctype html>")


def test_the_guarantee_prints_its_unit_and_what_must_not_be_done(model: fedrec.Recommender) -> None:
    words = repr(model.guarantee)
    assert words.startswith("(5, 1e-05)-DP per user (add/remove, number of users public), PLD 5.00")
    assert "seeded noise: an experiment" in words
    assert "per user" in model._repr_html_()
    free = fedrec.ItemBias(epsilon=math.inf).fit(fedrec.Dataset.planted("small"))
    assert (
        repr(free.guarantee)
        == "no privacy (epsilon infinite, per user (add/remove, number of users public))"
    )


def test_the_guarantee_says_where_its_delta_promises_little(
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet],
) -> None:
    loose = fedrec.ItemBias(delta=0.05, noise="seeded").fit(parts[0]).guarantee
    assert "delta 0.05 is not below 1/300" in loose.warning
    assert "seeded noise" in loose.warning
    assert loose.warning in repr(loose)
    assert "is not below 1/300" in loose._repr_html_()
    with pytest.raises(fedrec.PrivacyError) as failure:
        fedrec.ItemBias(delta=0.06, noise="seeded").fit(parts[0])
    assert "not below 1/sqrt(300) = 0.058" in failure.value.cause
    assert "far below 1/300 = 0.0033" in failure.value.remedy


def test_parameters_follow_scikit_learn() -> None:
    model = fedrec.MatrixFactorization(epsilon=2, settings={"evaluation.ranking": False})
    again = type(model)(**model.get_params())
    assert again.get_params() == model.get_params()
    assert (
        repr(model.set_params(epsilon=3, seed=9))
        == "MatrixFactorization(epsilon=3, seed=9, settings={'evaluation.ranking': False})"
    )
    with pytest.raises(SettingsError, match="no parameter 'eps'"):
        model.set_params(eps=1)


def test_a_new_user_gets_a_list_without_training_and_never_what_was_given(
    model: fedrec.Recommender,
) -> None:
    known = list(model.item_ids[:5])
    frame = model.recommend(history=known, k=3)
    assert frame.columns == ["rank", "item", "title", "score"]
    assert frame["rank"].to_list() == [1, 2, 3]
    assert not set(frame["item"]) & set(known)
    assert frame["score"].is_sorted(descending=True)
    both = model.recommend(histories={"new": known, "other": {model.item_ids[0]: 1.0}}, k=3)
    assert both.filter(pl.col("user") == "new").drop("user").equals(frame)
    rated = model.predict(history={model.item_ids[0]: 5.0}, items=model.item_ids[1:3])
    assert rated["prediction"].is_between(0.5, 5.0).all()


def test_everything_of_a_catalogue_may_be_asked_for(model: fedrec.Recommender) -> None:
    with pytest.warns(GenericListWarning, match="the history is empty"):
        everything = model.recommend(history=[], k=10_000)
    assert len(everything) == len(model.item_ids)
    with pytest.warns(DataWarning, match="the history leaves none"):
        assert len(model.recommend(history=model.item_ids, k=5)) == 0
    with pytest.raises(fedrec.DataError, match="no 'no such item'"):
        model.recommend(history=["no such item"], k=2)
    assert model.similar_items(model.item_ids[0], k=3)["rank"].to_list() == [1, 2, 3]


def test_a_list_of_nothing_has_the_columns_and_types_of_any_other(
    model: fedrec.Recommender,
) -> None:
    with pytest.warns(DataWarning, match="the history leaves none"):
        empty = model.recommend(histories={"ann": list(model.item_ids)})
    assert empty.is_empty()
    assert empty.schema == model.recommend(histories={"ann": ["3"]}).schema


def test_counts_alone_say_of_no_item_which_are_like_it() -> None:
    data = fedrec.Dataset.planted("small", kind="clicks")
    with pytest.raises(fedrec.FedRecError, match="not which of them are alike"):
        fedrec.Popularity(noise="seeded").fit(data).similar_items("3")


def test_users_of_the_training_set_are_named_by_their_ids(
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet], model: fedrec.Recommender
) -> None:
    events = parts[0].split.train
    ids = parts[0].source.catalogue
    own = events.users_subset([7])  # type: ignore[arg-type]
    rated = {ids.item_ids[j]: float(value) for j, value in zip(own.items, own.values, strict=True)}
    listed = model.recommend(users=[ids.user_ids[7]], k=5)
    assert listed.drop("user").equals(model.recommend(history=rated, k=5))
    pairs = pl.DataFrame({"user": [ids.user_ids[7]], "item": [ids.item_ids[0]]})
    assert (
        model.predict(pairs)["prediction"][0]
        == model.predict(history=rated, items=[ids.item_ids[0]])["prediction"][0]
    )


def test_a_model_is_not_written_over_a_file_nor_a_bundle_over_a_folder(
    model: fedrec.Recommender, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(RunError, match="taken is a file"):
        model.save(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    with pytest.raises(RunError, match="is a folder"):
        model.export(tmp_path)
    assert model.export(tmp_path / "new" / "folder" / "model.bundle")
    assert (tmp_path / "new" / "folder" / "model.bundle").is_file()


def test_a_saved_model_is_loaded_and_saved_again(model: fedrec.Recommender, tmp_path: Path) -> None:
    loaded = fedrec.load(model.save(tmp_path / "one"))
    assert (type(loaded), loaded.item_ids, repr(loaded.guarantee)) == (
        type(model),
        model.item_ids,
        repr(model.guarantee),
    )
    loaded.save(tmp_path / "two")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    card = (tmp_path / "two" / "README.md").read_text()
    assert "epsilon 5 at delta 1e-05 per user" in card
    assert "Do not release this model" in card
    with pytest.raises(RunError, match="nobody's history"):
        loaded.recommend(users=["1"])
    assert len(loaded.export(tmp_path / "bundle.safetensors")) >= 16


def test_a_server_in_a_thread_answers_and_stops(
    clicks: tuple[fedrec.TrainingSet, fedrec.TestSet],
) -> None:
    model = fedrec.ItemItem(epsilon=5).fit(clicks[0])
    with (
        model.serve(port=0, background=True) as served,
        urllib.request.urlopen(f"{served.url}/v1/models") as answer,
    ):
        assert answer.status == 200
        assert json.load(answer)


def test_an_experiment_is_served_only_where_it_is_asked_for(model: fedrec.Recommender) -> None:
    with pytest.raises(SettingsError, match="seeded noise"):
        model.serve(port=0, background=True)


@pytest.mark.parametrize(
    ("kind", "needs"),
    [(fedrec.ItemItem, "clicks"), (fedrec.Popularity, "clicks"), (fedrec.ItemBias, "ratings")],
)
def test_every_estimator_trains_on_its_kind_and_refuses_the_other(
    kind: type[fedrec.Recommender],
    needs: str,
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet],
    clicks: tuple[fedrec.TrainingSet, fedrec.TestSet],
) -> None:
    right, wrong = (parts, clicks) if needs == "ratings" else (clicks, parts)
    model = kind(epsilon=5, noise="seeded").fit(right[0])
    found = fedrec.evaluate(model, right[1], k=10, controls=False).metrics
    assert found["rmse" if needs == "ratings" else "ndcg@10"] is not None
    with pytest.raises(SettingsError) as failure:
        kind(epsilon=5, noise="seeded").fit(wrong[0])
    assert "Dataset.from_frame" in failure.value.remedy
    assert "rating=" in failure.value.remedy


@pytest.mark.parametrize("kind", ["random", "held-out-users"])
def test_a_model_is_not_tested_on_what_it_was_trained_on(kind: Any) -> None:
    data = fedrec.Dataset.planted("small", kind="clicks")
    test = data.split(kind, seed=1)[1]
    for train in (data, data.split(kind, seed=2)[0], data.split("leave-last-out")[0]):
        model = fedrec.Popularity(noise="seeded").fit(train)
        with pytest.raises(LeakageError, match="the model was trained on"):
            fedrec.evaluate(model, test, controls=False)
    told = list[Any]()
    with pytest.raises(LeakageError, match="the model was trained on"):
        fedrec.privacy_curve(
            fedrec.Popularity(noise="seeded"), train, test, callbacks=[told.append]
        )
    assert not told  # nothing was trained
    model = fedrec.Popularity(noise="seeded").fit(data.split(kind, seed=1)[0])
    assert fedrec.evaluate(model, test, controls=False).metrics


def test_a_model_is_not_tested_on_events_of_another_kind_or_scale(
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet],
    model: fedrec.Recommender,
    clicks: tuple[fedrec.TrainingSet, fedrec.TestSet],
) -> None:
    of_clicks = fedrec.Popularity(noise="seeded").fit(clicks[0])
    with pytest.raises(SettingsError, match="a model of clicks predicts no ratings"):
        fedrec.evaluate(of_clicks, parts[1])
    with pytest.raises(SettingsError, match="a model of ratings predicts no clicks"):
        fedrec.evaluate(model, clicks[1])
    log = {"user": [n // 9 for n in range(90)], "item": [n % 9 for n in range(90)]}
    log["stars"] = [1 + n % 5 for n in range(90)]
    five, ten = (
        fedrec.Dataset.from_frame(log, rating="stars", rating_range=(1, top)).split()
        for top in (5, 10)
    )
    short = fedrec.ItemBias(epsilon=math.inf, delta=1e-3).fit(five[0])
    with pytest.raises(SettingsError, match=r"ratings of 1 to 5, and the test set .* 1 to 10"):
        fedrec.evaluate(short, ten[1])


def test_controls_and_verdicts_stand_beside_the_model(
    clicks: tuple[fedrec.TrainingSet, fedrec.TestSet],
) -> None:
    model = fedrec.Popularity(epsilon=5, noise="seeded").fit(clicks[0])
    found = fedrec.evaluate(model, clicks[1])
    assert found.frame["method"].to_list() == [
        "Popularity",
        "popularity",
        "non-private item-item",
        "public sides alone",
        "non-private ALS",
        "dp-item-item",
    ]
    assert {verdict.control for verdict in found.verdicts} >= {"popularity", "shuffled history"}
    said = repr(found).splitlines()
    assert [line.split("  ")[0] for line in said[:7]] == [
        "method",
        "popularity",
        "non-private item-item",
        "public sides alone",
        "non-private ALS",
        "dp-item-item",
        "Popularity",
    ]
    assert said[7:] == [found.answer, repr(model.guarantee)]
    assert "ndcg" in said[0]
    assert found.answer.startswith("NDCG@20: ")
    assert html.escape(found.answer) in found._repr_html_()
    assert "<details>" in found._repr_html_()
    assert fedrec.evaluate(model, clicks[1]).controls is found.controls  # measured once


def test_a_budget_over_all_fits_on_the_same_people_is_kept_also_where_they_have_new_rows(
    tmp_path: Path,
) -> None:
    log: dict[str, list[Any]] = {
        "user": [f"u{n}" for n in range(200) for _ in range(4)],
        "item": [(n * 7 + i * 3) % 11 for n in range(200) for i in range(4)],
    }
    train, _ = fedrec.Dataset.from_frame(log).split()
    limit = {"privacy.max_total_epsilon": 1.2}
    named = limit | {"privacy.budget_file": str(tmp_path / "people.jsonl")}
    less = {name: column[:-1] for name, column in log.items()}
    renamed = log | {"item": [f"i{item}" for item in log["item"]]}
    for settings in (limit, named):
        model = fedrec.Popularity(epsilon=1, delta=1e-5, settings=settings).fit(train)
        (spent,) = model.guarantee.spent
        assert "epsilon 1 at delta 1e-05 per user" in spent
        assert spent in repr(model.guarantee)
        saved = model.save(tmp_path / str(len(settings)))
        assert f"| all trainings of these people | {spent} |" in (saved / "README.md").read_text()
        assert fedrec.load(saved).guarantee.spent == (spent,)
        for rows in (log, less, renamed):
            with pytest.raises(BudgetExceededError):
                fedrec.Popularity(epsilon=1, delta=1e-5, settings=settings).fit(
                    fedrec.Dataset.from_frame(rows).split()[0]
                )
        # an experiment is no release
        fedrec.Popularity(epsilon=1, delta=1e-5, noise="seeded", settings=settings).fit(train)


@pytest.mark.parametrize(
    ("callbacks", "cause"),
    [
        ([3], "the callback 3 cannot be called"),
        (fedrec.JsonLines("rounds.jsonl"), "no list"),
        ([fedrec.JsonLines("/dev/null/rounds.jsonl")], "cannot be written"),
    ],
)
def test_a_callback_that_cannot_be_told_is_found_before_noise_is_drawn(
    callbacks: Any, cause: str, parts: tuple[fedrec.TrainingSet, fedrec.TestSet], tmp_path: Path
) -> None:
    model = fedrec.ItemBias(noise="seeded")
    calls: tuple[Any, ...] = (
        lambda: model.fit(parts[0], callbacks=callbacks),
        lambda: fedrec.simulate(directory=tmp_path / "runs", callbacks=callbacks),
        lambda: fedrec.privacy_curve(model, *parts, callbacks=callbacks),
    )
    for call in calls:
        with pytest.raises(fedrec.FedRecError, match=cause):
            call()
    assert not (tmp_path / "runs").exists()
    with pytest.raises(RunError, match="not trained"):
        _ = model.released


@pytest.mark.parametrize("k", [(10, "a"), 2.5, None, (), (0,), [2.0]])
def test_lengths_of_lists_are_whole_numbers(
    k: Any, parts: tuple[fedrec.TrainingSet, fedrec.TestSet], model: fedrec.Recommender
) -> None:
    with pytest.raises(SettingsError, match="no length of a list"):
        fedrec.evaluate(model, parts[1], k=k)
    with pytest.raises(SettingsError, match="no length of a list"):
        fedrec.privacy_curve(fedrec.ItemBias(), *parts, k=k)


@pytest.mark.parametrize("wrong", [{"epsilons": 5}, {"epsilons": ["a"]}, {"seeds": 5}])
def test_a_curve_has_lists_of_epsilons_and_seeds(
    wrong: Any, parts: tuple[fedrec.TrainingSet, fedrec.TestSet]
) -> None:
    with pytest.raises(SettingsError, match="a list of epsilons and one of seeds"):
        fedrec.privacy_curve(fedrec.ItemBias(), *parts, **wrong)


def test_a_copy_of_a_trained_model_is_trained(model: fedrec.Recommender) -> None:
    assert copy.deepcopy(model).recommend(history=["3"]).equals(model.recommend(history=["3"]))


def test_callbacks_are_told_of_every_round_and_of_the_end(
    parts: tuple[fedrec.TrainingSet, fedrec.TestSet], tmp_path: Path
) -> None:
    path = tmp_path / "rounds.jsonl"
    fedrec.ItemBias(noise="seeded").fit(parts[0], callbacks=[fedrec.JsonLines(path)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines][-2:] == ["round", "fit"]
    assert lines[-1]["epsilon"] == 5.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_whole_data_set_is_trained_on_whole(kind: str) -> None:
    data = fedrec.Dataset.planted("small", kind=kind)
    model = fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(data)
    user = data.source.catalogue.user_ids[7]
    events = data.source.interactions.users_subset([7])  # type: ignore[arg-type]
    had = {data.item_ids[j] for j in events.items}
    listed = model.recommend(users=[user], k=data.num_items)["item"].to_list()
    assert not had & set(listed)
    assert len(listed) == data.num_items - len(had)


def test_a_divided_data_set_is_trained_on_its_training_rows() -> None:
    log = {"user": [n // 5 for n in range(500)], "item": [n % 7 for n in range(500)]}
    held = {"user": list(range(100)), "item": [7] * 99 + [3]}
    later = {"user": [0, 0], "item": [8, 6]}
    with pytest.warns(fedrec.DataWarning, match="training names 1 of the 2 items"):
        divided = fedrec.Dataset.from_frame(log, test=held, validation=later)
    last = fedrec.Popularity(epsilon=5, noise="seeded").fit(divided)
    assert {7, 8} <= set(last.recommend(users=["0"], k=9)["item"])
    with pytest.warns(fedrec.DataWarning, match="training names 1 of the 2 items"):
        kept = fedrec.Dataset.from_frame(log, validation=held)
    assert 7 in fedrec.Popularity(noise="seeded").fit(kept).recommend(users=["0"], k=9)["item"]


FRAME = pl.DataFrame({"who": ["ann"], "what": ["3"]})
MISUSED: dict[str, tuple[Any, str]] = {
    "not trained": (lambda m: fedrec.ItemItem().recommend(history=[]), "not trained"),
    "nothing asked": (lambda m: m.recommend(), "found nothing"),
    "two things asked": (lambda m: m.recommend(history=[], users=["1"]), "history and users"),
    "a text for a list": (lambda m: m.recommend(history="3"), "is one text"),
    "a text that is no user": (lambda m: m.recommend("nobody"), "no user 'nobody'"),
    "a word for a rating": (lambda m: m.recommend(history={m.item_ids[0]: "a"}), "is no number"),
    "half a k": (lambda m: m.recommend(history=[], k=2.5), "whole number"),
    "a frame to evaluate": (lambda m: fedrec.evaluate(m, pl.DataFrame()), "needs a test set"),
    "k of 0": (lambda m: m.recommend(history=[], k=0), "at least 1"),
    "an unknown item": (lambda m: m.similar_items("nowhere"), "no item 'nowhere'"),
    "an unknown user": (lambda m: m.recommend(users=["nobody"]), "no user 'nobody'"),
    "a rating off the scale": (lambda m: m.recommend(history={m.item_ids[0]: 9}), "outside 1 to 5"),
    "a number for an id": (
        lambda m: m.recommend(history=[float(m.item_ids[0])]),
        "has no item",
    ),
    "blanks around an id": (
        lambda m: m.recommend(history={f" {m.item_ids[0]}": 5}),
        "but it has",
    ),
    "no id": (lambda m: m.recommend(histories={"ann": [None]}), "None in the place of an id"),
    "a gap for an id": (lambda m: m.recommend(history=[float("nan")]), "nan in the place"),
    "a list for an id": (lambda m: m.recommend(history=[["3"]]), "an id is a list"),
    "half a prediction": (lambda m: m.predict(history=[]), "needs pairs"),
    "a frame without items": (lambda m: m.predict({"user": ["1"]}), "no columns of items"),
    "no such folder": (lambda m: fedrec.load("nowhere"), "holds no model"),
    "a number to fit": (lambda m: fedrec.ItemBias().fit(3), "needs a training set"),
    "a mistyped key": (
        lambda m: fedrec.ItemBias(settings={"privacy.epsilonn": 1}).scenario(),
        "no key privacy.epsilonn",
    ),
    "an impossible epsilon": (lambda m: fedrec.ItemBias(epsilon=-1).scenario(), "greater than 0"),
    "an unknown method": (lambda m: fedrec.MatrixFactorization(method="als").scenario(), "recipe"),
    "an unknown scenario": (lambda m: fedrec.simulate("plantet"), "plantet"),
    "no run": (lambda m: fedrec.compare(), "no run"),
    "a list of histories": (lambda m: m.recommend(histories=[["3"]]), "histories is a list"),
    "a frame of histories": (lambda m: m.recommend(histories=FRAME), "no columns of users"),
    "a frame for a history": (lambda m: m.recommend(history=FRAME), "no columns of items"),
    "a fraction for users": (lambda m: m.recommend(users=3.5), "users is a float"),
    "a fraction for items": (lambda m: m.predict(history=[], items=1.5), "items is a float"),
    "a word for k": (lambda m: m.similar_items(m.item_ids[0], k="a"), "whole number"),
    "settings of 5": (lambda m: fedrec.ItemBias(settings=5).scenario(), "found 5"),  # type: ignore[arg-type]
    "a run with settings of 5": (lambda m: fedrec.simulate(settings=5), "found 5"),  # type: ignore[arg-type]
    "a pickle": (lambda m: pickle.dumps(m), "is not pickled"),
    "a model in a file": (lambda m: m.save("/dev/null/x"), "cannot be written"),
    "a bundle in a file": (lambda m: m.export("/dev/null/x"), "cannot be written"),
    "no such run": (lambda m: fedrec.compare("nowhere"), "no finished run"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_is_refused_with_a_cause(name: str, model: fedrec.Recommender) -> None:
    call, cause = MISUSED[name]
    with pytest.raises(fedrec.FedRecError) as failure:
        call(model)
    assert cause in failure.value.cause
    assert failure.value.remedy


def test_a_saved_model_says_what_reader_and_split_took_from_everybodys_rows(
    tmp_path: Path,
) -> None:
    frame = pl.DataFrame(
        {"user": [f"u{k % 40}" for k in range(400)], "item": [f"i{k % 37}" for k in range(400)]}
    )
    data = fedrec.Dataset.from_frame(frame, user="user", item="item")
    model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
    (said,) = model.guarantee.not_covered
    folder = model.save(tmp_path / "model")
    assert fedrec.load(folder).guarantee == model.guarantee
    assert f"- Not covered: {said}." in (folder / "README.md").read_text()
    assert model.guarantee.as_dict()["not_covered"] == [said]
