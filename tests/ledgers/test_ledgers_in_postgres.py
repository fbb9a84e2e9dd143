"""What an operator's verbs say of a ledger in a real PostgreSQL: the same as of one in files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.errors import FedRecError
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.postgres_ledger import PostgresLedger
from tests.aggregator import postgres
from tests.aggregator.conftest import World

EVERYBODY = list(range(12))
FILES = "files.toml"
DATABASE = "database.toml"
_NAMES = count()


@dataclass(frozen=True)
class Twins:
    """Two aggregators with the same round released: one keeps files, one a database."""

    folder: Path
    conninfo: str

    def said(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words])
        if isinstance(failure := done.exception, FedRecError):
            assert failure.exit_code == code, failure
            return f"{failure.cause} {failure.remedy}"
        assert done.exit_code == code, done.output
        return done.output

    def told(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.said(*words, "--json", code=code).strip().splitlines()[-1])

    def change(self, statement: str) -> None:
        psycopg = importlib.import_module("psycopg")
        with psycopg.connect(self.conninfo, autocommit=True) as database:
            database.execute(statement)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.running() as conninfo:
        yield conninfo


@pytest.fixture
def twins(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twins:
    monkeypatch.chdir(tmp_path)
    conninfo = postgres.schema_of_its_own(server, f"verbs_{next(_NAMES)}")

    def in_database(folder: Path, **choices: Any) -> ReleaseLedger:
        return PostgresLedger(folder, conninfo, **({"lease_s": 600.0} | choices))

    for name, table, kept_in in (
        (FILES, "", ReleaseLedger),
        (DATABASE, f'[postgres]\nconninfo = "{conninfo}"\n', in_database),
    ):
        state = name.removesuffix(".toml")
        (tmp_path / name).write_text(
            f'listen = "127.0.0.1:0"\nstate = "{state}"\ninsecure = true\n'
            f"[privacy]\nmax_epsilon = 50.0\n{table}"
        )
        world = World(tmp_path / state, kept_in=kept_in)
        world.enroll()
        world.open()
        world.send(EVERYBODY)
        world.aggregator.close(world.run, 0)
        world.stop()
    return Twins(tmp_path, conninfo)


def test_show_doctor_and_status_say_the_same_of_a_ledger_in_a_database(twins: Twins) -> None:
    shown = {name: twins.told("ledger", "show", name)["ledgers"][0] for name in (FILES, DATABASE)}
    assert shown[DATABASE]["path"] == "PostgreSQL"
    assert shown[DATABASE]["entries"] == 4
    same = ("entries", "spent", "rounds", "users", "jumps")
    kept = [{key: found[key] for key in same} for found in shown.values()]
    assert kept[0] == kept[1]

    examined = [
        next(
            check["words"]
            for check in twins.told("doctor", "--aggregator", name)["checks"]
            if check["name"] == "ledger"
        )
        for name in (FILES, DATABASE)
    ]
    assert examined[0] == examined[1]
    assert "4 entries, unbroken" in examined[0]

    parties = [
        twins.told("status", "--own", name, code=7)["parties"][0] for name in (FILES, DATABASE)
    ]
    for key in ("round", "users", "epsilon_left"):
        assert parties[0][key] == parties[1][key], key
    assert parties[0]["users"] == len(EVERYBODY)


def test_verify_finds_a_changed_entry_and_a_changed_release_in_a_database(twins: Twins) -> None:
    whole = twins.told("ledger", "verify", DATABASE)
    assert [finding["wrong"] for finding in whole["findings"]] == [""] * len(whole["findings"])
    assert len(whole["findings"]) == len(twins.told("ledger", "verify", FILES)["findings"])

    twins.change("UPDATE releases SET content = content || '\\x00'::bytea")
    other = twins.told("ledger", "verify", DATABASE, code=6)
    assert ["run-1/round-000" in finding["wrong"] for finding in other["findings"]].count(True) == 1

    twins.change("UPDATE entries SET content = replace(content, '\"round\"', '\"Round\"')")
    twins.said("ledger", "verify", DATABASE, code=6)
    broken = "does not follow from those before it"
    assert broken in twins.said("ledger", "show", DATABASE, code=6)
    assert broken in json.dumps(twins.told("doctor", "--aggregator", DATABASE, code=6))


def test_what_the_database_does_itself_is_refused_with_the_reason(twins: Twins) -> None:
    said = twins.said("backup", DATABASE, "--output", "backup.tar", code=2)
    assert "pg_basebackup" in said
    assert not (twins.folder / "backup.tar").exists()
    (twins.folder / DATABASE).write_text(
        (twins.folder / DATABASE).read_text().replace("host=", "host=/nowhere")
    )
    twins.said("ledger", "show", DATABASE, code=6)
    twins.told("doctor", "--aggregator", DATABASE, code=6)
