"""The plain wheel: training, evaluating, recommending and every verb of one machine need no package
of an extra; the others name theirs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedrec import errors
from fedrec.errors import SettingsError
from tests.release import extras

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NETWORK = (
    "flwr grpc grpc_health grpc_reflection google fastapi starlette uvicorn httptools uvloop "
    "httpx2 prometheus_client"
)
BLOCKER = """
import sys

class Blocked:
    blocked = set(%r.split())

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Blocked())
"""
OPTIONAL = "torch opacus implicit faiss ray pandas"
BASE = BLOCKER % f"{NETWORK} {OPTIONAL}"
LIBRARY = """
import fedrec

data = fedrec.Dataset.planted("small")
train, test = data.split("random", seed=1)
model = fedrec.MatrixFactorization(epsilon=5, delta=1e-5).fit(train)
assert fedrec.evaluate(model, test, controls=False).frame.height
model.save("model")
assert fedrec.load("model").recommend(history={"3": 5, "14": 4.5}, k=5).height == 5
model.export("serving.safetensors")
try:
    model.serve(port=0, background=True)
except fedrec.FedRecError as failure:
    assert "pip install 'fedrec[serve]'" in failure.remedy, failure.remedy
else:
    raise AssertionError
"""
OTHER_SYSTEM = """
import os, signal
for name in ("SIGHUP", "SIGKILL", "SIGSTOP"):
    delattr(signal, name)
for name in ("geteuid", "getuid", "fork", "sched_getaffinity", "statvfs", "sysconf", "O_DIRECTORY"):
    delattr(os, name)
"""
"""As far as a library sees of Windows; macOS lacks uvloop's and Linux's calls alone."""
VERBS = f"""
import gc, json, os, tempfile, traceback
gc.disable()
import fedrec.run.simulate  # most of what verbs import, once for all of them
from fedrec.cli.main import guarded

for line in sys.stdin:
    words, folder = json.loads(line)
    with tempfile.TemporaryFile() as said:
        if not (child := os.fork()):
            os.chdir(folder)
            os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
            try:
                code = exec(words[1]) or 0 if words[0] == "python" else guarded(words)
                assert not any(
                    name.partition(".")[0] in set({NETWORK!r}.split()) for name in sys.modules
                ), "imported"
            except BaseException:
                traceback.print_exc()
                code = 99
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        print(json.dumps([code, said.read().decode()]), flush=True)
"""
Verb = Callable[[list[str], Path], tuple[int, str]]
ONE_MACHINE = """
fedrec.run.account fedrec.auditing.command fedrec.run.data.describing fedrec.run.simulate
fedrec.run.job fedrec.serving.exporting fedrec.cli.disclosure.overview
fedrec.testing
"""
SERVING = "fedrec_server.serving.main fedrec.cli.recommend fedrec.cli.recommend_demo"
PARTIES = """
fedrec_aggregator.main fedrec_client.main fedrec_client.participant fedrec_server.main
fedrec_server.rounds fedrec_server.serving.main fedrec_server.serving.http_api fedrec_server.serving.grpc_api
fedrec.cli.doctor.preflight fedrec_simulations.runtimes.processes fedrec.cli.recommend
fedrec.cli.recommend_demo fedrec.cli.status.overview fedrec_simulations.demo.deployment
"""


@pytest.fixture(scope="module")
def verb() -> Iterator[Verb]:
    """Runs words of the command line, or a program after `python`, in a folder, in a fork of one
    process without extras: exit code, what was said."""
    program = [sys.executable, "-W", "ignore", "-c", BASE + VERBS]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forking:
        assert forking.stdin
        assert forking.stdout

        def ran(words: list[str], folder: Path) -> tuple[int, str]:
            print(json.dumps([words, str(folder)]), file=forking.stdin, flush=True)
            code, said = json.loads(forking.stdout.readline())  # type: ignore[union-attr]
            return code, said

        yield ran


@pytest.mark.parametrize(
    "program",
    ["\n".join(f"import {module}" for module in ONE_MACHINE.split()), LIBRARY],
    ids=["every module is imported", "trains, evaluates, saves and recommends"],
)
def test_one_machine_needs_no_optional_package(program: str, tmp_path: Path, verb: Verb) -> None:
    code, said = verb(["python", program], tmp_path)
    assert code == 0, said[-2_000:]


def test_the_library_works_where_modules_and_calls_of_posix_are_missing(tmp_path: Path) -> None:
    missing = BLOCKER % f"{NETWORK} {OPTIONAL} fcntl resource pwd grp termios uvloop"
    # last: other packages know Windows by it
    ends = """
