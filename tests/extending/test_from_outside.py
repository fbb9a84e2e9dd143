"""What a package outside fedrec can add, each by one module and one line of metadata
(docs/extend.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.data.read import detect, read
from fedrec.errors import PrivacyError
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import same_for_everyone
from fedrec.federation.block_kinds import COMPILED, kind_named
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Invitation
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import RealBlock, block, bounded, exact_sums, within_radius
from fedrec.federation.wire import pack_invitation, read_invitation
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import load
from fedrec.sharing.layout import layout
from fedrec.testing import RecipeContract

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("installed")


class TestRecipe(RecipeContract):
    recipe = "counted"
    kind = "clicks"

    def plain(self, data: Interactions) -> dict[str, np.ndarray]:
        counts = np.zeros((data.num_items, 1))
        for user in range(data.num_users):
            mine = data.items[data.user_ptr[user] : data.user_ptr[user + 1]]
            for item in mine:
                counts[item] += len(mine) ** -0.5
        return {"counts": counts}


def test_a_data_format_is_recognised_and_read(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    rows = [{"user": f"u{k % 3}", "item": f"i{k}", "stars": 1.0 + k % 5} for k in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(file)
    assert detect(file) == "json-lines"
    assert (
        found.interactions.num_users,
        found.interactions.num_items,
        len(found.interactions),
    ) == (3, 9, 9)


def test_a_metric_stands_in_every_result() -> None:
    data = planted(replace(SHAPES["small"], kind="clicks"), seed=1).interactions
    first = np.zeros(len(data), np.bool_)
    first[data.user_ptr[:-1][np.diff(data.user_ptr) > 0]] = True
    counts = np.bincount(data.items, minlength=data.num_items)
    found = evaluate_ranking(
        same_for_everyone(counts),
        history=data.select(~first),
        targets=data.select(first),
        train_counts=counts,
        cutoffs=(1, 5),
    )
    told = found.at[1].as_dict()
    assert told["first_is_hit"] == pytest.approx(told["hit_rate"])
    assert told["first_is_hit_stderr"] == pytest.approx(told["hit_rate_stderr"])


def asked(rows: int) -> Question:
    return Question(
        0, "x", {}, (ReleaseSpec("squares", (block("squares", "squares", rows=rows, width=3),)),)
    )


@pytest.mark.parametrize("rows", [1, 4])
def test_a_kind_of_release_is_summed_bounded_noised_and_sent(rows: int) -> None:
    rng = np.random.default_rng(1)
    question = asked(rows)
    ptr = np.array([0, 2, 3, 5])
    items = np.array([0, 3, 1, 0, 2], np.int32)
    c = rng.uniform(0.5, 1, 3 if rows == 1 else 5)
    X = rng.normal(size=(3, 3))
    reports = bounded(ptr, items, [RealBlock(c, X)], question.releases)
    assert within_radius(reports, question.releases).all()
    found = exact_sums(reports, question.blocks)[0]
    expected, (part,) = np.zeros((rows, 3), np.int64), reports.blocks
    for user in range(3):
        places = (
            [(user, 0)]
            if rows == 1
            else [(e, int(items[e])) for e in range(ptr[user], ptr[user + 1])]
        )
        for event, row in places:
            expected[row] += (
                int(part.coefficients[event]) * part.vectors[user].astype(np.int64) ** 2
            )
    assert np.array_equal(found, expected)
    plan = calibrate(Guarantee(5.0, 1e-5), {"squares": 1.0})
    wide = asked(20_000)
    answer, ledger = release(
        wide, [np.zeros((20_000, 3), np.int64)], plan, Ledger(plan.guarantee), noise=Streams(1)
    )
    # 7 standard errors
    assert np.std(answer.values["squares"]) == pytest.approx(
        noise_stds(wide, plan)["squares"], rel=0.03
    )
    assert ledger.epsilon == pytest.approx(5.0, rel=1e-3)
    invitation = Invitation("run", plan, question)
    assert read_invitation(*pack_invitation(invitation), {}).question == question


def test_a_kind_of_release_whose_rows_are_longer_than_its_norm_says_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than its vector"):
        kind_named("too-long")


def test_three_aggregators_refuse_a_kind_that_they_cannot_sum() -> None:
    assert "squares" not in COMPILED
    with pytest.raises(PrivacyError, match="kind 'squares'"):
        layout(asked(4))


def test_a_news_variant_is_priced_by_itself() -> None:
    from fedrec.run.account import describe

    keys = [
        "recipe=privaterec",
        "news.variant=additive",
        "privacy.unit=click",
        "data.format=planted-news",
        "privacy.epsilon=5",
    ]
    told = describe(load(None, [*keys, "news.variant=twice"]))
    attention = told["releases"][0]
    assert (attention["name"], attention["times"]) == ("attention", 2)
    assert max(told["training"].values()) == pytest.approx(5.0, rel=1e-6)
    assert describe(load(None, [*keys, "news.variant=local"]))["releases"][0]["times"] == 1


def test_a_verb_of_the_command_line_is_found(installed: tuple[Path, Path]) -> None:
    path = os.pathsep.join([*map(str, installed), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fedrec.cli", "greet", "Ada"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "hello Ada\n"


@pytest.mark.slow
def test_a_verb_that_cannot_be_loaded_is_named_in_one_line_and_all_others_go_on(
    installed: tuple[Path, Path],
) -> None:
    modules, metadata = installed
    points = metadata / "outside-1.0.dist-info" / "entry_points.txt"
    broken = "missing = no_such_module:app\nnothing = outside_data:first_is_hit\n"
    points.write_text(points.read_text() + broken)
    path = os.pathsep.join([str(modules), str(metadata), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "fedrec.cli", "greet", "Ada"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "hello Ada\n"
    missing, nothing = done.stderr.splitlines()
    assert "'missing' of outside are left out (ModuleNotFoundError: No module" in missing
    assert "'nothing' of outside are left out" in nothing
    assert missing.endswith("Upgrade or uninstall that package.")
