"""Certificates of simulated models: they hold in a process without a deployment, and no change of a
byte, and no forgery that names its own digests, does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from threadpoolctl import threadpool_info, threadpool_limits

import fedrec
from fedrec.certificates import verifying
from fedrec.certificates.verifying import verify
from fedrec.certificates.writing import (
    FILE,
    ReleasedRound,
    certify,
    read_inputs,
    round_file,
)
from fedrec.cli.main import guarded
from fedrec.errors import RunError
from fedrec.federation.messages import Release
from fedrec.federation.wire import pack_release
from fedrec.output_folders import MARKER, clear, reopen
from fedrec.privacy.calibration import Plan
from fedrec.serving.bundle import FILE as BUNDLE
from fedrec.serving.model_bundles import export
from fedrec.settings import load as load_scenario
from fedrec.storage import read_json, write_arrays, write_json
from tests.cases import slow_but
from tests.certificates.models import NEWS, SMALL, copied, fuzzed, holds, parsed, sealed, simulated
from tests.torch_modules.registered import TORCH

FEW = ["model.steps=2", "model.dimension=4"]  # of steps that are all alike
CASES = {
    "default": [*SMALL, "recipe=default"],
    "published": [*SMALL, *FEW, "recipe=published"],
    "am-dpsgd": [*SMALL, *FEW, "recipe=am-dpsgd"],
    "encoder-descent": [*SMALL, *FEW, "recipe=encoder-descent"],
    "dp-cmf": [*SMALL, *FEW, "recipe=dp-cmf", 'collective.sides=["metadata"]'],
    "dp-bias": [*SMALL, "recipe=dp-bias"],
    "clicks": [*SMALL, "data.kind=clicks", "recipe=default"],
    "item-item": [*SMALL, "data.kind=clicks", "recipe=dp-item-item"],
    "dp-gd": [*SMALL, *FEW, "recipe=dp-gd"],
    "noisy-descent": [*SMALL, *FEW, "recipe=noisy-descent"],
    "popularity": [*SMALL, "data.kind=clicks", "recipe=dp-popularity"],
    "torch": [*SMALL, "data.kind=clicks", *TORCH],
    "convex-ssp": [*SMALL, *FEW, "data.kind=clicks", "recipe=convex-ssp"],
    "three": [*SMALL, "privacy.aggregation=three-party", "privacy.shares=real"],
    "three-checked": [
        *SMALL,
        "privacy.aggregation=three-party",
        "privacy.hostile_clients=checked",
    ],
    "without-noise": [*SMALL, "privacy.epsilon=inf", "recipe=dp-bias"],
    "central": [*NEWS, "news.variant=central", "news.rounds=3"],
    "central-encoder": [*NEWS, "news.variant=central-encoder", "news.rounds=2"],
}
QUICK = {"default", "dp-bias", "clicks", "item-item", "convex-ssp", "without-noise", "central"}
"""Of each kind of data and of noise one; what others choose is seen by `make test-rest`."""


@pytest.mark.parametrize("case", slow_but(QUICK, CASES))
def test_a_simulated_model_follows_from_its_certificate(case: str, tmp_path: Path) -> None:
    model = simulated(tmp_path, CASES[case])
    found = verify(model.parent)
    assert found.difference == 0
    assert found.same_code
    assert found.signed == ()
    assert found.price.gdp == pytest.approx(found.guarantee.epsilon, rel=1e-6)
    assert any("No aggregator signed" in words for words in found.trusted)
    assert found.release_bytes > 0
    assert str(tmp_path) not in (model / FILE).read_text()


def test_the_bundle_of_a_run_is_recomputed_and_so_is_one_beside_the_model(tmp_path: Path) -> None:
    model = simulated(tmp_path, CASES["default"])
    made = model.parent / BUNDLE
    export(model, made)
    content = made.read_bytes()
    for place in (made, model / BUNDLE):
        place.write_bytes(content)
        assert verify(model.parent).bundle
        place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(RunError):
            verify(model.parent)
        place.unlink()


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = [*SMALL, "recipe=dp-bias", "privacy.evaluation_share=0.1"]
    return simulated(tmp_path_factory.mktemp("certified"), keys)


def test_what_people_said_follows_from_the_last_release(certified: Path) -> None:
    found = verify(certified)
    assert found.evaluation == read_json(certified / "manifest.json")["evaluation"]["words"]
    assert any(found.evaluation in words for words in found.proved)


def test_no_changed_byte_holds(certified: Path, tmp_path: Path) -> None:
    """10,000 by `python -m tests.certificates MODEL`."""
    assert fuzzed(certified, tmp_path / "model", 300, seed=46) == []


def _answer(model: Path, number: int) -> Release:
    content = (model / round_file(number)).read_bytes()
    length = int.from_bytes(content[:8], "little")
    stated = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["noise_std"])
    return Release(load(content), {name: float.fromhex(std) for name, std in stated.items()})


def _put(model: Path, number: int, answer: Release) -> None:
    (model / round_file(number)).write_bytes(pack_release(answer))


def _another_value(model: Path) -> None:
    answer = _answer(model, 1)
    name = next(iter(answer.values))
    values = {**answer.values, name: answer.values[name] * 1.01}
    _put(model, 1, replace(answer, values=values))


def _less_noise(model: Path) -> None:
    last = len(parsed(model)["rounds"]) - 1  # no question follows that would be another one
    answer = _answer(model, last)
    stds = {name: std / 1.00001 for name, std in answer.noise_std.items()}
    _put(model, last, replace(answer, noise_std=stds))


def _another_model(model: Path) -> None:
    arrays = load((model / "model.safetensors").read_bytes())
    name = max(arrays, key=lambda key: arrays[key].size)
    arrays[name] = np.asarray(arrays[name] + arrays[name].dtype.type(0.01))
    manifest = read_json(model / "manifest.json")
    digest = write_arrays(model / "model.safetensors", arrays)
    write_json(model / "manifest.json", {**manifest, "sha256": digest})


def _a_smaller_promise(model: Path) -> None:
    manifest = read_json(model / "manifest.json")
    smaller = {**manifest, "guarantee": {**manifest["guarantee"], "epsilon": 1.0}}
    write_json(model / "manifest.json", smaller)


def _a_smaller_delta(model: Path) -> None:
    manifest = read_json(model / "manifest.json")
    smaller = {**manifest, "guarantee": {**manifest["guarantee"], "delta": 1e-7}}
    write_json(model / "manifest.json", smaller)


def _exact_counts(model: Path) -> None:
    counts = load((model / "popularity.safetensors").read_bytes())
    write_arrays(model / "popularity.safetensors", {"counts": np.round(counts["counts"]) + 1})


def _a_smaller_promise_of_answers(model: Path) -> None:
    served = read_json(model / "serving.json")
    served["origin"]["guarantee"]["epsilon"] = 4.9
    served["origin"]["spent"] = 4.9
    write_json(model / "serving.json", served)


def _less_spent(model: Path) -> None:
    served = read_json(model / "serving.json")
    served["origin"]["spent"] = 4.9
    write_json(model / "serving.json", served)


def _a_better_evaluation(model: Path) -> None:
    manifest = read_json(model / "manifest.json")
    manifest["evaluation"]["model"]["value"] *= 0.9
    write_json(model / "manifest.json", manifest)


def _two_promises(model: Path) -> None:
    """Of which one reader of JSON takes the first, another one the last."""
    text = (model / "manifest.json").read_text()
    (model / "manifest.json").write_text(text.replace("{", '{"guarantee": {"epsilon": 0.1},', 1))


def _another_form(model: Path) -> None:
    """The same content in other bytes, in which more could be said."""
    text = (model / "manifest.json").read_text()
    (model / "manifest.json").write_text(text.replace(": ", ":  ", 1))


FORGERIES: dict[str, tuple[Any, str]] = {
    "value of a release": (_another_value, "asked another question|differs from"),
    "noise of a release": (_less_noise, "costs more than planned"),
    "model": (_another_model, "model.safetensors differs"),
    "epsilon": (_a_smaller_promise, "names another guarantee"),
    "delta": (_a_smaller_delta, "names another guarantee"),
    "counts": (_exact_counts, "popularity.safetensors differs"),
    "epsilon of answers": (_a_smaller_promise_of_answers, "promises more than the plan"),
    "epsilon spent": (_less_spent, "promises more than the plan"),
    "evaluation": (_a_better_evaluation, "names another evaluation"),
    "key twice": (_two_promises, "comes twice"),
    "form": (_another_form, "is not canonical"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_forgery_that_names_its_own_digests_holds(
    forgery: str, certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    forge, said = FORGERIES[forgery]
    forge(model)
    sealed(model)
    with pytest.raises(RunError, match=said):
        verify(model, up_to_rounding=True)
    sealed(copied(certified, tmp_path / "model"))
    assert holds(tmp_path / "model")  # it was the forgery, not the way it was sealed


def test_no_file_of_one_training_holds_beside_those_of_another(
    certified: Path, tmp_path: Path
) -> None:
    """Of the same settings and people: a single file, the certificate with its releases, and all but
    it, with every digest stated anew."""
    keys = [*SMALL, "recipe=dp-bias", "privacy.evaluation_share=0.1"]
    other = simulated(tmp_path / "other", keys)
    names = sorted(p.relative_to(other).as_posix() for p in other.rglob("*") if p.is_file())
    differ = [n for n in names if (other / n).read_bytes() != (certified / n).read_bytes()]
    released = [name for name in names if name.startswith(FILE.split("/")[0])]
    swaps = [[name] for name in differ if name != FILE]
    swaps += [released, [name for name in names if name not in released]]
    for swapped in swaps:
        model = copied(certified, tmp_path / "model")
        for name in swapped:
            shutil.copy(other / name, model / name)
        sealed(model)
        assert not holds(model), swapped
    assert len(swaps) > 5


@pytest.mark.parametrize(
    "changed",
    [
        {"users": 59},
        {"run": "another"},
        {"settings": {"recipe": "dp-bias", "privacy": {"epsilon": 4.0}}},
        {"settings": {"recipe": "dp-bias", "privacy": {"delta": 1e-6}}},
        {"settings": {"recipe": "default"}},
        {"settings": {"recipe": "dp-bias", "seed": "x"}},
        {"statements": [{"statement": "{}", "signature": "", "certificate": ""}]},
        {"statements": [{}]},
        {"plan": {}},
        {"rounds": []},
        {"rounds": [{"question": "0" * 64, "reported": 60}]},
        {"rounds": None},
        {"users": "sixty"},
        {"users": 60.0},
        {"rounds": [None]},
        {"code": None},
        {"fedrec": 1e18},
        {"statements": ""},
    ],
    ids=str,
)
def test_no_certificate_that_says_something_else_holds(
    changed: dict[str, Any], certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    sealed(model, **changed)
    assert not holds(model)


def test_a_round_that_is_left_out_or_made_twice_is_found(certified: Path, tmp_path: Path) -> None:
    rounds = parsed(certified)["rounds"]
    for said, some in (
        ("rounds are missing", rounds[:-1]),
        ("asks no such round", [*rounds, rounds[-1]]),
        ("asked another question", rounds[::-1]),
    ):
        model = copied(certified, tmp_path / said)
        sealed(model, rounds=some)
        with pytest.raises(RunError, match=said):
            verify(model)


def test_a_release_that_is_made_twice_is_found(certified: Path) -> None:
    """Of a recipe that would ask for it again."""
    plan = Plan.of(parsed(certified)["plan"])
    events = [plan.event(release.name) for release in plan.releases]
    assert verifying._price([events], plan).gdp == pytest.approx(5.0)
    with pytest.raises(RunError, match="made twice"):
        verifying._price([events, events[:1]], plan)


def test_a_file_more_and_a_file_less_are_found(certified: Path, tmp_path: Path) -> None:
    more = copied(certified, tmp_path / "more")
    (more / "notes.txt").write_text("hello")
    less = copied(certified, tmp_path / "less")
    (less / "README.md").unlink()
    linked, piped = (copied(certified, tmp_path / name) for name in ("linked", "piped"))
    (linked / "more").symlink_to(tmp_path)  # what it holds would be named by nobody
    os.mkfifo(piped / "pipe")
    for model, said in (
        (more, "does not name notes.txt"),
        (less, "README.md is missing"),
        (linked, "more is neither a file nor a folder"),
        (piped, "pipe is neither a file nor a folder"),
    ):
        with pytest.raises(RunError, match=said):
            verify(model)


@pytest.mark.slow
def test_verification_loads_no_deployment_and_says_what_rests_on_trust(certified: Path) -> None:
    code = (
        "import sys\nfrom fedrec.cli.main import guarded\n"
        f"assert guarded(['verify', {str(certified)!r}]) == 0\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not found & {'flwr', 'grpc', 'torch', 'ray', 'fedrec_server', 'fedrec_client'}\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("holds: ")
    assert "measured on these people" in made.stdout.partition("rests on trust")[2]


def test_the_command_ends_with_6_where_a_certificate_does_not_hold(
    certified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["verify", str(certified), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["difference"] == 0
    assert len(said["proved"]) == 3
    model = copied(certified, tmp_path / "model")
    _another_model(model)
    assert guarded(["verify", str(model)]) == 6
    assert "was changed" in capsys.readouterr().err
    assert guarded(["verify", str(tmp_path)]) == 6


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_model_that_is_saved_over_another_holds_nothing_of_it(
    certified: Path, tmp_path: Path
) -> None:
    """Exact sums of an earlier training without noise, say."""
    private = fedrec.ItemBias(epsilon=1, noise="seeded").fit(fedrec.Dataset.planted("small"))
    alone = _files(private.save(tmp_path / "alone"))
    for model in (private, fedrec.load(tmp_path / "alone")):
        over = copied(certified, tmp_path / "over")
        reopen(over, "model")  # as a training leaves it that was stopped
        for left in ("round-009.safetensors", "round-000-1.output", "earlier.safetensors"):
            (over / "certificate" / left).write_bytes(b"exact sums")
        (over / "popularity.safetensors").write_bytes(b"exact counts")
        assert _files(model.save(over)) == alone
    clear(copied(certified, tmp_path / "over"), "model")
    assert {*_files(tmp_path / "over")} == {MARKER}


def test_a_certificate_takes_the_place_of_an_earlier_one_whole(
    certified: Path, tmp_path: Path
) -> None:
    """As a run that goes on writes it again."""
    model = copied(certified, tmp_path / "model")
    reopen(model, "model")
    (model / "certificate" / "earlier.safetensors").write_bytes(b"of a warm start")
    scenario = load_scenario(None, [*SMALL, "recipe=dp-bias"])
    content = parsed(certified)
    rounds = [
        ReleasedRound((certified / round_file(k)).read_bytes(), one["reported"], one["question"])
        for k, one in enumerate(content["rounds"])
    ]
    inputs = read_inputs(certified / "certificate", content["users"])
    plan = Plan.of(content["plan"])
    certify(model, scenario, inputs, rounds, run=content["run"], plan=plan, noise="system")
    assert parsed(model)["files"] == content["files"]


@pytest.mark.parametrize("left", ["round-009.safetensors", "round-009-1.output", "round-x"])
def test_releases_of_another_training_beside_a_model_are_found(
    left: str, certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    (model / "certificate" / left).write_bytes((model / round_file(0)).read_bytes())
    sealed(model)
    with pytest.raises(RunError, match="none of its rounds"):
        verify(model)


def test_a_saved_model_is_certified_and_so_is_a_copy(tmp_path: Path) -> None:
    data = fedrec.Dataset.planted("small")
    first = fedrec.ItemBias(epsilon=3).fit(data).save(tmp_path / "first")
    again = fedrec.load(first).save(tmp_path / "again")
    assert fedrec.verify(first).sha256 == fedrec.verify(again).sha256


def test_a_certificate_nested_past_what_python_reads_does_not_hold(
    certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    (model / FILE).write_text("[" * 5000 + "]" * 5000)
    assert not holds(model)


@pytest.mark.parametrize("number", [-1, -(10**30), 0.5, True, "60", None], ids=str)
def test_a_certificate_counts_people_in_whole_numbers(
    number: Any, certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    rounds = parsed(model)["rounds"]
    rounds[-1]["reported"] = number
    sealed(model, rounds=rounds)
    assert not holds(model)


def test_whatever_a_forger_makes_verification_meet_it_does_not_hold(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(*_: object) -> None:
        raise MemoryError("100 TiB")

    monkeypatch.setattr(verifying, "read_inputs", too_much)
    with pytest.raises(RunError, match="MemoryError: 100 TiB"):
        verify(certified)


@pytest.mark.parametrize(
    "more",
    [{"run": {"directory": "elsewhere"}}, {"privacy": {"budget_file": "b"}}],
    ids=str,
)
def test_settings_that_decide_nothing_are_not_certified(
    more: dict[str, Any], certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    settings = parsed(model)["settings"]
    for table, keys in more.items():
        settings[table] = {**settings.get(table, {}), **keys}
    sealed(model, settings=settings)
    with pytest.raises(RunError, match="decides nothing"):
        verify(model)


def test_an_experiment_has_no_certificate_and_no_file_that_holds_its_seed(tmp_path: Path) -> None:
    keys = [*SMALL, "recipe=dp-bias", "privacy.noise=seeded", "seed=918273645"]
    model = simulated(tmp_path, keys)
    assert not (model / FILE).exists()
    released = [*model.rglob("*"), model.parent / "serving.safetensors"]
    assert not [path for path in released if path.is_file() and b"918273645" in path.read_bytes()]
    with pytest.raises(RunError, match="holds no certificate"):
        verify(model)


def test_a_seeded_training_gets_no_certificate_by_changing_its_labels(
    certified: Path, tmp_path: Path
) -> None:
    model = copied(certified, tmp_path / "model")
    settings = parsed(model)["settings"]
    sealed(model, settings={**settings, "privacy": {**settings["privacy"], "noise": "seeded"}})
    with pytest.raises(RunError, match="experiment"):
        verify(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [["recipe=dp-bias"], ["recipe=default", "data.kind=clicks", "privacy.epsilon=300"]]
)
def test_a_released_folder_says_the_same_in_words_when_a_person_has_other_rows(
    keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for digests, and the mean of the noised counts: no number of rows, no exact metric."""
    rng = np.random.default_rng(3)
    rows = [
        (f"p{user:02d}", f"i{item}", 1 + (user * item) % 5)
        for user in range(60)
        for item in rng.choice(30, 8, replace=False)
    ]
    table, items = tmp_path / "rows.csv", tmp_path / "items.csv"
    items.write_text("item,title\n" + "".join(f"i{k},Title {k}\n" for k in range(30)))
    scenario = ["data.format=table", f"data.path={table}", f"data.features_path={items}"]
    scenario += ["data.rating_range=[1,5]", "compare.als=false", "compare.baselines=false"]
    scenario += ["run.examples=0", "privacy.noise=seeded", *keys]
    told = list[dict[str, object]]()
    for name, left_out in (("with", ""), ("without", "p07")):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state" / name))
        kept = [row for k, row in enumerate(rows) if row[0] != left_out or k % 2]
        lines = [",".join(map(str, row)) for row in [("user", "item", "rating"), *kept]]
        table.write_text("\n".join(lines) + "\n")
        model = simulated(tmp_path / name, scenario)
        files = {path.name: path for path in model.rglob("*") if path.is_file()}
        said = {
            name: json.loads(files[name].read_text()) for name in files if name.endswith("json")
        }
        said["manifest.json"].pop("sha256")
        said["serving.json"].pop("events")
        told.append({**said, "README.md": files["README.md"].read_text(), "all": sorted(files)})
    assert told[0] == told[1]


def test_a_verification_sums_with_one_blas_thread_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's NumPy has as many as the machine has cores, and bytes depend on their number."""
    seen = list[int]()

    def look(*_: object, **__: object) -> None:
        blas = [own for own in threadpool_info() if own["user_api"] == "blas"]
        seen.extend(own["num_threads"] for own in blas)

    monkeypatch.setattr(verifying, "_verified", look)
    (tmp_path / FILE).parent.mkdir(exist_ok=True)
    (tmp_path / FILE).touch()
    with threadpool_limits(limits=2, user_api="blas"):
        verify(tmp_path)
    assert {*seen} == {1}
