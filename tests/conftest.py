"""Settings of every test: hypothesis draws the same examples each time, real data is found or
skipped with a reason, files lie in memory.

What the threat tables of docs/privacy.md name gets the marker `threat`, and `make test` runs it
whatever other marker it has.
"""

import atexit
import gc
import hashlib
import importlib
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

# two workers share two cores, and threads that wait for each other spin; before anything imports
# numpy or torch
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests import packages, rooms

MEMORY = Path("/dev/shm")
if (
    "TMPDIR" not in os.environ
    and MEMORY.is_dir()
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > 4 * 2**30
):
    # ledgers wait for the disk at every charge: a third of the time of what holds one
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None
# budgets of data sets must not end in the developer's own
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="fedrec-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# imports and collection make a million objects and no garbage: see pytest_collection_finish
gc.disable()

# a thread that serves HTTP looks this often whether it is told to end: by default each half second,
# which most tests of metrics and of fetching would wait for
socketserver.BaseServer.serve_forever.__defaults__ = (0.01,)


def _remembering(ask: Any) -> Any:
    once = cache(lambda path, words, named: ask(*words, **dict(named)))
    return lambda *words, **named: once((*sys.path,), words, (*named.items(),))


# what all installed packages say of themselves is read at each question, and every reading of data,
# every model and every measure asks
metadata.entry_points = _remembering(metadata.entry_points)  # type: ignore[assignment]
metadata.version = _remembering(metadata.version)  # type: ignore[assignment]

PAUSES = {
    "fedrec.transport.channel": "_PAUSE_S",
    "fedrec.transport.server_tls": "LOOK_S",
    "fedrec_aggregator.main": "LOOK_S",
    "fedrec_client.serving_link": "_PAUSE_S",
    "fedrec_server.main": "LOOK_S",
    "fedrec_server.serving.fetching": "_LOOK_S",
}
"""Pauses between two looks at what changes or at who answers, of parties in this process: a second
in which nothing is computed, in every test that changes a file or is turned away."""

PEOPLE = 200
"""Synthetic users of a bundle, in place of 2,000: half of what a small training takes."""
OF_ALL_PEOPLE = {"golden", "serving"}
"""Rooms that look at what bundles recommend, or at their bytes."""

BEGIN_UNTIL_S = float(os.environ.get("FEDREC_BEGIN_UNTIL", "inf"))
"""Since the epoch: no test begins later. For a check that has so much time: what it leaves out is
counted as skipped."""

settings.register_profile("fedrec", deadline=None, derandomize=True)
settings.load_profile("fedrec")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(rooms)
    config.pluginmanager.register(packages)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Where a whole tree is collected by several workers, each imports its share of the files
    first: what pytest makes of a file is kept beside it, and in a fresh clone every worker would
    make all of it, half of what collecting takes. Errors are told where the file is collected."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    many = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    whole = all(Path(name).is_dir() for name in session.config.args)
    if worker and whole and not sys.dont_write_bytecode:
        root = session.config.rootpath
        files = sorted(
            {file for name in session.config.args for file in Path(name).rglob("test_*.py")}
        )
        for file in files[int(worker.removeprefix("gw")) :: many]:
            steps = file.resolve().relative_to(root).with_suffix("").parts
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(steps))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > BEGIN_UNTIL_S:
        pytest.skip("the time of the check was over")
    if basis := sys.modules.get("fedrec.serving.factorization_basis"):
        made = basis.SyntheticSettings
        users = made.users if rooms.room_of(item.nodeid) in OF_ALL_PEOPLE else PEOPLE
        made.__init__.__defaults__ = (users, *made.__init__.__defaults__[1:])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays: a million objects that no collection of garbage need look at again."""
    gc.enable()
    gc.freeze()
    for name, pause in PAUSES.items():
        if module := sys.modules.get(name):
            assert hasattr(module, pause), name
            setattr(module, pause, 0.02)
    if models := sys.modules.get("fedrec.news.models"):
        models.start_basis = _remembered(models.start_basis)  # type: ignore[attr-defined]


def _remembered(start_basis: Any) -> Any:
    """`start_basis` of the same fresh model, catalogue and draws computes once: most of what a
    device or a server of news does before its first answer."""
    done = dict[bytes, dict[str, Any]]()

    def remembered(model: Any, vectors: Any, *, rng: Any) -> None:
        numbers = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        asked = hashlib.sha256(repr([*numbers, vectors.shape, rng.bit_generator.state]).encode())
        for array in (vectors, *(tensor.detach().numpy() for tensor in numbers.values())):
            asked.update(array.tobytes())
        if asked.digest() not in done:
            start_basis(model, vectors, rng=rng)
            done[asked.digest()] = {
                name: tensor.detach().clone()
                for name, tensor in (*model.named_parameters(), *model.named_buffers())
            }
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.detach().copy_(done[asked.digest()][name])

    return remembered


THREATS = Path(__file__).parents[1] / "docs" / "privacy.md"
LONGEST = (
    "tests/test_architecture.py",
    "tests/simulations/test_flower_app.py",
    "tests/simulations/test_demos.py",
    "tests/simulation/test_s",
    "tests/processes/",
)
"""Files that take longest and are one worker's each begin first: at the end, all others would wait
for that worker."""
COMMAND = "fedrec.cli"
PARTIES = {"aggregator", "client", "server"}
_started = list[str]()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named = set(re.findall(r"tests/[\w/]+\.py::\w+", THREATS.read_text()))
    for item in items:
        if item.nodeid.partition("[")[0] in named:
            item.add_marker("threat")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def _watched(begin: Any) -> Any:
    def started(process: Any, args: Any, *rest: Any, **named: Any) -> None:
        words = [str(word) for word in args] if isinstance(args, (list, tuple)) else []
        flower = any(Path(word).name == "flower-superlink" for word in words)
        verb = words[words.index(COMMAND) + 1 :][:1] if COMMAND in words else []
        if flower or PARTIES & set(verb):
            _started.append(" ".join(words))
        begin(process, args, *rest, **named)

    return started


subprocess.Popen.__init__ = _watched(subprocess.Popen.__init__)  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that starts a party says so: `make test` leaves it out."""
    try:
        yield
    finally:
        begun = list(_started)
        _started.clear()
    if begun and item.get_closest_marker("processes") is None:
        pytest.fail(f"starts parties, and lacks the marker `processes`: {begun[0]}", pytrace=False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, which are never part of the project."""
    folder = os.environ.get("FEDREC_DATA", "")
    if not folder:
        pytest.skip(
            "real data: set FEDREC_DATA to a folder with ml-1m, ml-100k, implicit and mind-sample"
        )
    return Path(folder)
