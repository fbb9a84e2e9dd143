"""A PostgreSQL of the tests' own, in a folder of their own, reached by a socket; skipped where the
machine has none."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: Debian's, or that of the first on the path."""
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if found := shutil.which("initdb"):
        places.append(Path(found).resolve().parent)
    return next((place for place in places if (place / "pg_ctl").exists()), None)


@contextmanager
def running() -> Iterator[str]:
    """The connection string of a new server, which ends with the block."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    if (place := programs()) is None:
        pytest.skip("no PostgreSQL on this machine")
    # PostgreSQL refuses to run as root; a socket's path has at most 107 bytes
    user = "nobody" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if user:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            subprocess.run(
                [place / program, *arguments],
                user=user,
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        data = str(folder / "data")
        run("initdb", "-D", data, "-U", "fedrec", "-A", "trust", "--no-sync", "-E", "UTF8")
        # nothing here must outlive the machine; processes that are killed lose nothing by it
        options = f"-F -k {folder} -c listen_addresses= -c shared_buffers=8MB"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user=fedrec dbname=postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def schema_of_its_own(server: str, name: str) -> str:
    """The connection string of a new, empty ledger on that server."""
    with importlib.import_module("psycopg").connect(server, autocommit=True) as database:
        database.execute(f'CREATE SCHEMA "{name}"')
    return f"{server} options=-csearch_path={name}"
