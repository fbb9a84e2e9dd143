"""Flower's own simulation engine carries the same rounds on Ray's actors, where Ray is installed,
and says so where it is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import PARTITION_ID_KEY
from flwr.serverapp import Grid, ServerApp

from fedrec import errors
from fedrec.cli import main
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue
from fedrec.errors import RunError, SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import LOOPBACK, Carried, Job, Runtime, RuntimeChoice
from fedrec.run.training import RoundRecord, Training
from fedrec.settings import Scenario, load
from fedrec.shipped import shipped
from fedrec_server import settings as server_settings
from fedrec_simulations.runtimes import processes, ray_engine
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.in_process import FIRST_NODE, RUN_ID, InProcessGrid, parties_of
from tests.simulations.carried import carried, reduced

CLIENTS = 3
on_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'fedrec[ray]'"
)


def scenario(*more: str) -> Scenario:
    return load(None, ["data.preset=small", "privacy.noise=seeded", *more])


def training(
    chosen: Scenario, folder: Path, runtime: Runtime[Job, Carried] | None = None
) -> Training:
    dataset = load_dataset(chosen)
    split = load_split(chosen, dataset)
    facts = public_facts(chosen.seed, dataset, split)
    carrier = runtime or ray_engine.ray(dataset.catalogue, clients=CLIENTS)
    return Training(chosen, facts, split.train, split.validation, folder, runtime=carrier)


def told(rounds: list[RoundRecord]) -> list[tuple[object, ...]]:
    return [
        (done.round, done.step, done.releases, done.bytes_down, done.validation) for done in rounds
    ]


def model(done: Training) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in done.result.model.arrays().items()}


def loopback(chosen: Scenario, folder: Path) -> tuple[dict[str, bytes], list[RoundRecord]]:
    one = training(chosen, folder, LOOPBACK.carrier(load_dataset(chosen).catalogue))
    rounds = list(one.run())
    return model(one), rounds


# --- everywhere ---


def test_without_ray_the_extra_is_named_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(errors, "_found", lambda module: module != "ray")
    with pytest.raises(
        SettingsError, match="--backend ray needs the package ray, which is not installed"
    ) as caught:
        RuntimeChoice("flower", 2, "ray")
    assert "fedrec[ray]" in caught.value.remedy
    words = [
        "simulate",
        "--runtime",
        "flower",
        "--backend",
        "ray",
        "--set",
        f"run.directory={tmp_path}",
    ]
    assert main.guarded(words) == 2
    assert "fedrec[ray]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runtime", ["loopback", "processes"])
def test_ray_plays_the_nodes_of_flower_and_nothing_else(runtime: str) -> None:
    with pytest.raises(SettingsError, match=f"--runtime {runtime}"):
        RuntimeChoice(runtime, 2, "ray")  # type: ignore[arg-type]


@pytest.mark.processes
def test_clients_that_are_opened_for_every_message_give_the_loopback_s_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of this runtime but Ray: an aggregator's process, TLS, and clients that keep nothing but
    their state folder."""
    monkeypatch.setattr(ray_engine, "play", played_here)
    chosen = scenario("recipe=published", "model.steps=1")
    over_flower = training(chosen, tmp_path / "flower", served_here(load_dataset(chosen).catalogue))
    rounds = list(over_flower.run())
    alone, same_rounds = loopback(chosen, tmp_path / "loopback")
    assert model(over_flower) == alone
    assert told(rounds) == told(same_rounds)
    assert all(done.bytes_up > 0 for done in rounds)


@pytest.mark.processes
def test_where_the_engine_gives_up_its_cause_is_told_and_the_rounds_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = list[Thread]()

    def gives_up(server: ServerApp, *_others: object, **_sizes: int) -> None:
        waiting.append(Thread(target=lambda: ended.append(_raised_by(server))))
        waiting[0].start()
        raise RunError("no room for an actor", "Free memory.")

    monkeypatch.setattr(ray_engine, "play", gives_up)
    chosen = scenario("recipe=published", "model.steps=1")
    ended = list[str]()
    with pytest.raises(RunError, match="no room for an actor"):
        next(training(chosen, tmp_path, served_here(load_dataset(chosen).catalogue)).run())
    waiting[0].join()
    assert ended == ["CancelledError"]


