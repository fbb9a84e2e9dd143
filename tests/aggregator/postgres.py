"""A PostgreSQL of the tests' own, in a folder of their own, reached by a socket; skipped where the
machine has none."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: Debian's, or that of the first on the path."""
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if found := shutil.which("initdb"):
        places.append(Path(found).resolve().parent)
    return next((place for place in places if (place / "pg_ctl").exists()), None)


@dataclass(frozen=True)
class Postgres:
    """One server in a folder of its own; it ends with what it is."""

    place: Path
    folder: Path
    user: str | None

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.place / program, *arguments],
            user=self.user,
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self) -> None:
        # nothing here must outlive the machine; processes that are killed lose nothing by it
        options = f"-F -k {self.folder} -c listen_addresses= -c shared_buffers=8MB"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", self.data, "-w", "-l", log, "-o", options, "start")

    def kill(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def promote(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-w", "promote")

    @property
    def conninfo(self) -> str:
        return f"host={self.folder} user=fedrec dbname=postgres"


@contextmanager
def _prepared() -> Iterator[Postgres]:
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    if (place := programs()) is None:
        pytest.skip("no PostgreSQL on this machine")
    made = _in_a_folder(place)
    try:
        yield made
    finally:
        if (made.folder / "data" / "postmaster.pid").exists():
            made.kill()
        shutil.rmtree(made.folder)


def _in_a_folder(place: Path) -> Postgres:
    # PostgreSQL refuses to run as root; a socket's path has at most 107 bytes
    user = "nobody" if os.getuid() == 0 else None
    where = "/dev/shm" if tempfile.gettempdir() == "/dev/shm" else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=where))
    if user:
        shutil.chown(folder, user)
    return Postgres(place, folder, user)


@cache
def _new_cluster(place: Path) -> str:
    """The data of a server that nobody has started: made once, copied by each."""
    made = _in_a_folder(place)
    atexit.register(shutil.rmtree, made.folder, ignore_errors=True)
    made.run("initdb", "-D", made.data, "-U", "fedrec", "-A", "trust", "--no-sync", "-E", "UTF8")
    made.folder.chmod(0o755)
    return made.data


@contextmanager
def running() -> Iterator[str]:
    """The connection string of a new server, which ends with the block."""
    with started() as primary:
        yield primary.conninfo


@contextmanager
def started() -> Iterator[Postgres]:
    with _prepared() as primary:
        subprocess.run(
            ["cp", "-r", "--preserve=mode", _new_cluster(primary.place), primary.data],
            user=primary.user,
            check=True,
        )
        primary.start()
        yield primary


@contextmanager
def replicated() -> Iterator[tuple[Postgres, Postgres]]:
    """A server, and a standby that follows it by streaming replication."""
    with started() as primary, _prepared() as standby:
        source = f"{primary.conninfo} application_name=standby"
        standby.run("pg_basebackup", "-D", standby.data, "-d", source, "-R", "-c", "fast")
        standby.start()
        yield primary, standby


def schema_of_its_own(server: str, name: str) -> str:
    """The connection string of a new, empty ledger on that server."""
    with importlib.import_module("psycopg").connect(server, autocommit=True) as database:
        database.execute(f'CREATE SCHEMA "{name}"')
    return f"{server} options=-csearch_path={name}"
