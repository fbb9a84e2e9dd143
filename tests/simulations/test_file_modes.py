"""Files that hold private data, and the folders of runs and parties, are their user's alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedrec.api.datasets import Dataset
from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Interactions
from fedrec.operations import logs
from fedrec.privacy.guarantee import Guarantee
from fedrec.run.data.split_files import write_split
from fedrec.run.job import RuntimeChoice
from fedrec.run.simulate import run
from fedrec.settings import load
from fedrec_client.ledger import ClientLedger
from fedrec_client.store import write_shard
from fedrec_server.run_record import only_one


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual one, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_of_real_parties_keeps_reports_and_ledgers_for_its_user_alone(tmp_path: Path) -> None:
    keys = ["data.preset=small", "recipe=dp-bias", "compare.als=false", "compare.baselines=false"]
    chosen = load(None, [*keys, "evaluation.ranking=false", f"run.directory={tmp_path}"])
    run(chosen, name="one", choice=RuntimeChoice("parties", 2), quiet=True)
    (folder,) = tmp_path.glob("one-*")
    private = [*folder.rglob("*.frr"), *folder.rglob("ledger.sqlite")]
    assert {path.suffix for path in private} == {".frr", ".sqlite"}
    assert {mode(path) for path in private} == {0o600}
    assert mode(folder) == 0o700


def test_a_shard_is_its_users_alone(tmp_path: Path) -> None:
    events = Interactions(
        np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32), 1, (1.0, 5.0)
    )
    write_shard(tmp_path / "one.safetensors", events, ("item",), ("user",))
    assert mode(tmp_path / "one.safetensors") == 0o600


def log_of_a_party(folder: Path) -> None:
    log = logs.configure("client", file=folder / "party.log")
    logs.close(log)


def log_of_a_child(folder: Path) -> None:
    company = Supervisor()
    company.start("one", ["--version"], log=folder / "process.log", ends=True)
    company.stop()


def lock_of_a_server(folder: Path) -> None:
    with only_one(folder):
        pass


def ledger_of_a_client(folder: Path) -> None:
    ClientLedger(folder / "ledger.sqlite", limit=Guarantee(1.0, 1e-5)).close()


def split_of_a_data_set(folder: Path) -> None:
    write_split(load(None, ["data.preset=small"]), folder)


def table_for_recbole(folder: Path) -> None:
    Dataset.planted("small").to_recbole(folder.parent, name=folder.name)


@pytest.mark.parametrize(
    "begin",
    [
        split_of_a_data_set,
        table_for_recbole,
        log_of_a_party,
        log_of_a_child,
        lock_of_a_server,
        ledger_of_a_client,
    ],
)
def test_a_state_folder_is_its_users_alone_whatever_begins_it(
    begin: Callable[[Path], None], tmp_path: Path
) -> None:
    begin(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700
