"""Parts of the demonstration without processes: who is invented, who is killed when, what is
printed, what is refused."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrec.cli.main import guarded
from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError, SettingsError
from fedrec.privacy.accounting import mu_for
from fedrec.settings import load
from fedrec_client.clicks import read_clicks
from fedrec_simulations.demo import shown
from fedrec_simulations.demo.deployment import run, strike
from fedrec_simulations.demo.evidence import Seen, tail
from fedrec_simulations.demo.trial import Trial
from tests.demo.conftest import SMALLEST


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(
        load(
            None, ["data.preset=small", "privacy.noise=seeded", "recipe=published", "model.steps=1"]
        ),
        tmp_path_factory.mktemp("trial"),
    )


def test_later_ratings_come_on_top_of_the_earlier_ones_and_test_ratings_never_reach_a_site(
    trial: Trial,
) -> None:
    pairs = [
        {(int(k), int(j)) for k, j in zip(events.users, events.items, strict=True)}
        for events in (
            trial.people.events(0),
            trial.people.events(1),
            trial.people.split.test.targets,
        )
    ]
    assert pairs[0] < pairs[1]
    assert not pairs[1] & pairs[2]
    assert 0.75 < len(pairs[0]) / len(pairs[1]) < 0.85  # 5,943 events: false alarm below 1e-9


def test_the_person_s_history_grows_between_the_questions_and_can_be_read(trial: Trial) -> None:
    first, second = (read_clicks(trial.history(training)) for training in (0, 1))
    assert {click.item for click in first.events} < {click.item for click in second.events}
    assert first.digest != second.digest


def test_the_limit_of_all_parties_is_that_of_two_trainings_together(trial: Trial) -> None:
    limit = trial.files(0).job.limit
    once = trial.alone(0).prepared.plan.guarantee
    assert mu_for(limit.epsilon, limit.delta) == pytest.approx(
        math.sqrt(2) * mu_for(once.epsilon, once.delta), rel=1e-6
    )


def test_every_party_is_killed_by_some_seed_and_always_in_a_round_that_there_is(
    trial: Trial,
) -> None:
    there = trial.deployment(Supervisor())
    rounds = [trial.alone(number).rounds for number in range(2)]
    strikes = [strike(seed, there, rounds) for seed in range(200)]
    assert {one.party for one in strikes} == set(there.parties)
    assert {(one.training, one.round) for one in strikes} == {
        (t, r) for t in range(2) for r in range(rounds[t])
    }
    assert strikes[:3] == [strike(seed, there, rounds) for seed in range(3)]


@pytest.mark.slow
def test_a_further_training_of_the_default_recipe_goes_on_from_the_first(tmp_path: Path) -> None:
    default = Trial(load(None, ["data.preset=small", "privacy.noise=seeded"]), tmp_path)
    first, second = (default.alone(number) for number in range(2))
    assert "people_observed" not in first.state
    assert "people_observed" in second.state
    assert second.rounds < first.rounds  # biases are not asked for again


def content(**more: Any) -> dict[str, Any]:
    items = [{"id": "1", "title": "[bold]Item 1"}]
    unit = "per user (add/remove, number of users public)"
    return {
        "answers": [
            {"version": "a" * 16, "guarantee": {"epsilon": 5}, "items": items},
            {"version": "a" * 16, "guarantee": None, "items": items},
        ],
        "spent": {
            "training": {"unit": unit, "epsilon": 5.2, "delta": 1e-5, "limit": 5.2, "trainings": 2},
            "serving": {
                "unit": "per click (replace)",
                "epsilon": 5.0,
                "delta": 1e-5,
                "limit": 20.0,
                "answers": 1,
            },
        },
        "trainings": [{"metrics": {"rmse": 0.81}}, {"metrics": {"rmse": 0.79}}],
        "killed": {"party": "server", "training": 1, "round": 4},
        "noise": "seeded",
        "aggregation": "trusted",
        "hostile_clients": "trusted-sites",
        "same_bytes": True,
        "folder": "",
        "holds": True,
        "verdict": "It held.",
        **more,
    }


@pytest.mark.parametrize("width", [60, 120])
def test_what_is_printed_names_units_and_reads_no_title_as_markup(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(shown.lists_table(content()))
    console.print(shown.parties_table([Seen("server", "sums", "models", 1_200, 50, "a report")]))
    console.print(shown.facts_table(content()))
    words = " ".join(out.getvalue().split())
    for said in (
        "[bold]Item 1",
        "answer 1, by model",
        "1.2 kB",
        "ε = 5.2 of 5.2 per user (add/remove",
        "ε = 5 of 20 per click (replace)",
        "experiment",
    ):
        assert said in words


def test_a_model_that_differs_is_said_and_without_seeded_noise_nothing_is_claimed() -> None:
    assert "DIFFERS" in shown.facts(content(same_bytes=False))["bytes"]
    assert "bytes" not in shown.facts(content(noise="system", same_bytes=None))


@pytest.mark.parametrize(
    ("hostile", "words"), [("trusted-sites", "not checked"), ("checked", "bounded by checks")]
)
def test_of_three_aggregators_it_is_said_what_two_could_read_and_what_is_not_counted(
    hostile: str, words: str
) -> None:
    told = shown.facts(content(aggregation="three-party", hostile_clients=hostile))["three-party"]
    assert "any two of them together can read every report" in told
    assert "not yet reviewed" in told
    assert words in told
    assert "three-party" not in shown.facts(content())
    table = shown.parties_table(
        [Seen("aggregator-1", "shares", "masked parts", 1_200, 50, "names")]
    )
    assert "tell each other is not counted" in str(table.caption)


def test_the_end_of_a_log_is_short_and_a_missing_log_is_said(tmp_path: Path) -> None:
    log = tmp_path / "process.log"
    assert tail(log) == ["(it wrote no log)"]
    line = {
        "time": "2026-01-01T10:11:12.000+00:00",
        "level": "error",
        "party": "server",
        "event": "server-failed",
        "code": "budget",
    }
    log.write_text("\n".join([*map(str, range(40)), json.dumps(line), "error: no room"]))
    assert tail(log, lines=3) == [
        "39",
        '10:11:12 error   server-failed {"code": "budget"}',
        "error: no room",
    ]


def test_a_folder_that_holds_something_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(SettingsError, match="there already"):
        run(tuple(SMALLEST), seed=0, keep=tmp_path, quiet=True)
    assert (tmp_path / "mine").read_text() == "kept"


def test_flags_of_a_deployment_need_one_and_news_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(["demo", "--keep", "somewhere"]) == 2
    assert guarded(["demo", "--seed", "1"]) == 2
    news = [
        "recipe=privaterec",
        "news.variant=additive",
        "data.format=planted-news",
        "data.preset=small",
        "data.keep_users=0",
        "privacy.unit=click",
    ]
    assert (
        guarded(["demo", "--deployment", *(word for key in news for word in ("--set", key))]) == 2
    )
    assert "ratings or clicks" in capsys.readouterr().err


@pytest.mark.processes
def test_a_failure_shows_which_party_failed_with_the_end_of_its_log_and_ends_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    companies = list[Supervisor]()

    class Failing(Supervisor):
        def start(self, name: str, verb: Any, *, log: Path, ends: bool = False) -> None:
            companies.append(self)
            super().start(
                name,
                ["aggregator", "--settings", str(tmp_path / "missing.toml")],
                log=log,
                ends=ends,
            )

    monkeypatch.setattr("fedrec_simulations.demo.deployment.Supervisor", Failing)
    with pytest.raises(RunError, match="the aggregator ended with exit code"):
        run(tuple(SMALLEST), seed=0, keep=tmp_path / "kept", quiet=False)
    said = capsys.readouterr().err
    assert "aggregator: the end of" in said
    assert "missing.toml" in said
    with pytest.raises(ProcessLookupError):
        os.kill(companies[0].pid("aggregator"), 0)


def test_the_demonstration_ends_with_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown.Screen(quiet=False).show(
        content(), [Seen("server", "sums", "models", 1_200, 50, "a report")]
    )
    assert capsys.readouterr().out.splitlines()[-1].startswith("next  fedrec certs ")
