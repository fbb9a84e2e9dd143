"""Backups: consistent while a party runs, whole or absent; peers refuse an old one, and go on with
the newest."""

import hashlib
import io
import json
import math
import os
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedrec.cli.ledgers import backup as taking
from fedrec.cli.ledgers.backup import backup
from fedrec.cli.ledgers.restoring import contents, restore
from fedrec.cli.main import app
from fedrec.errors import RefusedError, RunError, SettingsError
from fedrec.federation.protocol import LedgerHead, OwnLedger, follow
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import write_json
from fedrec_aggregator.chain import read
from fedrec_client.ledger import ClientLedger, read_entries
from fedrec_server.watching import SeenLedger
from tests.aggregator.conftest import World
from tests.ledgers.crash import crash_in_a_write

EVERYBODY = list(range(12))
LIMIT = Guarantee(50.0, 1e-5)
PLAN = calibrate(Guarantee(1.0, 1e-5), {f"x/{t}": 1.0 for t in range(200)})


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A folder with settings of one party each; their state folders are beside them."""
    (tmp_path / "ratings.csv").write_text("user,item,rating\nfirst,a,5\n")
    files = {
        "aggregator": (
            'listen = "127.0.0.1:1"\nstate = "a"\ninsecure = true\n[privacy]\nmax_epsilon = 50.0\n'
        ),
        "server": (
            'state = "s"\nseen_ledger = "seen.json"\npublic = { path = "p" }\nlink = { '
            "insecure = true }\n"
        ),
        "client": 'name = "client-0"\nstate = "c"\ndata = { path = "ratings.csv", rating_range = [1, 5] '
        "}\n[privacy]\nmax_epsilon = 50.0\n"
        '[aggregator]\naddress = "127.0.0.1:1"\ninsecure = true\n[server]\naddress = '
        '"127.0.0.1:2"\ninsecure = true\n',
        "serving": 'http = "127.0.0.1:3"\n',
    }
    for name, content in files.items():
        (tmp_path / f"{name}.toml").write_text(content)
    return tmp_path


def round_of(world: World, round: int) -> None:
    world.open(round)
    world.send(EVERYBODY, round)
    assert world.aggregator.close(world.run, round).phase == "released"


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        attempt()
    return caught.value.code


def test_an_older_backup_of_the_aggregator_is_refused_by_its_peers_and_the_newest_goes_on(
    settings: Path,
) -> None:
    """Taken while it runs and has a round open; restored to the byte."""
    world = World(settings / "a")
    client = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    server = SeenLedger(settings / "seen.json")
    peers = [
        lambda: follow(
            lambda since: world.aggregator.client_endpoint("client-0").growth(since, OwnLedger()),
            client,
        )
    ]
    peers.append(lambda: follow(world.aggregator.growth, server))
    world.enroll()
    archives = [settings / "backups" / f"{number}.tar" for number in range(2)]
    for round, archive in enumerate(archives):
        round_of(world, round)
        world.open(round + 1)
        backup(settings / "aggregator.toml", archive)
        for peer in peers:
            peer()
    released = [world.aggregator.release(world.run, round) for round in range(2)]
    assert contents(archives[0]).entries < contents(archives[1]).entries
    world.stop()
    for archive, old in zip(archives, (True, False), strict=True):
        shutil.rmtree(settings / "a")
        restore(settings / "aggregator.toml", archive)
        world.start()
        if old:
            assert [refused(peer) for peer in peers] == ["stale-ledger"] * 2
            found = CliRunner().invoke(
                app,
                [
                    "ledger",
                    "verify",
                    *(str(settings / f"{name}.toml") for name in ("aggregator", "server")),
                ],
            )
            assert (found.exit_code, "FAILS  server" in found.output) == (7, True)
            world.stop()
    for peer in peers:
        peer()
    assert [world.aggregator.release(world.run, round) for round in range(2)] == released
    round_of(world, 2)
    world.stop()
    client.close()
    names = ("aggregator", "server", "client")
    found = CliRunner().invoke(
        app, ["ledger", "verify", *(str(settings / f"{name}.toml") for name in names)]
    )
    assert (found.exit_code, "FAILS" in found.output) == (0, False)


def test_an_older_backup_of_a_client_is_refused_by_the_aggregator_and_the_newest_goes_on(
    settings: Path,
) -> None:
    world = World(settings / "a")
    path = settings / "c" / "ledger.sqlite"
    secrets = set[bytes]()
    for round in range(2):
        ledger = ClientLedger(path, limit=LIMIT)
        secrets.add(ledger.secret)
        ledger.charge("run", round, f"{round}", PLAN, [f"x/{round}"])
        backup(settings / "client.toml", settings / f"{round}.tar")  # it runs
        world.aggregator.client_endpoint("client-0").growth(LedgerHead(), ledger.told)
        ledger.close()
    assert len(secrets) == 1
    for round, charged in ((0, 1), (1, 2)):
        shutil.rmtree(settings / "c")
        assert restore(settings / "client.toml", settings / f"{round}.tar").entries == charged
        ledger = ClientLedger(path, limit=LIMIT)
        assert ledger.secret in secrets
        if round == 0:
            told = [ledger.told]
            ledger.charge("other", 0, "other", PLAN, ["x/0"])  # as long as it was, and another one
            for own in (*told, ledger.told):
                grow = partial(world.aggregator.client_endpoint("client-0").growth, LedgerHead())
                assert refused(partial(grow, own)) == "stale-ledger"
        else:
            world.aggregator.client_endpoint("client-0").growth(LedgerHead(), ledger.told)
            assert ledger.charge("run", 2, "2", PLAN, ["x/2"])
        ledger.close()
    world.stop()


@pytest.mark.slow
def test_a_backup_that_is_taken_while_a_ledger_is_written_is_one_of_its_states(
    settings: Path,
) -> None:
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ended = threading.Event()

    def write() -> None:
        for round in range(60):
            ledger.charge("run", round, f"{round}", PLAN, [f"x/{round}"])
        ended.set()

    ledger.charge("before", 0, "0", PLAN, ["x/0"])
    writer = threading.Thread(target=write)
    writer.start()
    taken = list[int]()
    while not ended.is_set() or not taken:
        backup(settings / "client.toml", settings / "one.tar")
        found = contents(settings / "one.tar")
        elsewhere = settings / f"restored-{len(taken)}"
        text = (
            (settings / "client.toml")
            .read_text()
            .replace('state = "c"', f'state = "{elsewhere.name}"')
        )
        (settings / "other.toml").write_text(text)
        restore(settings / "other.toml", settings / "one.tar")
        assert len(read_entries(elsewhere / "ledger.sqlite")) == found.entries
        ClientLedger(elsewhere / "ledger.sqlite", limit=LIMIT).close()  # its head file agrees
        taken.append(found.entries)
    writer.join()
    ledger.close()
    assert taken == sorted(taken)


@pytest.mark.parametrize("fails", ["first file", "last file", "sync"])
def test_a_disk_that_fills_up_leaves_the_older_backup_and_no_half_one(
    settings: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    world = World(settings / "a")
    world.enroll()
    round_of(world, 0)
    archive = settings / "backups" / "a.tar"
    backup(settings / "aggregator.toml", archive)
    before = archive.read_bytes()
    full = OSError(28, "No space left on device")
    added = list[str]()

    def add(tar: tarfile.TarFile, member: tarfile.TarInfo, file: Any = None) -> None:
        added.append(member.name)
        if fails == "first file" or (fails == "last file" and member.name == "manifest.json"):
            raise full
        real(tar, member, file)

    real = tarfile.TarFile.addfile
    monkeypatch.setattr(tarfile.TarFile, "addfile", add)
    if fails == "sync":
        monkeypatch.setattr(taking.os, "fsync", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(RunError, match="No space left"):
        backup(settings / "aggregator.toml", archive)
    monkeypatch.undo()
    assert added
    assert archive.read_bytes() == before
    assert [path.name for path in archive.parent.iterdir()] == ["a.tar"]
    world.stop()


def test_a_state_that_a_crash_left_in_the_middle_of_a_write_is_backed_up_as_it_was_before(
    settings: Path,
) -> None:
    """SQLite's journal is there, pages of a transaction that never ended are in the file, and a
    file was not moved to its place."""
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ledger.charge("run", 0, "0", PLAN, ["x/0"])
    ledger.close()
    (settings / "c" / ".rounds.json.1.part").write_text("half")
    crash_in_a_write(settings / "c" / "ledger.sqlite")
    backup(settings / "client.toml", settings / "c.tar")
    found = contents(settings / "c.tar")
    assert found.entries == 1
    assert not any("part" in name or "journal" in name for name in found.files)


def test_a_damaged_ledger_is_not_backed_up_over_a_good_one(settings: Path) -> None:
    world = World(settings / "a")
    world.enroll()
    round_of(world, 0)
    backup(settings / "aggregator.toml", settings / "a.tar")
    good = (settings / "a.tar").read_bytes()
    world.stop()
    with sqlite3.connect(settings / "a" / "ledger.sqlite") as database:
        database.execute("DELETE FROM entries WHERE seq = 1")
    database.close()
    with pytest.raises(RunError, match="damaged"):
        backup(settings / "aggregator.toml", settings / "a.tar")
    assert (settings / "a.tar").read_bytes() == good


def test_a_clients_damaged_ledger_is_not_backed_up(settings: Path) -> None:
    path = settings / "c" / "ledger.sqlite"
    ledger = ClientLedger(path, limit=LIMIT)
    for round in range(2):
        ledger.charge("run", round, f"{round}", PLAN, [f"x/{round}"])
    ledger.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entries SET releases = '[]' WHERE number = 1")
    database.close()
    with pytest.raises(RunError, match="damaged"):
        backup(settings / "client.toml", settings / "c.tar")
    assert not (settings / "c.tar").exists()


def archived(path: Path, names: dict[str, bytes], *, link: str = "") -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo("files/link")
            member.type = tarfile.SYMTYPE
            member.linkname = link
            tar.addfile(member)
    return path


@pytest.mark.parametrize(
    "name", ["files/../../evil", "/files/evil", "evil", "files", "files/a/../../../evil"]
)
def test_an_archive_that_leads_out_of_the_folder_is_refused_before_anything_is_written(
    settings: Path, name: str
) -> None:
    inside = name.removeprefix("files/")
    told = taking.Backup(
        "client", "client-0", "1", 0.0, 1, "ab", {inside: hashlib.sha256(b"1").hexdigest()}, {}
    )
    manifest = json.dumps({"format": taking.FORMAT, **asdict(told)}).encode()
    with pytest.raises(RunError):
        restore(
            settings / "client.toml",
            archived(settings / "x.tar", {name: b"1", "manifest.json": manifest}),
        )
    assert not (settings / "c").exists()
    assert not (settings / "evil").exists()
    with pytest.raises(RunError, match="leads out"):
        contents(archived(settings / "y.tar", {}, link="../../etc"))


def test_an_archive_that_was_cut_off_changed_or_is_anothers_is_refused(settings: Path) -> None:
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ledger.charge("run", 0, "0", PLAN, ["x/0"])
    ledger.close()
    archive = settings / "c.tar"
    backup(settings / "client.toml", archive)
    content = archive.read_bytes()
    assert archive.stat().st_mode & 0o777 == 0o600
    for wrong in (
        content[: len(content) // 2],
        content[:-10_240],
        content.replace(b"SQLite format 3", b"SQLite format 4"),
        b"",
        b"x" * 9_999,
    ):
        archive.write_bytes(wrong)
        with pytest.raises(RunError):
            contents(archive)
    archive.write_bytes(content)
    with pytest.raises(RunError, match="is of client client-0"):
        restore(settings / "aggregator.toml", archive)
    (settings / "client.toml").write_text(
        (settings / "client.toml").read_text().replace("client-0", "client-1")
    )
    with pytest.raises(RunError, match="is of client client-0"):
        restore(settings / "client.toml", archive)
    with pytest.raises(SettingsError, match="serving"):
        backup(settings / "serving.toml", archive)


def test_nothing_is_overwritten_and_a_newer_ledger_is_said_to_be_newer(settings: Path) -> None:
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ledger.charge("run", 0, "0", PLAN, ["x/0"])
    backup(settings / "client.toml", settings / "c.tar")
    with pytest.raises(RunError, match="at work"):
        restore(settings / "client.toml", settings / "c.tar")
    ledger.charge("run", 1, "1", PLAN, ["x/1"])
    ledger.close()
    before = (settings / "c" / "ledger.sqlite").read_bytes()
    with pytest.raises(RunError, match="2 entries, that of the backup 1, so it is newer"):
        restore(settings / "client.toml", settings / "c.tar")
    assert (settings / "c" / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("moved", range(4))
def test_a_restore_that_is_cut_off_is_gone_on_from_by_nobody(
    settings: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    world = World(settings / "a")
    world.enroll()
    round_of(world, 0)
    ledger = ClientLedger(settings / "c" / "ledger.sqlite", limit=LIMIT)
    ledger.charge("run", 0, "0", PLAN, ["x/0"])
    (settings / "c" / "terms").mkdir()
    (settings / "c" / "terms" / "run.json").write_text("{}")
    for name in ("aggregator", "client"):
        backup(settings / f"{name}.toml", settings / f"{name}.tar")
    world.stop()
    ledger.close()
    for name, folder in (("aggregator", "a"), ("client", "c")):
        shutil.rmtree(settings / folder)
        done = list[str]()
        real = os.replace

        def replace(source: Path, target: Path) -> None:
            if target.parent == settings / folder:  # noqa: B023
                if len(done) == moved:  # noqa: B023
                    raise KeyboardInterrupt
                done.append(target.name)  # noqa: B023
            real(source, target)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr("fedrec.cli.ledgers.restoring.os.replace", replace)
            try:
                restore(settings / f"{name}.toml", settings / f"{name}.tar")
            except KeyboardInterrupt:
                if moved:
                    with pytest.raises(RunError, match="not empty"):
                        restore(settings / f"{name}.toml", settings / f"{name}.tar")
                    with pytest.raises(RunError):
                        World(settings / "a") if name == "aggregator" else ClientLedger(
                            settings / "c" / "ledger.sqlite", limit=LIMIT
                        )
                    shutil.rmtree(settings / folder)
        if not (settings / folder / "ledger.sqlite").exists():
            restore(settings / f"{name}.toml", settings / f"{name}.tar")
        assert not list((settings / folder).glob(".restoring-*"))


def test_a_server_s_backup_has_its_trainings_and_never_takes_back_what_it_saw_of_the_aggregator(
    settings: Path,
) -> None:
    state = settings / "s"
    (state / "runs" / "one" / "model").mkdir(parents=True)
    (state / "runs" / "one" / "model" / "manifest.json").write_text("{}")
    (state / "flower").mkdir()
    for name in (
        "runs.json",
        "server.json",
        "superlink.log",
        "flower/superlink.sqlite",
        "runs/one/rounds.jsonl",
        "log.jsonl",
        "log.jsonl.1",
    ):
        (state / name).write_text("{}")
    os.symlink("runs/one/model", state / "model")
    write_json(settings / "seen.json", {"number": 5, "head": "ab"})
    backup(settings / "server.toml", settings / "s.tar")
    found = contents(settings / "s.tar")
    assert set(found.files) == {
        "runs.json",
        "runs/one/rounds.jsonl",
        "runs/one/model/manifest.json",
        "aggregator-ledger.json",
    }
    assert (found.links, found.entries, found.head) == ({"model": "runs/one/model"}, 5, "ab")
    shutil.rmtree(state)
    for newer, expected in ((7, 7), (3, 5)):
        write_json(settings / "seen.json", {"number": newer, "head": "cd"})
        shutil.rmtree(state, ignore_errors=True)
        restore(settings / "server.toml", settings / "s.tar")
        assert SeenLedger(settings / "seen.json").ledger_head().number == expected
    assert (state / "model" / "manifest.json").exists()
    assert not (state / "aggregator-ledger.json").exists()


def test_a_restored_ledger_is_the_same_chain(settings: Path) -> None:
    world = World(settings / "a")
    world.enroll()
    round_of(world, 0)
    head = world.aggregator.ledger.head()
    said = CliRunner().invoke(
        app, ["backup", str(settings / "aggregator.toml"), "--output", str(settings / "a.tar")]
    )
    assert head in said.output
    world.stop()
    shutil.rmtree(settings / "a")
    put = CliRunner().invoke(
        app,
        [
            "restore",
            str(settings / "aggregator.toml"),
            "--input",
            str(settings / "a.tar"),
            "--json",
        ],
    )
    assert put.exit_code == 0
    assert json.loads(put.output)["head"] == head
    with sqlite3.connect(settings / "a" / "ledger.sqlite") as database:
        assert read(database, "a")[-1].head == head
    database.close()


def _told(name: str, kind: bytes, size: int) -> bytes:
    """A member of an archive whose header tells a size that nobody has."""
    member = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    member[156:157] = kind
    member[124:136] = b"\x80" + size.to_bytes(11, "big")
    if kind == tarfile.GNUTYPE_SPARSE:
        member[124:136] = b"0" * 11 + b"\0"
        member[483:495] = b"\x80" + size.to_bytes(11, "big")
    member[148:156] = b" " * 8
    member[148:156] = b"%06o\0 " % sum(member)
    return bytes(member) + bytes(4096)


@pytest.mark.parametrize(
    ("kind", "size"), [(b"S", 2**60), (b"x", 2**40), (b"L", 2**40), (b"g", 2**40), (b"0", 2**60)]
)
@pytest.mark.parametrize("name", ["files/big", "manifest.json"])
def test_an_archive_that_tells_more_than_it_has_is_refused_before_it_is_read(
    tmp_path: Path, name: str, kind: bytes, size: int
) -> None:
    (tmp_path / "b.tar").write_bytes(_told(name, kind, size))
    with pytest.raises(RunError):
        contents(tmp_path / "b.tar")


@pytest.mark.parametrize("name", ["files/" + "d/" * 1500 + "x", "files/../x", "/x", "x"])
def test_a_name_that_no_party_gives_is_no_file_of_a_backup(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(RunError, match="is no file of a backup"):
        contents(tmp_path / "b.tar")


def test_a_pipe_a_device_and_a_folder_are_no_backup(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(RunError, match="cannot be read"):
            contents(path)


@pytest.mark.parametrize(
    "lie",
    [{"entries": math.nan}, {"entries": "1"}, {"time_s": math.inf}, {"head": {}}, {"files": []},
     {"version": "\x1b[31m"}, {"name": "\x1b]0;x\x07"}, {"party": "a\n"}],
)  # fmt: skip
def test_a_manifest_of_other_kinds_or_that_a_terminal_would_carry_out_is_refused(
    tmp_path: Path, lie: dict[str, object]
) -> None:
    told = {"format": "fedrec-backup/1", "party": "aggregator", "name": "", "version": "1"}
    told |= {"time_s": 0.0, "entries": 0, "head": "", "files": {}, "links": {}}
    for words, refused_ in ((told, False), (told | lie, True)):
        with tarfile.open(tmp_path / "b.tar", "w") as tar:
            content = json.dumps(words).encode()
            member = tarfile.TarInfo("manifest.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if not refused_:
            assert contents(tmp_path / "b.tar").party == "aggregator"
            continue
        with pytest.raises(RunError):
            contents(tmp_path / "b.tar")
