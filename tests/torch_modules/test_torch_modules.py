"""Modules of a person's own: five tests of a private mechanism, people alone, one module for all."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

import fedrec
from fedrec import preparing
from fedrec.data.interactions import Interactions
from fedrec.errors import FedRecError, GenericListWarning, SettingsError
from fedrec.factorization.released import load, save
from fedrec.federation.messages import Question
from fedrec.federation.reports import within_radius
from fedrec.news.messages import scenario_of
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.serving.bundle import Bundle, read
from fedrec.settings import validated
from fedrec.testing import RecipeContract
from fedrec.torch_modules import contract
from fedrec.torch_modules.contract import clicks_in_order, digest_of, found, register
from fedrec.torch_modules.gradient import STEP, client_steps
from fedrec.torch_modules.model import TorchModel
from fedrec_client.public_model import best
from tests.limits import limited
from tests.recommend.conftest import HISTORY, write_bundle
from tests.recommend.conftest import ITEMS as BUNDLED
from tests.torch_modules.outside_module import Mean

ROOT = Path(__file__).parents[2]
ITEMS = 40
NAME = register(Mean)
OWN = {"module": NAME, "rounds": 2, "clip": 0.3, "learning_rate": 0.1}


class TestTorch(RecipeContract):
    """Counts are released first; gradients stand below."""

    recipe = "torch"
    kind = "clicks"
    own = OWN

    def plain(self, data: Interactions) -> dict[str, np.ndarray]:
        weights = np.diff(data.user_ptr)[data.users] ** -0.5
        return {"counts": np.bincount(data.items, weights, data.num_items)[:, None]}


def people(n: int = 60, *, timed: bool = True) -> Interactions:
    """Clicks of n people, the first of whom has none and the second one."""
    rng = np.random.default_rng(3)
    sizes = np.array([0, 1, *rng.integers(2, 15, size=n - 2)])
    users = np.repeat(np.arange(n), sizes)
    items = np.concatenate([rng.choice(ITEMS, size, replace=False) for size in sizes])
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=n,
        num_items=ITEMS,
        value_range=(1.0, 1.0),
        kind="clicks",
        times=rng.integers(1000, size=len(items)) if timed else None,
    )


def asked(**own: Any) -> tuple[Prepared, Question]:
    """The recipe, and its question of the first gradient."""
    from fedrec.factorization.facts import PublicFacts

    scenario = validated({"recipe": "torch", "own": OWN | own}, source="test")
    made = prepare(scenario, PublicFacts(60, ITEMS, "clicks", (1.0, 1.0), None, Streams(1)))
    state = {**made.recipe.begin(), "round": np.array(1), "counts": np.arange(float(ITEMS))}
    question = made.recipe.ask(state)
    assert question is not None
    return made, question


def by_hand(question: Question, clicked: np.ndarray, clip: float) -> np.ndarray:
    """The clipped gradient of the mean of -log softmax, by its formula in NumPy: of scores it is
    softmax less one hot, of table rows what the product rule says."""
    table = np.asarray(question.public["numbers"], np.float64).ravel()[: ITEMS * 3].reshape(-1, 3)
    popular = np.asarray(question.public["popular"], np.float64)
    cut = max(1, 2 * len(clicked) // 3)
    u = table[clicked[:cut]].mean(0)
    slopes = special.softmax(table @ u + popular) - np.bincount(
        clicked[cut:], np.full(len(clicked) - cut, 1 / (len(clicked) - cut)), ITEMS
    )
    gradient = slopes[:, None] * u
    gradient[clicked[:cut]] += (table.T @ slopes) / cut
    flat = gradient.ravel()
    return flat / max(clip, float(np.linalg.norm(flat)))


@pytest.mark.parametrize("clip", [0.01, 0.3, 100.0])
def test_a_report_is_the_clipped_gradient_that_a_formula_gives(clip: float) -> None:
    made, question = asked(clip=clip)
    mine = people()
    reports = made.steps[STEP](question, mine)
    (block,) = reports.blocks
    (spec,) = question.blocks
    rows = block.coefficients[:, None] * block.vectors * spec.step
    for row, clicked in zip(rows, clicks_in_order(mine, 100), strict=True):
        if len(clicked) < 2:
            assert not row.any()
        else:
            wanted = by_hand(question, clicked, clip)
            # coefficient and vector are each cut to a grid; gradients are float32
            norm = float(np.linalg.norm(wanted))
            grids = spec.coefficient_step * np.abs(wanted) / norm + spec.vector_step * norm
            assert (np.abs(row - wanted) < 1.1 * grids + 1e-5 * norm).all()
    assert within_radius(reports, question.releases).all()


def test_people_are_alone() -> None:
    made, question = asked()
    mine = people()
    (together,) = made.steps[STEP](question, mine).blocks
    for users in (np.arange(60)[::-1], np.array([7]), np.array([7, 7, 0, 3])):
        (some,) = made.steps[STEP](question, mine.users_subset(users)).blocks
        assert (some.vectors == together.vectors[users]).all()
        assert (some.coefficients == together.coefficients[users]).all()


class Dropping(Mean):
    """Half of a person's vector is dropped, as networks are trained elsewhere."""

    def user(self, clicked: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().user(clicked, V), 0.5, self.training)


