"""The same scenario carried by one process, by Flower in one process, and by real processes: the
same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError, SettingsError
from fedrec.factorization.facts import public_facts
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Name, RuntimeChoice
from fedrec.run.shards import shards
from fedrec.run.simulate import run
from fedrec.run.training import RoundRecord, Training
from fedrec.settings import Scenario, load
from fedrec_simulations.runtimes.deployment_files import toml
from tests.cases import slow_but
from tests.waiting import HANG_S, until

SHORT = ["recipe=published", "model.steps=1"]


def scenario(*more: str) -> Scenario:
    return load(None, ["data.preset=small", "privacy.noise=seeded", *more])


def training(chosen: Scenario, folder: Path, runtime: Name, clients: int = 3) -> Training:
    dataset = load_dataset(chosen)
    split = load_split(chosen, dataset)
    facts = public_facts(chosen.seed, dataset, split)
    carrier = RuntimeChoice(runtime, clients).carrier(dataset.catalogue)
    return Training(chosen, facts, split.train, split.validation, folder, runtime=carrier)


def model(done: Training) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in done.result.model.arrays().items()}


def trained(
    chosen: Scenario, folder: Path, runtime: Name
) -> tuple[dict[str, bytes], list[RoundRecord]]:
    one = training(chosen, folder, runtime)
    records = list(one.run())
    return model(one), records


@pytest.mark.parametrize(
    "more",
    slow_but(
        [["recipe=published"], ["data.kind=clicks"], ["data.features=false"]],
        [
            [],
            ["recipe=published"],
            ["data.kind=clicks"],
            ["recipe=published", "data.kind=clicks", "model.encoder=id"],
            ["recipe=published", "model.max_items_per_user=5"],
            ["recipe=published", "model.resamples=2", "model.example_share=0.5"],
            ["recipe=published", "privacy.accountant=am-ssp"],
            ["recipe=am-dpsgd", "model.steps=2"],
            ["privacy.epsilon=inf"],
            ["data.features=false"],
            ["split.kind=held-out-users"],
        ],
    ),
    ids=" ".join,
)
def test_flower_s_messages_and_real_parties_give_the_loopback_s_bytes(
    more: list[str], tmp_path: Path
) -> None:
    chosen = scenario(*more)
    alone, rounds = trained(chosen, tmp_path / "loopback", "loopback")
    over_flower, same_rounds = trained(chosen, tmp_path / "parties", "parties")
    assert over_flower == alone
    told = [
        (done.round, done.step, done.releases, done.bytes_down, done.validation) for done in rounds
    ]
    assert [
        (done.round, done.step, done.releases, done.bytes_down, done.validation)
        for done in same_rounds
    ] == told
    assert all(done.bytes_up > 0 for done in same_rounds)


@pytest.mark.parametrize("stop_after", slow_but([2], [1, 2, 3]))
def test_over_flower_a_stopped_training_goes_on_to_the_same_bytes(
    stop_after: int, tmp_path: Path
) -> None:
    chosen = scenario("recipe=published")
    begun = training(chosen, tmp_path / "stopped", "parties").run()
    for _ in range(stop_after):
        next(begun)
    begun.close()
    assert (
        trained(chosen, tmp_path / "stopped", "parties")[0]
        == trained(chosen, tmp_path / "loopback", "loopback")[0]
    )


def test_a_round_that_the_server_kept_and_nobody_was_told_of_is_told_after_a_restart(
    tmp_path: Path,
) -> None:
    chosen = scenario("recipe=published")
    expected, rounds = trained(chosen, tmp_path, "parties")
    for kept in sorted((tmp_path / "checkpoints").glob("round-*"))[1:]:
        kept.unlink()
    again, same_rounds = trained(chosen, tmp_path, "parties")
    assert again == expected
    assert [done.validation for done in same_rounds] == [done.validation for done in rounds[1:]]


def test_per_example_plans_are_for_loopback_alone(tmp_path: Path) -> None:
    chosen = scenario("recipe=published", "privacy.unit=example", "model.steps=1")
    for runtime in ("parties", "processes"):
        with pytest.raises(SettingsError, match="example"):
            next(training(chosen, tmp_path / runtime, runtime).run())


def test_clients_share_users_in_order_and_none_has_nobody() -> None:
    chosen = scenario()
    data = load_split(chosen, load_dataset(chosen)).train
    held = shards(data, 7)
    assert [shard.first_user for shard in held] == [
        0,
        *(shard.first_user + shard.events.num_users for shard in held[:-1]),
    ]
    assert sum(shard.events.num_users for shard in held) == data.num_users
    assert len({name for shard in held for name in shard.user_ids}) == data.num_users
    with pytest.raises(SettingsError, match="cannot share"):
        shards(data, data.num_users + 1)
    with pytest.raises(SettingsError, match="at least 1"):
        RuntimeChoice("parties", 0).carrier(load_dataset(chosen).catalogue)


@pytest.mark.slow
def test_a_result_names_its_runtime_and_keeps_its_own_folder(tmp_path: Path) -> None:
    chosen = scenario(*SHORT, "compare.als=false", "run.examples=2", f"run.directory={tmp_path}")
    alone = run(chosen, name="r", quiet=True)
    over_flower = run(chosen, name="r", choice=RuntimeChoice("parties", 3), quiet=True)
    assert alone["runtime"]["runtime"] == "loopback"
    assert over_flower["runtime"] == {"runtime": "parties", "clients": 3}
    assert alone["run_dir"] != over_flower["run_dir"]
    assert over_flower["metrics"] == alone["metrics"]
    released = [
        Path(result["run_dir"], "model", "model.safetensors").read_bytes()
        for result in (alone, over_flower)
    ]
    assert released[0] == released[1]


# --- real processes ---


@pytest.mark.processes
def test_real_processes_give_the_loopback_s_bytes(tmp_path: Path) -> None:
    chosen = scenario()
    apart, rounds = trained(chosen, tmp_path / "processes", "processes")
    alone, same_rounds = trained(chosen, tmp_path / "loopback", "loopback")
    assert apart == alone
    assert [done.validation for done in rounds] == [done.validation for done in same_rounds]
    kept = tmp_path / "processes" / "server" / "model" / "model.safetensors"
    assert kept.exists()
    assert running(tmp_path) == []


@pytest.mark.processes
def test_after_kill_9_of_the_parent_nobody_is_left_and_resuming_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    """Of AM-DPSGD: other steps on devices than the default's, which the test above has, and the
    published recipe's of `processes/`."""
    keys = [
        "data.preset=small",
        "privacy.noise=seeded",
        "recipe=am-dpsgd",
        "model.steps=2",
        f"run.directory={tmp_path}",
    ]
    script = (
        "from fedrec.settings import load; from fedrec.run.simulate import run; "
        "from fedrec.run.job import RuntimeChoice; "
        f"run(load(None, {keys!r}), name='r', choice=RuntimeChoice('processes', 2), quiet=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: list(tmp_path.rglob("checkpoints/round-001.safetensors")))
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not running(tmp_path))
    chosen = load(None, keys)
    resumed = run(chosen, name="r", choice=RuntimeChoice("processes", 2), resume=True, quiet=True)
    alone = run(chosen, name="r", quiet=True)
    released = [
        Path(result["run_dir"], "model", "model.safetensors").read_bytes()
        for result in (resumed, alone)
    ]
    assert released[0] == released[1]


