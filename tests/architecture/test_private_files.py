"""Whatever creates a file is listed here by its module: what holds raw rows, secrets, ledgers or
keys gives a mode that only its user can read, or writes into a folder that was made with one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest

from tests.architecture import graph

PACKAGES = [path for path in graph.PACKAGES if path.name != "fedrec_research"]
TREE = graph.sources(PACKAGES)
WRITERS = {"write_bytes", "write_json", "write_arrays", "write_files", "write_text"}
WRITERS |= {"write_parquet", "write_csv", "touch"}
MODES = ("PRIVATE", "384", "mode=mode", ", mode)")  # 384 is 0o600; "mode": of the function's caller
PRIVATE = (
    "fedrec.data.news_tables", "fedrec.data.partitions", "fedrec.ledgers.*",
    "fedrec.numerics.__init__", "fedrec.operations.certificates", "fedrec.operations.renewal",
    "fedrec.operations.certificate_requests",
    "fedrec.run.data.people", "fedrec_aggregator.ledger", "fedrec_client.device.*",
    "fedrec_client.forgetting",
    "fedrec_client.readers", "fedrec_client.store", "fedrec.cli.ledgers.*",
)  # fmt: skip
"""Modules all of whose files are private."""
NOT_THESE = {
    "frame.write_parquet(buffer": "into memory, which `Place.write` writes",
    "pl.DataFrame(columns).write_parquet(buffer": "into memory, which `Place.write` writes",
    "_fsspec().open(": "in an object store, which has its own rights",
    "sqlite3.connect(": "the file was made right before",
    ":memory:": "no file",
    "open(descriptor, 'wb')": "what was created with a mode",
    "write_json(path, {'number'": "a ledger's newest head: a number and a hash",
    "write_json(self.path, {'number'": "how far somebody else's ledger is known to reach",
    "write_bytes(there, restored": "how far somebody else's ledger is known to reach",
    "open(state / name, 'a')": "an empty lock",
}
IN_A_PRIVATE_FOLDER = {  # module that writes: module that makes the folder, and how
    "fedrec.data.recbole_export": ("fedrec.data.recbole_export", "mode=0o700"),
    "fedrec.data.partitioning": ("fedrec.data.partitioning", "private=True"),
    "fedrec.run.data.split_files": ("fedrec.run.data.split_files", "private=True"),
    "fedrec.run.run_folder": ("fedrec.run.run_folder", "private=True"),
    "fedrec.cli.supervisor": ("fedrec.cli.supervisor", "mode=0o700"),
    "fedrec.run.resume_right": ("fedrec.run.data.budget", "mode=0o700"),
    "fedrec_client.main": ("fedrec_client.main", "mode=0o700"),
    "fedrec_client.run_record": ("fedrec_client.main", "mode=0o700"),
    "fedrec_server.main": ("fedrec_server.main", "mode=0o700"),
    "fedrec_server.run_record": ("fedrec_server.run_record", "mode=0o700"),
}
PUBLIC = {
    "fedrec.storage": "what its callers give a mode",
    "fedrec.certificates.*": "released",
    "fedrec.factorization.*": "a released model",
    "fedrec.output_folders": "names of files",
    "fedrec.public_data": "public",
    "fedrec.serving.*": "a released model",
    "fedrec.encoders.*": "vectors of public texts",
    "fedrec.news.checkpoints": "releases and what follows from them, in the run's folder",
    "fedrec.operations.pins": "public keys",
    "fedrec.report.*": "what a person asked to be shown",
    "fedrec.run.*": "in the run's folder: settings, releases, what follows from them, metrics",
    "fedrec.api.*": "a released model; what a person asked to be shown",
    "fedrec.auditing.*": "planted people",
    "fedrec.cli.commands.training": "what a person asked to be shown",
    "fedrec.cli.recommend_demo": "settings of a demonstration",
    "fedrec.data.frames": "into memory, to be hashed",
    "fedrec.data.planted": "planted people",
    "fedrec.data.table_batches": "in a folder of the system's for temporary files, mode 0700",
    "fedrec_aggregator.main": "where it listens",
    "fedrec_client.bundle_cache": "released models",
    "fedrec_client.clicks": "into memory",
    "fedrec_client.held_arrays": "what the server told everybody",
    "fedrec_server.*": "releases and what follows from them; where it listens",
    "fedrec_simulations.*": "settings of parties, without a secret",
    "fedrec_app.*": "names of planted clients",
}


def _created(text: str) -> Iterator[str]:
    """Source of each call that may create a file."""
    for node in ast.walk(graph.parsed(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else (
                getattr(node.func, "id", "")
            )  # fmt: skip
            said = ast.unparse(node)
            written = [one for one in node.args if isinstance(one, ast.Constant)]
            opened = any(str(one.value)[:1] in ("w", "a", "x") for one in written)
            if (
                name in WRITERS
                or (name == "open" and ("O_CREAT" in said or opened))
                or said.startswith("sqlite3.connect")
            ):
                yield said


def _listed(module: str, among: object) -> bool:
    return any(fnmatch(module, pattern) for pattern in among)  # type: ignore[attr-defined]


def _loose(tree: graph.Sources) -> list[str]:
    """Calls that create a file of which this list says nothing, or a private one without a mode."""
    found = list[str]()
    for module, text in tree.items():
        for said in _created(text):
            if _listed(module, PRIVATE):
                other = any(part in said for part in NOT_THESE)
                if not other and not any(mode in said for mode in MODES):
                    found.append(f"{module}: {said} gives no mode")
            elif not _listed(module, IN_A_PRIVATE_FOLDER) and not _listed(module, PUBLIC):
                found.append(f"{module}: {said} is not listed")
    return found


def test_every_call_that_creates_a_private_file_gives_it_a_mode() -> None:
    assert _loose(TREE) == []


@pytest.mark.parametrize("module", IN_A_PRIVATE_FOLDER)
def test_what_is_written_without_a_mode_lies_in_a_folder_of_its_user_alone(module: str) -> None:
    maker, how = IN_A_PRIVATE_FOLDER[module]
    assert how in TREE[maker]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("fedrec_client.store", "write_bytes(path, b'rows')"),
        ("fedrec.ledgers.chain", "open(path, 'ab')"),
        ("fedrec.operations.renewal", "os.open(path, os.O_CREAT | os.O_WRONLY)"),
        ("fedrec.privacy.gaussian", "path.write_text('key')"),
    ],
)
def test_a_planted_call_without_a_mode_is_found(module: str, line: str) -> None:
    assert len(_loose({module: f"{TREE[module]}\n{line}\n"})) == 1


def test_every_name_of_the_list_is_still_there() -> None:
    for pattern in (*PRIVATE, *IN_A_PRIVATE_FOLDER, *PUBLIC):
        assert any(fnmatch(module, pattern) for module in TREE), pattern