import types
msvcrt = sys.modules["msvcrt"] = types.ModuleType("msvcrt")
msvcrt.LK_LOCK, msvcrt.LK_NBLCK, locked = 1, 2, []
msvcrt.locking = lambda file, how, size: locked.append(how)
import fedrec.run.simulate
from fedrec.ledgers.file_lock import FileLock
from pathlib import Path
with FileLock(Path("one.lock"), "in use", "Wait."):
    pass
assert locked
"""
    program = missing + OTHER_SYSTEM + LIBRARY + ends
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3_000:]


def test_serving_needs_no_more_than_serve_and_parties_of_ratings_and_clicks_than_deploy() -> None:
    """Flwr is of the extra `flower`: nobody else imports it."""
    imports = "\n".join(f"import {module}" for module in (SERVING + PARTIES).split())
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-c"),
            f"{BLOCKER % f'{OPTIONAL} flwr'}{imports}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]


SMALL = "--set data.preset=small"


@pytest.mark.parametrize(
    "line",
    [f"simulate {SMALL}", "data formats", "scenarios", f"account {SMALL}", "certs keys", "--help"],
)
def test_a_verb_of_one_machine_runs_without_an_extra(line: str, tmp_path: Path, verb: Verb) -> None:
    code, said = verb(line.split(), tmp_path)
    assert code == 0, said[-2_000:]


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("serve model", "serve"),
        ("recommend --demo", "serve"),
        ("aggregator --settings aggregator.toml", "deploy"),
        ("client --settings client.toml", "deploy"),
        ("status client.toml", "deploy"),
        ("doctor --client client.toml", "deploy"),
        ("demo --deployment", "deploy"),
        ("simulate --runtime parties", "deploy"),
        ("simulate --runtime processes", "deploy"),
        (
            (
                "simulate --set recipe=privaterec --set data.format=planted-news --set "
                "privacy.unit=click"
            ),
            "news",
        ),
    ],
)
def test_what_needs_an_extra_names_the_command_that_installs_it_and_leaves_nothing(
    line: str, extra: str, tmp_path: Path, verb: Verb
) -> None:
    code, said = verb(line.split(), tmp_path)
    assert code == 2, said[-2_000:]
    cause, remedy = said.splitlines()
    assert "which is not installed" in cause
    assert remedy == f"remedy: Install it: pip install 'fedrec[{extra}]'."
    assert list(tmp_path.iterdir()) == []


def test_every_extra_that_an_error_names_exists_and_installs_the_module() -> None:
    distributions = {
        "google.protobuf": "protobuf",
        "grpc": "grpcio",
        "grpc_health": "grpcio-health-checking",
        "grpc_reflection": "grpcio-reflection",
        "faiss": "faiss-cpu",
    }
    for extra, modules in errors.EXTRAS.items():
        text = " ".join(PROJECT["optional-dependencies"][extra])
        for module in modules:
            name = distributions.get(module, module.replace("_", "-").replace(".", "-"))
            assert name in text or (module == "ray" and "flwr[simulation]" in text), (extra, module)


def test_every_extra_has_tests_that_exist() -> None:
    assert set(extras.TESTS) == set(extras.names())
    assert all((ROOT / name).exists() for names in extras.TESTS.values() for name in names)


def test_the_base_asks_for_no_package_of_the_network() -> None:
    base = " ".join(PROJECT["dependencies"])
    assert not [
        name
        for name in (
            "flwr",
            "grpcio",
            "protobuf",
            "fastapi",
            "uvicorn",
            "httpx2",
            "torch",
        )
        if name in base
    ]


def test_a_missing_package_is_named_from_python() -> None:
    errors.require("serve", "model.serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "_found", lambda module: module != "grpc_health")
        with pytest.raises(
            SettingsError, match="the aggregator needs the package grpc_health"
        ) as caught:
            errors.require("deploy", "the aggregator")
    assert caught.value.remedy == "Install it: pip install 'fedrec[deploy]'."