def test_a_report_is_not_drawn() -> None:
    made, question = asked(module=register(Dropping))
    (first, again) = (made.steps[STEP](question, people()).blocks[0] for _ in range(2))
    assert (first.vectors == again.vectors).all()
    assert first.coefficients.any()


@pytest.mark.parametrize("number", [0.0, 1e30, -1e38, 1e-38, 3.4e38])
def test_hostile_parameters_give_bounded_reports(number: float) -> None:
    made, question = asked()
    numbers = np.asarray(question.public["numbers"], np.float32)
    for hostile in (np.full_like(numbers, number), np.where(numbers > 0, numbers, number)):
        told = replace(question, public={**question.public, "numbers": hostile})
        reports = made.steps[STEP](told, people())
        assert within_radius(reports, question.releases).all()


def test_the_order_of_clicks_is_that_of_times_and_else_one_of_ids() -> None:
    mine = people(10)
    assert mine.times is not None
    for user, clicked in enumerate(clicks_in_order(mine, 5)):
        part = slice(mine.user_ptr[user], mine.user_ptr[user + 1])
        when = dict(zip(mine.items[part], mine.times[part], strict=True))
        told = [when[item] for item in clicked]
        assert told == sorted(told)
        assert len(clicked) == min(5, len(when))
        assert told == sorted(when.values())[len(when) - len(clicked) :]
    untimed = people(10, timed=False)
    alone = [next(clicks_in_order(untimed.users_subset(np.array([k])), 5)) for k in range(10)]
    assert all((a == b).all() for a, b in zip(alone, clicks_in_order(untimed, 5), strict=True))


def test_a_step_of_the_server_is_fedadam_on_the_mean_gradient() -> None:
    made, question = asked(clip=0.5, learning_rate=0.2)
    recipe = made.recipe
    state = {**recipe.begin(), "round": np.array(1)}
    before = np.asarray(state["numbers"]).copy()
    told = np.random.default_rng(0).standard_normal((1, len(before)))
    from fedrec.federation.messages import Release

    answer = Release({"gradient/1": told}, {"gradient/1": 0.0})
    after = recipe.tell(state, question, answer)
    m, v = 0.1 * -told[0] * 0.5 / 60, 0.01 * (told[0] * 0.5 / 60) ** 2
    rate = 0.2 * math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    assert np.allclose(after["numbers"], before + rate * m / (np.sqrt(v) + 1e-3), rtol=1e-12)


def test_another_source_or_an_unknown_module_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match="is another one here"):
        asked(digest="0" * 64)
    monkeypatch.setattr(contract, "_REGISTERED", {})
    with pytest.raises(SettingsError, match="there is no module"):
        found(NAME)
    with pytest.raises(SettingsError, match="there is no module"):
        found("os:system")  # nothing is imported because of a name
    assert len(digest_of(Mean)) == 64