def _raised_by(server: ServerApp) -> str:
    try:
        server(InProcessGrid({}), Context(RUN_ID, 1, {}, RecordDict(), {}))
    except Exception as failure:
        return type(failure).__name__
    return ""


def served_here(catalogue: Catalogue) -> Runtime[Job, Carried]:
    """As `ray_engine.ray`, with the server in this process."""

    def carry(job: Job) -> Generator[Carried, None, None]:
        parties = parties_of(job, catalogue, CLIENTS)
        files = PartyFiles(job, parties.holdings)
        company = Supervisor()
        try:
            processes.start_aggregator_for(files, company)
            settings = server_settings.load(files.settings("server"))
            ray_engine.serve(
                job.scenario, settings, processes.settings_of_clients(files), job.folder
            )
            yield from parties.kept(files.state("server"))()
        finally:
            company.stop()

    return carry


def played_here(
    server: ServerApp, nodes: ClientApp, folder: Path, *, num_nodes: int, actors: int
) -> None:
    """As `ray_engine.play`, one after the other and in this process."""

    def node(number: int) -> Callable[[Message, Context], Message]:
        return lambda message, context: nodes(
            message, replace(context, node_config={PARTITION_ID_KEY: number})
        )

    grid: Grid = InProcessGrid({FIRST_NODE + number: node(number) for number in range(num_nodes)})
    server(grid, Context(RUN_ID, 1, {}, RecordDict(), {}))


# --- where Ray is installed ---


@on_ray
@pytest.mark.processes
def test_rounds_on_ray_s_actors_give_the_loopback_s_bytes_and_leave_no_process(
    tmp_path: Path,
) -> None:
    chosen = scenario()
    on_actors = training(chosen, tmp_path / "ray")
    rounds = list(on_actors.run())
    alone, same_rounds = loopback(chosen, tmp_path / "loopback")
    assert model(on_actors) == alone
    assert told(rounds) == told(same_rounds)
    assert running(tmp_path) == {}


@on_ray
@pytest.mark.processes
@pytest.mark.parametrize("party", ["aggregator", "server"])
def test_on_ray_a_killed_party_is_started_again_and_the_bytes_are_the_same(
    party: str, tmp_path: Path
) -> None:
    chosen = scenario("recipe=published", "model.steps=2")
    one = training(chosen, tmp_path / "ray")
    rounds = one.run()
    next(rounds)
    verb = {"aggregator": " aggregator ", "server": " engine "}[party]
    (pid,) = (pid for pid, line in running(tmp_path).items() if verb in line)
    os.kill(pid, signal.SIGKILL)
    assert [done.round for done in rounds] == [1, 2]
    assert model(one) == loopback(chosen, tmp_path / "loopback")[0]
    assert running(tmp_path) == {}


@on_ray
@pytest.mark.processes
def test_on_ray_a_stopped_training_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    chosen = scenario("recipe=published", "model.steps=2")
    begun = training(chosen, tmp_path / "ray").run()
    next(begun)
    begun.close()
    assert running(tmp_path) == {}
    resumed = training(chosen, tmp_path / "ray")
    assert [done.round for done in resumed.run()] == [1, 2]
    assert model(resumed) == loopback(chosen, tmp_path / "loopback")[0]


def running(folder: Path) -> dict[int, str]:
    """Processes whose command line names the folder, and those lines."""
    found = dict[int, str]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and int(entry.name) != os.getpid():
                found[int(entry.name)] = line
    return found


@on_ray
@pytest.mark.processes
@pytest.mark.parametrize(("variant", "unit"), [("additive", "click"), ("central", "user")])
def test_news_gives_the_same_model_and_result_on_rays_actors_as_alone(
    variant: str, unit: str, tmp_path: Path
) -> None:
    chosen, _ = reduced(
        shipped()["privaterec_planted"],
        f"news.variant={variant}",
        f"privacy.unit={unit}",
        "news.epochs=1",
    )
    alone = carried(chosen, LOOPBACK, tmp_path / "alone")
    on_actors = carried(chosen, RuntimeChoice("flower", 2, "ray"), tmp_path / "ray")
    assert (alone.why, on_actors.why) == ("", "")
    assert on_actors.same_as(alone)
