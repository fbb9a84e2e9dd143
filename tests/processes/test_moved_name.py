"""Names of aggregator and server that move to another address in the middle of a training: who calls
them finds them there, without a restart. Needs root, for a table of hosts of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedrec.operations import parent_death
from fedrec.operations.certificates import write_development_certificates
from tests.processes.conftest import StageFiles

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # a name that moves

NAMED = ("aggregator", "server")


@dataclass(frozen=True)
class NamedFiles(StageFiles):
    """Parties that call aggregator and server by name, and listen at `at`."""

    at: dict[str, str] = field(kw_only=True)

    def prepare(self) -> None:
        write_development_certificates(
            self.root / "certificates",
            clients=[],
            aggregator_hosts=["aggregator.test"],
            server_hosts=["server.test"],
        )
        super().prepare()

    def write_aggregator(self, *, listen: str) -> None:
        super().write_aggregator(listen=self._here(listen, "aggregator"))

    def write_server(self, *, listen: str, aggregator: str) -> None:
        super().write_server(listen=self._here(listen, "server"), aggregator=aggregator)

    def _here(self, listen: str, party: str) -> str:
        return f"{self.at[party]}:{listen.rpartition(':')[2]}"

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        called = {
            key: {**table, "address": f"{key}.test:{table['address'].rpartition(':')[2]}"}
            for key in NAMED
            if isinstance(table := content.get(key), Mapping) and "address" in table
        }
        super()._write(name, {**content, **called})


def test_parties_whose_names_move_are_found_again_and_no_byte_changes(
    play: Any, stage: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    at = dict.fromkeys(NAMED, "127.0.0.1")
    plain = parent_death.command

    def tell() -> None:  # in place: whoever has mounted the file sees it
        lines = [f"{address} {party}.test" for party, address in at.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def command(program: Sequence[str], **how: Any) -> list[str]:
        here = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return ["/usr/bin/unshare", "-m", "sh", "-c", here, str(hosts), *plain(program, **how)]

    tell()
    try:
        trial = [*command([])[:6], "true"]
        subprocess.run(trial, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"processes cannot have a table of hosts of their own here: {failure}")
    monkeypatch.setattr(parent_death, "command", command)
    run = stage(files=lambda *what: NamedFiles(*what, at=at))
    run.start()
    run.until(run.is_planned, "plan")
    hanging = run.pid("client-2")
    os.kill(hanging, signal.SIGSTOP)  # from here on round 0 cannot end
    run.until(lambda: run.reporters(0) == {"client-1"}, "report of the client that does not hang")
    port = _port(run, "aggregator", "listen")
    _move(run, at, tell, "aggregator", "127.0.0.2", listen=port)
    os.kill(hanging, signal.SIGCONT)
    states = run.states()
    first = next(states)
    _move(
        run, at, tell, "server", "127.0.0.3", listen=_port(run, "server", "listen"), aggregator=port
    )
    assert [first, *states] == play.states
    assert [line["reported"] for line in run.rounds()] == [play.job.data.num_users] * 2
    run.company.stop()
    assert run.charges() == [name for line in run.rounds() for name in line["releases"]]


def _port(run: Any, party: str, key: str) -> str:
    """Where a party listens, by its settings."""
    lines = run.files.settings(party).read_text().splitlines()
    return str(next(line for line in lines if line.startswith(f"{key} = ")).split('"')[1])


def _move(
    run: Any, at: dict[str, str], tell: Callable[[], None], party: str, to: str, **where: str
) -> None:
    """To another address of this machine; nobody answers at the old one."""
    at[party] = to
    getattr(run.files, f"write_{party}")(**where)
    tell()
    run.kill(party)