@pytest.mark.processes
def test_a_party_that_gives_up_ends_the_run_with_its_own_words_and_its_log(tmp_path: Path) -> None:
    company = Supervisor()
    try:
        company.start(
            "server",
            ["server", "--settings", str(tmp_path / "none.toml"), "--scenario", "none.toml"],
            log=tmp_path / "process.log",
        )
        with pytest.raises(
            RunError, match=r"the server ended with exit code 2: .*none\.toml"
        ) as caught:
            company.wait_for(lambda: None, what="server that listens", timeout_s=HANG_S)
    finally:
        company.stop()
    assert str(tmp_path / "process.log") in caught.value.remedy


@pytest.mark.processes
def test_a_party_that_is_killed_over_and_over_ends_the_run(tmp_path: Path) -> None:
    company = Supervisor(most_starts=2)
    try:
        company.start("party", ["simulate", "--help"], log=tmp_path / "process.log")
        for _ in range(2):
            os.kill(company.pid("party"), signal.SIGKILL)
            os.waitid(os.P_PID, company.pid("party"), os.WEXITED | os.WNOWAIT)
            if _ == 0:
                company.look()
        with pytest.raises(RunError, match="was ended by SIGKILL"):
            company.look()
    finally:
        company.stop()


def test_settings_survive_toml(tmp_path: Path) -> None:
    content = {
        "a": 'quo"te\n\x7f',
        "n": [1.5, float("inf")],
        "yes": True,
        "none": None,
        "t": {"odd key": 1, "u": {"v": [{"w": "x"}]}},
    }
    assert tomllib.loads(toml(content)) == {
        key: value for key, value in content.items() if key != "none"
    }


def running(folder: Path) -> list[tuple[int, str]]:
    """Processes whose command line names the folder, and those lines."""
    found = list[tuple[int, str]]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words and int(entry.name) != os.getpid():
                found.append((int(entry.name), words))
    return found