def test_a_model_is_saved_loaded_and_verified(tmp_path: Path) -> None:
    data = fedrec.Dataset.planted("small", kind="clicks")
    train, test = data.split()
    model = fedrec.TorchRecommender(Mean, rounds=2, options={"width": 4}).fit(train)
    folder = model.save(tmp_path / "model")
    again = fedrec.load(folder)
    lists = [m.recommend(history=["3", "14"], k=9) for m in (model, again)]
    assert lists[0].equals(lists[1])
    arrays = {f"model.{name}": array for name, array in again.released.model.arrays().items()}
    clicked = [(again.released.rows[item], None) for item in ("3", "14")]
    rows, _ = best(bundle(tmp_path, arrays), NOBODY, clicked, k=9, categories=0)
    assert lists[0]["item"].to_list() == [again.released.item_ids[row] for row in rows]
    assert model.guarantee.unit == "user"
    assert fedrec.verify(folder).difference == 0.0  # made again from its releases
    with pytest.warns(GenericListWarning):  # everybody's list, by released counts
        nobody = model.recommend(history=[], k=5)["score"].to_list()
    assert nobody == sorted(model.released.model.popular.tolist(), reverse=True)[:5]
    assert fedrec.evaluate(model, test, controls=False).metrics["ndcg@10"] > 0


def bundle(folder: Path, arrays: dict[str, np.ndarray]) -> Bundle:
    """A bundle of clicks with these arrays of a model."""
    write_bundle(folder / "b.safetensors", about={"family": "clicks"}, **arrays)
    return read(folder / "b.safetensors")


SAID = {"name": NAME, "digest": digest_of(Mean), "options": {}, "most": 100}
NOBODY = np.full(HISTORY, -1, np.int32)
STRANGE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"name": "os:system"}, {}, "there is no module"),
    ({"digest": "0" * 64}, {}, "is another one here"),
    ({"options": {"width": 60_000}}, {}, "learn 7200000 numbers"),
    ({"options": [3]}, {}, "more or less than name"),
    ({"most": math.nan}, {}, "NaN is no number"),
    ({"most": 10**9}, {}, "about.most"),
    ({"code": "import os"}, {}, "more or less than name"),
    ({}, {"about": np.frombuffer(b"[" * 200_000, np.uint8)}, "nests too deep"),
    ({}, {"about": np.array([255], np.uint8)}, "decode byte"),
    ({}, {"numbers": np.full(BUNDLED * 3, np.nan, np.float32)}, "no number"),
    ({}, {"numbers": np.full(BUNDLED * 3, 3e38, np.float32)}, "returns no numbers"),
    ({}, {"numbers": np.zeros(7, np.float32)}, "and 7 numbers are here"),
    ({}, {"numbers": np.zeros((3, BUNDLED), np.float32)}, "do not fit each other"),
    ({}, {"popular": np.full(BUNDLED, np.inf, np.float32)}, "no number"),
    ({}, {"features": np.zeros((BUNDLED, 9), np.float32)}, "learn 387 numbers"),
    ({}, {"new.vectors": np.zeros((2, 4), np.float32)}, "no score for each"),
    ({}, {"new.vectors": np.zeros((2, 9), np.float32)}, "must match exactly"),
]


@pytest.mark.parametrize(("words", "arrays", "said"), STRANGE)
def test_a_bundle_with_another_module_s_or_a_strange_model_is_refused_in_words(
    words: dict[str, Any], arrays: dict[str, Any], said: str, tmp_path: Path
) -> None:
    whole = {
        "numbers": np.ones(BUNDLED * 3, np.float32),
        "features": np.zeros((BUNDLED, 0), np.float32),
        "popular": np.zeros(BUNDLED, np.float32),
        "about": np.frombuffer(json.dumps(SAID | words).encode(), np.uint8),
    }
    strange = {f"model.{name}": array for name, array in (whole | arrays).items()}
    with pytest.raises(FedRecError, match=said):
        best(bundle(tmp_path, strange), NOBODY, [(3, None), (8, None)], k=5, categories=0)


