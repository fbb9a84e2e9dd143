"""What all runs on one data set have cost is kept over runs, charged before noise, printed, and
refused past a limit."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedrec.cli.main import guarded
from fedrec.data.frames import read_frame
from fedrec.data.interactions import FileDigest
from fedrec.errors import BudgetExceededError, RunError
from fedrec.federation import releases
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import PureEvent
from fedrec.run.data.budget import DataBudget, _content, budget_of, files_of
from fedrec.run.data.datasets import load_dataset
from fedrec.run.job import RuntimeChoice
from fedrec.run.resume_right import charged_ahead
from fedrec.run.simulate import run as run_scenario
from fedrec.run.training import RoundRecord
from fedrec.settings import load
from fedrec.storage import read_json

NO_LIMIT = Guarantee(math.inf, 1e-5)
MU = mu_for(5.0, 1e-5)
PLAIN = [
    "compare.als=false",
    "compare.baselines=false",
    "evaluation.ranking=false",
    "run.examples=0",
    "data.rating_range=[1,5]",
]
KEYS = [*PLAIN, "recipe=noisy-descent", "model.steps=2"]


def one(path: Path, limit: Guarantee = NO_LIMIT) -> DataBudget:
    return DataBudget(path / "people.jsonl", limit, clock=lambda: 1e9)


def ratings(path: Path) -> Path:
    rows = [f"u{k},i{j},{1 + (k * j) % 5}" for k in range(30) for j in range(k % 7, 25, 3)]
    path.write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    return path


def simulate(
    capsys: pytest.CaptureFixture[str],
    data: Path,
    *more: str,
    code: int = 0,
    words: Sequence[str] = ("--json",),
) -> Any:
    keys = [*KEYS, f"data.path={data}", f"run.directory={data.parent / 'runs'}", *more]
    capsys.readouterr()
    assert guarded(["simulate", *(word for key in keys for word in ("--set", key)), *words]) == code
    out, err = capsys.readouterr()
    return json.loads(out) if not code and words == ("--json",) else out + err


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_charges_of_all_runs_compose_exactly_and_outlive_the_object(tmp_path: Path) -> None:
    for run in "abc":
        one(tmp_path).charge(
            run, "system", [GaussianEvent("counts", MU * 0.6), GaussianEvent("items", MU * 0.8)]
        )
    (spent,) = one(tmp_path).spent()
    assert spent.epsilon == pytest.approx(epsilon_of(math.sqrt(3) * MU, 1e-5))
    assert (spent.trainings, spent.unit, spent.neighbours) == (3, "user", "add/remove")
    assert "per user (add/remove, number of users public) in 3 trainings" in spent.words


def test_a_thousand_charges_add_up_like_one(tmp_path: Path) -> None:
    """Ten times any number of lines that a loop might stop at. The lines are appended as a charge
    does, in one opening of the file: each opening reads all of them."""
    budget = one(tmp_path, Guarantee(10.0, 1e-5))
    fit = mu_for(10.0, 1e-5) / math.sqrt(1_001)
    with budget._opened() as file:
        for k in range(1_000):
            file.append(_content(k + 1, 1e9, f"run {k}", "system", [GaussianEvent("counts", fit)]))
    budget.require_room([GaussianEvent("counts", fit)])
    with pytest.raises(BudgetExceededError, match="paid epsilon"):
        budget.require_room([GaussianEvent("counts", 1.1 * fit)])
    with pytest.raises(BudgetExceededError, match="paid epsilon"):
        budget.charge("one more", "system", [GaussianEvent("counts", 1.1 * fit)])
    budget.charge("one more", "system", [GaussianEvent("counts", fit)])
    (spent,) = budget.spent()
    assert (spent.trainings, spent.epsilon) == (1_001, pytest.approx(10.0, rel=1e-6))


def test_trainings_in_one_folder_are_told_apart_by_their_first_release(tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("counts", "items"):  # a release at a time, as a training charges them
            one(tmp_path).charge("same", "system", [GaussianEvent(name, 0.1)])
    one(tmp_path).charge("same", "system", [GaussianEvent("items", 0.1)])  # continued, drawn afresh
    (spent,) = one(tmp_path).spent()
    assert spent.trainings == 2


def test_units_do_not_add_and_pure_releases_are_composed_with_gaussian_ones(tmp_path: Path) -> None:
    one(tmp_path).charge("a", "system", [GaussianEvent("counts", MU)])
    one(tmp_path).charge(
        "b", "system", [GaussianEvent("report", 0.5, "click", "replace"), PureEvent("label", 1.0)]
    )
    users, clicks = one(tmp_path).spent()
    assert users.epsilon == pytest.approx(5.0)
    assert 1.0 < clicks.epsilon < 1.0 + epsilon_of(0.5, 1e-5) + 1e-6


def test_seeded_experiments_and_trainings_without_noise_are_listed_once_and_not_added(
    tmp_path: Path,
) -> None:
    for _ in range(3):
        one(tmp_path).charge("seeded", "seeded", [GaussianEvent("counts", MU)])
        one(tmp_path).charge("open", "system", [GaussianEvent("counts", math.inf)])
    one(tmp_path).charge("run", "system", [GaussianEvent("counts", MU)])
    (spent,) = one(tmp_path).spent()
    assert (spent.trainings, spent.experiments, spent.without_noise) == (1, 1, 1)
    assert spent.epsilon == pytest.approx(5.0)
    assert "1 training with seeded noise, which must not be released" in spent.words


def test_past_the_limit_nothing_is_written(tmp_path: Path) -> None:
    budget = one(tmp_path, Guarantee(5.0, 1e-5))
    budget.charge("a", "system", [GaussianEvent("counts", MU)])
    with pytest.raises(BudgetExceededError, match=r"max_total_epsilon is 5"):
        budget.charge("b", "system", [GaussianEvent("counts", 0.01)])
    with pytest.raises(BudgetExceededError, match="epsilon inf"):
        budget.charge("c", "system", [GaussianEvent("counts", math.inf)])
    assert len(budget.entries()) == 1


@pytest.mark.parametrize("harm", ["changed", "dropped", "cut off", "replaced"])
def test_a_changed_dropped_or_older_budget_is_noticed(harm: str, tmp_path: Path) -> None:
    budget = one(tmp_path)
    for run in "abc":
        budget.charge(run, "system", [GaussianEvent("counts", MU)])
    lines = budget.path.read_text().splitlines(keepends=True)
    harmed = {
        "changed": [lines[0], lines[1].replace('"b"', '"z"'), lines[2]],
        "dropped": [lines[0], lines[2]],
        "cut off": lines[:2],
        "replaced": [],
    }[harm]
    budget.path.write_text("".join(harmed))
    with pytest.raises(RunError):
        budget.charge("d", "system", [GaussianEvent("counts", MU)])


def test_a_line_that_a_crash_cut_short_was_no_charge(tmp_path: Path) -> None:
    budget = one(tmp_path)
    budget.charge("a", "system", [GaussianEvent("counts", MU)])
    with open(budget.path, "a") as file:
        file.write('{"number": 2, "time')
    budget.charge("b", "system", [GaussianEvent("counts", MU)])
    assert [entry.training for entry in budget.entries()] == ["a", "b"]


def test_a_copy_of_the_data_has_the_same_budget_and_invented_data_has_none(
    tmp_path: Path, state: Path
) -> None:
    data = ratings(tmp_path / "a.csv")
    privacy = load(None).privacy
    copy = shutil.copy(data, tmp_path / "b.csv")
    first, second = (budget_of(privacy, files_of(str(path))) for path in (data, copy))
    assert first is not None
    assert second is not None
    assert first.path == second.path
    assert first.path.is_relative_to(state)
    assert budget_of(privacy, files_of("")) is None


def test_a_second_run_of_the_same_scenario_is_added_and_printed_in_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    first = simulate(capsys, data)
    second = simulate(capsys, data)
    assert first["budget"]["spent"][0]["epsilon"] == pytest.approx(5.0, rel=1e-6)
    twice = epsilon_of(math.sqrt(2) * MU, 1e-5)
    assert second["budget"]["spent"][0]["epsilon"] == pytest.approx(twice, rel=1e-6)
    folder = Path(second["run_dir"])
    for name in ("result.json", "guarantee.json"):
        said = read_json(folder / name)
        assert said["budget"]["spent"][0]["epsilon"] == pytest.approx(twice, rel=1e-6)
        assert "and nothing else" in said["covers"]
        assert any("measured on the data without noise" in each for each in said["not_covered"])
        assert "with and without one person's rows" in said["compared"]
    page = (folder / "report.html").read_text()
    assert "All runs on this data together have spent" in page
    assert [run["budget"]["spent"][0]["trainings"] for run in (first, second)] == [1, 2]
    out = simulate(capsys, data, words=())
    assert "in 3 trainings" in " ".join(out.split())
    assert "spent      by all runs on this data: epsilon" in out
    assert "the numbers above are not private" in " ".join(out.split())


def test_going_on_without_checkpoints_draws_afresh_and_is_charged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    first = simulate(capsys, data)
    again = simulate(capsys, data, words=("--json", "--resume"))
    same = simulate_resumed(capsys, data)
    assert same["budget"]["spent"][0]["epsilon"] == pytest.approx(5.0, rel=1e-6), (
        "a finished run draws nothing"
    )
    shutil.rmtree(Path(first["run_dir"]) / "epsilon-5" / "checkpoints")
    fresh = simulate_resumed(capsys, data)
    assert fresh["budget"]["spent"][0]["epsilon"] == pytest.approx(
        epsilon_of(math.sqrt(2) * MU, 1e-5), rel=1e-6
    )
    assert again


def simulate_resumed(capsys: pytest.CaptureFixture[str], data: Path) -> dict[str, Any]:
    return dict(json.loads(simulate(capsys, data, words=("--json", "--resume")).splitlines()[-1]))


def test_a_run_that_would_pass_the_limit_of_its_data_is_refused_before_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    limit = ("privacy.max_total_epsilon=6",)
    simulate(capsys, data, *limit)
    monkeypatch.setattr(
        releases, "_integers", lambda *given, **named: pytest.fail("noise was drawn")
    )
    said = simulate(capsys, data, *limit, code=5)
    assert "max_total_epsilon is 6" in said
    more = ratings(tmp_path / "more.csv")
    more.write_text(
        more.read_text() + more.read_text().splitlines()[-1].replace(",", "9,", 1) + "\n"
    )
    assert "max_total_epsilon is 6" in simulate(capsys, more, *limit, code=5)


def test_every_release_is_charged_before_its_noise_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    drawn = list[int]()
    sound = releases._integers

    def watched(*given: Any, **named: Any) -> Any:
        (path,) = (state / "fedrec" / "budgets").glob("*.jsonl")
        drawn.append(sum(len(json.loads(line)["events"]) for line in path.read_text().splitlines()))
        return sound(*given, **named)

    monkeypatch.setattr(releases, "_integers", watched)
    found = simulate(capsys, data)
    (path,) = (state / "fedrec" / "budgets").glob("*.jsonl")
    names = [
        event[0] for line in path.read_text().splitlines() for event in json.loads(line)["events"]
    ]
    assert names == [
        release["name"]
        for release in read_json(Path(found["run_dir"]) / "epsilon-5" / "plan.json")["releases"]
    ]
    assert len(drawn) == len(names)
    assert all(charged >= k for k, charged in enumerate(drawn, start=1))


def test_a_seeded_run_is_an_experiment_in_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    found = [simulate(capsys, data, "privacy.noise=seeded") for _ in range(2)][-1]
    assert (
        found["noise"]
        == read_json(Path(found["run_dir"]) / "model" / "manifest.json")["noise"]
        == "seeded"
    )
    (spent,) = found["budget"]["spent"]
    assert (spent["trainings"], spent["experiments"], spent["epsilon"]) == (0, 1, 0.0)
    out = simulate(capsys, data, "privacy.noise=seeded", words=())
    assert "do not release this model" in out
    assert "an experiment" in (Path(found["run_dir"]) / "report.html").read_text()
    assert os.path.exists(found["budget"]["file"])


class StoppedError(Exception):
    """Between two rounds."""


def flower(data: Path, folder: str, *more: str, resume: bool = False, stop: bool = False) -> None:
    """dp-bias by real parties in this process. stop: after its first round."""
    keys = [*PLAIN, "recipe=dp-bias", f"data.path={data}", f"run.directory={data.parent / folder}"]
    chosen = load(None, [*keys, "privacy.allow_large_delta=true", *more])

    def after_round(record: RoundRecord) -> None:
        if stop:
            raise StoppedError

    with pytest.raises(StoppedError) if stop else nullcontext():
        run_scenario(
            chosen, name="one", choice=RuntimeChoice("parties", 2), resume=resume, quiet=True,
            on_round=after_round,
        )  # fmt: skip


def charges(state: Path) -> int:
    (path,) = (state / "fedrec" / "budgets").glob("*.jsonl")
    return len(path.read_text().splitlines())


def test_a_stopped_run_of_real_parties_goes_on_at_its_limit_without_a_second_charge(
    tmp_path: Path, state: Path
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    file = state / "fedrec" / "budgets" / "people.jsonl"
    limit = ("privacy.max_total_epsilon=5", f"privacy.budget_file={file}")
    flower(data, "runs", *limit, stop=True)
    flower(data, "runs", *limit, resume=True, stop=True)
    flower(data, "runs", *limit, resume=True)
    assert charges(state) == 1
    (spent,) = DataBudget(file, NO_LIMIT).spent()
    assert spent.epsilon == pytest.approx(5.0)  # every release of the plan
    with pytest.raises(BudgetExceededError):
        flower(data, "others", *limit)
    assert not list(file.parent.glob("*.paid")), "of a finished training"


@pytest.mark.parametrize("first", ["goes on", "finishes"])
def test_a_copy_of_a_stopped_run_of_real_parties_is_charged_anew(
    first: str, tmp_path: Path, state: Path
) -> None:
    data = ratings(tmp_path / "ratings.csv")
    flower(data, "runs", stop=True)
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    flower(data, "runs", resume=True, stop=first == "goes on")
    assert charges(state) == 1
    flower(data, "copy", resume=True)
    assert charges(state) == 2


def test_a_copy_of_a_run_that_is_at_work_is_charged_anew(tmp_path: Path) -> None:
    budget = tmp_path / "people.jsonl"
    paid = list[str]()

    def at_work(folder: str) -> AbstractContextManager[None]:
        return charged_ahead(budget, tmp_path / folder, lambda: paid.append(folder), resumable=True)

    with at_work("run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with at_work("copy"):
            assert paid == ["run", "copy"]
    with at_work("run"):
        assert paid == ["run", "copy", "run"], "it has finished"


def test_a_named_budget_keeps_the_permissions_that_let_other_users_charge_it(
    tmp_path: Path,
) -> None:
    named = one(tmp_path)
    named.charge("a", "system", [GaussianEvent("counts", MU)])
    named.path.chmod(0o660)
    named.charge("b", "system", [GaussianEvent("counts", MU)])
    assert stat.S_IMODE(named.path.stat().st_mode) == 0o660


def test_the_default_budget_is_its_users_alone(tmp_path: Path) -> None:
    own = budget_of(load(None).privacy, files_of(str(ratings(tmp_path / "a.csv"))))
    assert own is not None
    own.charge("a", "system", [GaussianEvent("counts", MU)])
    assert stat.S_IMODE(own.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.path.parent.stat().st_mode) == 0o700


def named(*files: FileDigest) -> Path:
    found = budget_of(load(None).privacy, files)
    assert found is not None
    return found.path


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")  # few rows suffice here
def test_public_files_beside_the_rows_are_the_same_people(tmp_path: Path) -> None:
    data = ratings(tmp_path / "ratings.csv")
    films = tmp_path / "films.csv"
    others = ratings(tmp_path / "others.csv")
    near = tmp_path / "near.csv"
    others.write_text(others.read_text().replace("u", "v").replace("vser", "user"))
    near.write_text("item,neighbour,score\ni1,i2,0.5\n")
    table = "item,genre\n" + "".join(f"i{j},drama\n" for j in range(25))
    public_users = [
        f"collective.users_file={others}",
        "collective.users_ids=same",
        'collective.sides=["public-users"]',
    ]
    similar = [f"collective.similar_file={near}", 'collective.sides=["similar-items"]']
    for more in ("", "i99,comedy\n"):
        films.write_text(table + more)
        for extra in ([], [f"data.features_path={films}"], public_users, similar):
            chosen = load(None, [*PLAIN, f"data.path={data}", "recipe=dp-cmf", *extra])
            provenance = load_dataset(chosen).provenance
            assert named(*provenance.files) == named(*files_of(str(data)))
            assert len(provenance.files) == 1 + bool(extra), "all that was read is told"


def test_titles_of_films_and_news_are_not_people(tmp_path: Path) -> None:
    for folder, events, public in (
        ("film", "ratings.dat", "movies.dat"),
        ("news", "train/behaviors.tsv", "train/news.tsv"),
    ):
        (tmp_path / folder / events).parent.mkdir(parents=True)
        for name in (events, public):
            (tmp_path / folder / name).write_text(name)
        before = files_of(str(tmp_path / folder))
        (tmp_path / folder / public).write_text("another line")
        (tmp_path / folder / "README").write_text("of somebody")
        after = files_of(str(tmp_path / folder))
        assert named(*before) == named(*after)
        assert len(after) == 3


@pytest.mark.parametrize(
    "form", ["other order", "floats", "with times", "numbers as text", "float ids"]
)
def test_a_frame_of_the_same_people_in_another_form_has_the_same_budget(form: str) -> None:
    rows = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "rating": [5, 3, 4]})
    scale: dict[str, Any] = {"rating": "rating", "rating_range": (1, 5)}
    others = {
        "other order": (rows.reverse(), {}),
        "floats": (rows.with_columns(pl.col("rating").cast(pl.Float32)), {}),
        "with times": (rows.with_columns(t=pl.lit(1_000_000_000)), {"time": "t"}),
        "float ids": (rows.with_columns(pl.col("user", "item").cast(pl.Float64)), {}),
        "numbers as text": (rows.with_columns(pl.col("user", "item").cast(pl.String)), {}),
    }
    frame, more = others[form]
    one = read_frame(rows, **scale)
    other = read_frame(frame, **scale, **more)
    assert named(*one.provenance.files) == named(*other.provenance.files)
    fewer = read_frame(rows.head(2), **scale)
    assert named(*one.provenance.files) != named(*fewer.provenance.files)


def test_a_budget_of_an_earlier_version_counts_once(tmp_path: Path, state: Path) -> None:
    rows = FileDigest("rows", 1, "a" * 64)
    films = FileDigest("films", 1, "b" * 64, public=True)
    name = hashlib.sha256("\n".join([rows.sha256, films.sha256]).encode()).hexdigest()[:32]
    old = state / "fedrec" / "budgets" / f"{name}.jsonl"
    DataBudget(old, NO_LIMIT, clock=lambda: 7.0).charge("a", "system", [GaussianEvent("x", MU)])
    for _ in range(2):
        found = budget_of(load(None).privacy, [rows, films])
        assert found is not None
        assert found.path != old
        assert [(e.training, e.time_s) for e in found.entries()] == [("a", 7.0)]
    assert not old.exists()
    assert [e.training for e in DataBudget(named(rows), NO_LIMIT).entries()] == ["a"]


def test_a_budget_of_an_earlier_version_that_is_gone_is_noticed(state: Path) -> None:
    rows = FileDigest("rows", 1, "a" * 64)
    films = FileDigest("films", 1, "b" * 64, public=True)
    name = hashlib.sha256("\n".join([rows.sha256, films.sha256]).encode()).hexdigest()[:32]
    old = state / "fedrec" / "budgets" / f"{name}.jsonl"
    DataBudget(old, NO_LIMIT).charge("a", "system", [GaussianEvent("x", MU)])
    old.unlink()
    with pytest.raises(RunError, match="is gone"):
        budget_of(load(None).privacy, [rows, films])