def test_a_file_that_the_environment_names_is_found_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, broken = tmp_path / "own_towers.py", tmp_path / "own_broken.py"
    own.write_text(Path(inspect.getfile(Mean)).read_text() + "\nfrom torch.nn import Linear\n")
    broken.write_text("raise OSError('no disk')")
    monkeypatch.setenv(contract.FILES, f"{broken}{os.pathsep}{own}")
    assert digest_of(found("own_towers:Mean")) == hashlib.sha256(own.read_bytes()).hexdigest()
    for name in ("own_towers:Linear", "own_towers:torch", "own_towers", "os:system", ""):
        with pytest.raises(SettingsError, match="there is no module"):
            found(name)
    with pytest.raises(SettingsError, match="cannot be run: OSError: no disk"):
        found("own_broken:Mean")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(own), raising=False)
    monkeypatch.setattr(Mean, "__module__", "__main__")
    assert register(Mean) == "own_towers:Mean"  # as the script's class is called elsewhere
    monkeypatch.undo()
    del sys.modules["own_towers"]


@pytest.mark.parametrize("answer", [torch.zeros(4), torch.zeros(1), torch.full((3,), torch.nan), 7])
def test_a_module_that_makes_something_else_of_a_history_is_told_so(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mean, "user", lambda *_: answer)
    numbers, features = np.zeros(ITEMS * 3, np.float32), np.zeros((ITEMS, 0), np.float32)
    model = TorchModel.of(SAID, numbers, features, np.zeros(ITEMS, np.float32))
    with pytest.raises(SettingsError, match=r"user\(\) of .* returns no numbers of shape \(3,\)"):
        model.user_vectors(people(3))


def test_without_noise_a_planted_taste_is_found() -> None:
    """People like even or odd items; popularity says nothing of it."""
    rng = np.random.default_rng(5)
    rows = [
        (f"u{k}", f"i{2 * item + k % 2:02d}", place)
        for k in range(120)
        for place, item in enumerate(rng.choice(20, 9, replace=False))
    ]
    import polars as pl

    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    data = fedrec.Dataset.from_frame(frame)
    settings = {"own.tau": 1e-6}
    model = fedrec.TorchRecommender(
        Mean, epsilon=math.inf, rounds=40, learning_rate=0.08, settings=settings
    ).fit(data)
    told = model.recommend(history=["i02", "i08", "i20"], k=10)["item"].to_list()
    assert sum(int(item[1:]) % 2 == 0 for item in told) >= 9


@pytest.mark.processes
def test_processes_train_the_bytes_of_one_process(tmp_path: Path) -> None:
    """Server, aggregator and sites find the module by an installed package's name; its code is not
    sent. A site with another source refuses."""
    package = tmp_path / "site"
    about = package / "outside-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedrec.torch_modules]\nmean = outside_module:Mean\n")
    (package / "outside_module.py").write_text(
        (Path(__file__).parent / "outside_module.py").read_text()
    )
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        'recipe = "torch"\n[data]\nformat = "planted"\npreset = "small"\nkind = "clicks"\n'
        '[privacy]\nnoise = "seeded"\n[own]\nmodule = "mean"\nrounds = 2\n'
    )
    digests = set()
    for runtime in ("loopback", "processes"):
        folder = tmp_path / runtime
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "fedrec.cli", "simulate", str(scenario), "--runtime", runtime],
            env={**os.environ, "PYTHONPATH": f"{package}:{ROOT}"},
            capture_output=True,
            text=True,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told = [json.loads(file.read_text()) for file in folder.rglob("model/manifest.json")]
        models = {manifest["sha256"] for manifest in told if manifest["kind"] == "torch"}
        assert len(models) == 1
        digests |= models
    assert len(digests) == 1


class Deep(nn.Module):
    """So many layers, or buffers, as an option says."""

    def __init__(self, items: int, features: torch.Tensor, layers: int = 1, kept: int = 1) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(items, 2))
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))
        self.register_buffer("kept", torch.zeros(kept, kept))

    def items(self) -> torch.Tensor:
        return self.table

    def user(self, clicked: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return V[clicked].mean(0)


HOSTILE: list[tuple[type[nn.Module], dict[str, Any], str]] = [
    (Mean, {"width": 10**9}, "no text or number"),
    (Mean, {"width": -(10**400)}, "no text or number"),
    (Mean, {"width": math.nan}, "no text or number"),
    (Mean, {"width": math.inf}, "no text or number"),
    (Mean, {"width": "x" * 70_000}, "no text or number"),
    (Mean, {"width": None}, "no text or number"),
    (Mean, {"width": [3]}, "no text or number"),
    (Mean, {"width": 4}, "learn 160 numbers"),
    (Mean, {"width": 60_000}, "learn 2400000 numbers"),
    (Mean, {"width": -1}, "cannot be made"),
    (Deep, {"layers": 10**9}, "no text or number"),
    (Deep, {"layers": 3_000}, "learn 18080 numbers"),
    (Deep, {"kept": 60_000}, "would have 144000003.. bytes"),
]


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """A gigabyte beyond what is there."""
    with limited(1 << 30):
        yield


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize(("module", "options", "said"), HOSTILE)
def test_options_of_a_server_or_of_a_file_take_no_memory_before_they_are_refused(
    module: type[nn.Module], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The device's step refuses a question whose numbers are those of other options, and loading a
    model whose file says others."""
    name = register(module)
    _, question = asked()
    steps = client_steps(name, digest_of(module), options, clip=1.0, most=100)
    with pytest.raises(SettingsError, match=said):
        steps[STEP](question, people())
    numbers, features = np.zeros(ITEMS * 3, np.float32), np.zeros((ITEMS, 0), np.float32)
    told = {"name": name, "digest": digest_of(module), "options": options, "most": 100}
    model = TorchModel.of(told, numbers, features, np.zeros(ITEMS, np.float32))
    save(tmp_path, model, about={})
    with pytest.raises(FedRecError, match=rf"{said}|lacks what a torch model needs"):
        load(tmp_path)


def test_a_module_that_learns_what_it_should_takes_no_more_memory_than_its_limit() -> None:
    with torch.device("meta"):
        large = nn.Linear(1_000, 1_000)
    contract._require_size("large", large, most=4_004_000, numbers=1_001_000)
    with pytest.raises(SettingsError, match="at most 4003999 bytes"):
        contract._require_size("large", large, most=4_003_999, numbers=1_001_000)


@pytest.mark.parametrize(
    "about", ["[" * 200_000, "7", "{}", '{"name": "x", "digest": 1}', "\x00", '{"most": NaN}']
)
@pytest.mark.parametrize("shape", [(ITEMS, 0), (ITEMS - 1, 0), (ITEMS,), (0, ITEMS)])
def test_a_file_of_another_form_is_refused(
    about: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    numbers, popular = np.zeros(ITEMS * 3, np.float32), np.zeros(ITEMS, np.float32)
    save(tmp_path, TorchModel(numbers, np.zeros(shape, np.float32), popular, about), about={})
    with pytest.raises(FedRecError):
        load(tmp_path)


def test_deep_words_of_a_server_are_refused() -> None:
    """Python reads JSON by recursion."""
    deep = '{"recipe": ' + "[" * 200_000
    with pytest.raises(SettingsError, match="is not a table"):
        preparing.client_steps(deep, "clicks")
    with pytest.raises(SettingsError, match="is none of news"):
        scenario_of(deep)


@pytest.mark.parametrize("module", [object(), lambda **_: None, "two-tower", None])
def test_what_is_no_class_is_refused_by_its_kind(module: Any) -> None:
    with pytest.raises(fedrec.SettingsError, match="is no class of a module"):
        fedrec.TorchRecommender(module).scenario()
