"""What people mistype or hand over: each is refused with its cause and a remedy; a remedy that
names a command works when followed.

No line may end with 70, a defect of fedrec, and none may need a traceback.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedrec.cli.main import EXIT_CODES, guarded

Capture = pytest.CaptureFixture[str]
SMALL = "--set data.preset=small"
COLUMNS = "--set data.columns.user=who --set data.columns.item=what"
FROM = f"--set data.path=log.csv {COLUMNS} --set data.columns.rating=stars"
RATED = f"{FROM} --set data.rating_range=[1,5]"


@dataclass(frozen=True)
class Bad:
    """A line, its exit code, words of cause and remedy, and a line that follows the remedy and ends
    with 0 (none: nothing to run)."""

    line: str
    code: int
    cause: str
    remedy: str
    followed: str = ""


FOLLOWED = {""}
"""Remedies that were followed: many errors name one line, and it does the same after each."""

BAD = [
    # verbs and flags
    Bad("simulat", 2, "No such command 'simulat'", "fedrec --help", "--help"),
    Bad("data formts", 2, "Did you mean 'formats'", "fedrec data --help", "data formats"),
    Bad("account --epsilon 5", 2, "No such option: --epsilon", "--set privacy.epsilon=VALUE",
    f"account {SMALL} --set privacy.epsilon=5"),
    Bad("account --delta 1e-6", 2, "--delta belongs to --person", "--set privacy.delta=VALUE",
    f"account {SMALL} --set privacy.delta=1e-6"),
    Bad("account --jsn", 2, "--json", "fedrec account --help", f"account {SMALL} --json"),
    Bad("account --sett a=b", 2, "--set", "fedrec account --help", "account --help"),
    Bad("audit --quik", 2, "--quick", "fedrec audit --help", "audit --help"),
    Bad("simulate --clients 0", 2, "value for '--clients'", "fedrec simulate --help",
    "simulate --help"),
    Bad("simulate --clients two", 2, "value for '--clients'", "fedrec simulate --help",
    "simulate --help"),
    Bad("simulate --runtime partis", 2, "'partis' is not one of", "Did you mean parties",
    "simulate --help"),
    Bad("data describe", 2, "Missing argument 'PATH'", "fedrec data describe --help",
    "data describe --help"),
    Bad("data split log.csv", 2, "Missing option '--output'", "fedrec data split --help",
    "data split --help"),
    Bad("recommend", 2, "no history is given", "--history read.txt"),
    Bad("recommend --history hist.txt --server http://x --epsilon -1", 2, "--epsilon is -1",
    "above 0"),
    Bad("recommend --history hist.txt --server http://x --limit 0", 2, "--limit is 0", "above 0"),
    Bad("recommend --history hist.txt --server http://x --delta 1", 2, "--delta is 1", "below 1"),
    Bad("recommend --history hist.txt --server http://x --renew-every 0", 2, "--renew-every is 0",
    "above 0"),
    Bad("recommend --history hist.txt", 2, "no server is given", "fedrec serve prints"),
    Bad("recommend --history hist.txt --server ftp://x", 2, "'ftp://x' is no server", "https://"),
    Bad("recommend --history nowhere --server http://127.0.0.1:9", 3, "nowhere cannot be read",
    "--history"),
    Bad("recommend --history hist.txt --server http://127.0.0.1:9 --state state", 7,
    "no answer from the server", "Check that it runs"),
    Bad("recommend --demo dir", 6, "has no serving.safetensors", "run folder"),
    Bad("certs trial", 2, "Missing argument 'FOLDER'", "fedrec certs trial --help", "certs trial --help"),
    # scenarios by name and as files
    Bad("account plantet", 2, "no scenario of this name", "Did you mean planted?",
    "account planted"),
    Bad("account nosuch", 2, "no scenario of this name", "`fedrec scenarios` lists all",
    "scenarios"),
    Bad("account dir", 2, "dir: a folder", "Give a scenario file", "account planted"),
    Bad("account dir/planted.toml", 2, "there is no such file",
    "Without its folder, planted is a scenario", "account planted"),
    Bad("account broken.toml", 2, "broken.toml is not TOML", "strings need quotes",
    "account planted"),
    Bad("account binary.toml", 2, "is not TOML", "Correct the line", "account planted"),
    Bad("account typo.toml", 2, "there is no key privcy", "Did you mean privacy?",
    "account right.toml"),
    # keys and values
    Bad("account --set privacy.epsilonn=1", 2, "no key privacy.epsilonn",
    "Did you mean privacy.epsilon?", f"account {SMALL}"),
    Bad("account --set epsilon=1", 2, "no key epsilon", "Did you mean privacy.epsilon?",
    f"account {SMALL} --set privacy.epsilon=1"),
    Bad("account --set data.sep=comma", 2, "no key data.sep", "data.separator", f"account {SMALL}"),
    Bad("account --set nothing.like.it=1", 2, "no key nothing", "fedrec schema", "schema"),
    Bad("account --set privacy.epsilon", 2, "expected key=value", "--set privacy.epsilon=5",
    f"account {SMALL} --set privacy.epsilon=5"),
    Bad("account --set =5", 2, "expected key=value", "--set privacy.epsilon=5",
    f"account {SMALL} --set privacy.epsilon=5"),
    Bad("account --set seed=2 --set seed.x=1", 2, "'seed' is a value, not a table",
    "docs/reference.md"),
    Bad("account --set privacy.epsilon=-1", 2, "greater than 0, found -1", "above 0",
    f"account {SMALL} --set privacy.epsilon=0.5"),
    Bad("account --set privacy.epsilon=0", 2, "greater than 0, found 0", "above 0",
    f"account {SMALL} --set privacy.epsilon=0.5"),
    Bad("account --set privacy.epsilon=five", 2, "found 'five'", "Give a number",
    f"account {SMALL} --set privacy.epsilon=5"),
    Bad("account --set privacy.delta=2", 2, "less than 1, found 2", "below 1",
    f"account {SMALL} --set privacy.delta=1e-6"),
    Bad(f"account {SMALL} --set privacy.delta=0.5", 5, "delta 0.5 promises nothing", "0.0033",
    f"account {SMALL} --set privacy.delta=0.001"),
    Bad(f"account {SMALL} --set privacy.epsilon=1e-6", 5, "more than its integer grid holds",
    "a larger epsilon", f"account {SMALL} --set privacy.epsilon=0.01"),
    Bad("account --set seed=-1", 2, "greater than or equal to 0", "at least 0",
    f"account {SMALL} --set seed=0"),
    Bad("account --set seed=1.5", 2, "found 1.5", "a whole number",
    f"account {SMALL} --set seed=2"),
    Bad("account --set data.features=perhaps", 2, "found 'perhaps'", "true or false",
    f"account {SMALL} --set data.features=false"),
    Bad("account --set recipe=als", 2, "there is no such recipe", "fedrec schema",
    f"account {SMALL} --set recipe=default"),
    Bad("account --set recipe=dp-bas", 2, "did you mean 'dp-bias'", "fedrec schema",
    f"account {SMALL} --set recipe=dp-bias"),
    Bad("account --set split.kind=randm", 2, "found 'randm'", "Did you mean 'random'?",
    f"account {SMALL} --set split.kind=random"),
    Bad("account --set privacy.unit=person", 2, "found 'person'", "'user', 'example' or 'click'",
    f"account {SMALL} --set privacy.unit=user"),
    Bad("account --set privacy.noise=sytem", 2, "found 'sytem'", "Did you mean 'system'?",
    f"account {SMALL} --set privacy.noise=system"),
    Bad("account --set data.preset=smal", 2, "'smal' is unknown", "Did you mean 'small'?",
    f"account {SMALL}"),
    Bad("account --set evaluation.cutoffs=[]", 2, "evaluation.cutoffs", "fedrec schema",
    f"account {SMALL} --set evaluation.cutoffs=[10]"),
    Bad("account --set evaluation.cutoffs=[0]", 2, "ascending lengths of at least 1",
    "fedrec schema", f"account {SMALL}"),
    Bad("account --set evaluation.cutoffs=[20,10]", 2, "ascending", "fedrec schema",
    f"account {SMALL} --set evaluation.cutoffs=[10,20]"),
    Bad("account --set collective.sides=[metadata]", 2, "found '[metadata]'", "need quotes",
    f"account {SMALL} --set 'collective.sides=[\"metadata\"]'"),
    Bad("account --set model.dimension=8", 2, 'needs recipe = "published"', "fedrec schema",
    f"account {SMALL} --set recipe=published --set model.dimension=8"),
    Bad("account --set recipe=noisy-descent --set model.dimension=1000", 2, "found 1000",
    "at most 512", f"account {SMALL} --set recipe=noisy-descent"),
    Bad("account --set news.variant=local", 2, "needs recipe", "fedrec schema"),
    Bad("account --set recipe=privaterec", 2, "needs data.format to be one of", "fedrec schema",
    "account privaterec_planted"),
    Bad(f"account {SMALL} --set recipe=dp-item-item", 2, "fits clicks", 'data.kind = "clicks"',
    f"account {SMALL} --set recipe=dp-item-item --set data.kind=clicks"),
    Bad(f"account {SMALL} --set recipe=dp-popularity", 2, "fits clicks", 'data.kind = "clicks"',
    f"account {SMALL} --set recipe=dp-popularity --set data.kind=clicks"),
    Bad("account --set recipe=dp-bias --set data.kind=clicks", 2, "fits ratings", "fedrec schema",
    f"account {SMALL} --set recipe=dp-bias"),
    Bad(f"account {SMALL} --set split.kind=given", 2, "comes with its own test events",
    "choose another split.kind", f"account {SMALL} --set split.kind=random"),
    Bad("account --set split.kind=temporal --set split.cuts=[10,5]", 2, "must rise",
    "fedrec schema"),
    Bad("account --users -5", 2, "--users -5", "Give both", "account --users 500 --items 50"),
    Bad("account --users 5", 2, "--users 5 --items 0", "Give both",
    "account --users 500000 --items 5"),
    # data
    Bad("data describe nowhere", 3, "nowhere does not exist", "Check the path",
    "data describe right.csv"),
    Bad("data describe rigth.csv", 3, "rigth.csv does not exist", "Did you mean right.csv?",
    "data describe right.csv"),
    Bad("data describe empty.csv", 3, "empty.csv is empty", "again"),
    Bad("data describe header.csv", 3, "header.csv holds no rows", "whole"),
    Bad("data describe short.csv --set data.rating_range=[1,5]", 3, "short.csv, line 3",
    "Correct the line"),
    Bad("data describe text.csv --set data.rating_range=[1,5]", 3, "text.csv, line 2",
    "Correct the line"),
    Bad("data describe binary.csv", 3, "binary.csv", ""),
    Bad("data describe bad.parquet", 3, "bad.parquet cannot be read", "Parquet file whole"),
    Bad("data describe dir", 3, "no known format", "Name one"),
    Bad("data describe log.csv", 3, "no column 'user'", "data.columns.user",
    f"data describe log.csv {COLUMNS}"),
    Bad("data describe log.csv --set data.columns.user=who", 3, "no column 'item'",
    "data.columns.item", f"data describe log.csv {COLUMNS}"),
    Bad("data describe log.csv --set data.columns.usr=who", 2, "no option 'usr'",
    "Did you mean 'user'?", f"data describe log.csv {COLUMNS}"),
    Bad("data describe log.csv --set data.format=tabl", 2, "unknown data format 'tabl'",
    "Did you mean 'table'?", f"data describe log.csv --set data.format=table {COLUMNS}"),
    Bad(f"data describe log.csv {COLUMNS} --set data.columns.rating=stars", 2, "no rating_range",
    "[1, 5]", f"data describe log.csv {RATED}"),
    Bad(f"data describe log.csv {FROM} --set data.rating_range=[5,1]", 2, "is no scale", "[1, 5]",
    f"data describe log.csv {RATED}"),
    Bad(f"data describe log.csv {FROM} --set data.rating_range=[1,3]", 3, "a rating in [1, 3]",
        "clip", (
        f"data describe log.csv {FROM} --set data.rating_range=[1,3] --set "
        "data.out_of_range=clip"
    )),
    Bad("data describe twice.csv --set data.rating_range=[1,5]", 3, "twice.csv, line 3",
    "last, mean or sum",
    "data describe twice.csv --set data.rating_range=[1,5] --set data.duplicates=last"),
    Bad(f"data describe log.csv {RATED} --set data.duplicates=first", 2, "found 'first'", "'last'",
    f"data describe log.csv {RATED} --set data.duplicates=last"),
    Bad(f"data describe log.csv {RATED} --set data.keep_users=100", 3, "100 users were asked for",
    "7 at most", f"data describe log.csv {RATED} --set data.keep_users=7"),
    Bad(f"data describe log.csv {RATED} --set data.features_path=nowhere.csv", 3, "nowhere.csv",
    "Check the path", f"data describe log.csv {RATED}"),
    Bad("data split right.csv --output dir", 6, "dir holds files of something else", "folder",
    "data split right.csv --output other"),
    Bad("data plant here --preset huge", 2, "'huge' is unknown", "small",
    "data plant here --preset small"),
    Bad("data plant here --users 5", 2, "go together", "Give all three",
    "data plant there --users 50 --items 20 --events 200"),
    Bad("data plant here --seed -1", 2, "negative", "0 or more",
    "data plant elsewhere --preset small --seed 0"),
    Bad("data describe utf16.csv", 3, "utf16.csv is UTF-16", "Save it as UTF-8"),
    Bad("data describe zeros.csv", 3, "zeros.csv is no text", "UTF-8"),
    Bad("data describe noise.csv", 3, "noise.csv", ""),
    Bad("data describe cr.csv", 3, "end with CR alone", "LF or CRLF"),
    Bad("data describe odd.csv", 3, "no column 'user'", "--user COLUMN",
    "data describe odd.csv --set data.columns.user=who --set data.columns.item=what"),
    # from one's own table to a list
    Bad("train", 2, "Missing argument 'FILE'", "fedrec train clicks.csv -o model"),
    Bad("train right.csv", 2, "Missing option '--output'", "fedrec train clicks.csv -o model"),
    Bad("train planted -o m", 2, "planted is a scenario, not data", "fedrec simulate planted",
    "account planted"),
    Bad("train right.toml -o m", 2, "is a scenario, not data", "fedrec simulate right.toml",
    "account right.toml"),
    Bad("train nowhere.csv -o m", 3, "nowhere.csv does not exist", "Check the path"),
    Bad("train right.csv -o dir", 6, "dir holds files of something else", "new folder"),
    Bad("train right.csv -o hist.txt", 6, "hist.txt is a file", "new folder"),
    Bad("train twice.csv -o m", 2, "no rating_range", "--scale 1 5"),
    Bad("train odd.csv -o m", 3, "no column 'user'", "--user COLUMN"),
    Bad("train usual.csv -o m", 3, "2 events leave no test", "Use more data"),
    Bad("train right.csv -o m --epsilon 0", 2, "privacy.epsilon", "above 0"),
    Bad("train right.csv --column who", 2, "No such option: --column", "fedrec train --help"),
    Bad("simulate right.csv", 2, "is a table, not a scenario", "fedrec train right.csv -o model",
    "data describe right.csv"),
    Bad("simulate dir", 2, "dir: a folder", "fedrec simulate --data dir"),
    Bad("fit right.csv", 2, "No such command 'fit'", "fedrec train", "train --help"),
    Bad("predict", 2, "No such command 'predict'", "fedrec recommend", "recommend --help"),
    Bad("data describe twice.csv --set data.kind=clicks", 2, "no rating_range",
    "give the public scale: data.rating_range = [1, 5]", "data describe twice.csv --set data.kind=clicks "
    "--set data.rating_range=[1,5]"),
    Bad(f"data split log.csv --output parts {RATED} --set split.kind=temporal", 3, "have no times",
    "data.columns.timestamp", f"data split log.csv --output parts {RATED}"),
    # runs, models and parties
    Bad(f"simulate {SMALL} --set run.directory=hist.txt", 6, "cannot be written", "run.directory"),
    Bad(f"simulate {SMALL} --resume", 6, "no run to resume", "without --resume"),
    Bad(f"simulate {SMALL} --runtime parties --clients 5000", 2,
    "5000 clients cannot share 300 users", "fewer --clients"),
    Bad("compare", 2, "Missing argument", "fedrec compare --help", "compare --help"),
    Bad("compare dir", 6, "dir holds no finished run", "fedrec simulate"),
    Bad("serve", 2, "Missing argument", "fedrec serve --help", "serve --help"),
    Bad("serve dir", 6, "dir/serving.safetensors cannot be read", "finished training"),
    Bad("serve log.csv", 2, "log.csv is data", "fedrec train log.csv -o model"),
    Bad("serve dir --http nowhere", 2, "host:port", "docs/deploy.md"),
    Bad("serve dir --settings nowhere.toml", 2, "nowhere.toml", "settings file"),
    Bad("export nope --output x", 6, "nope does not exist", "a model folder"),
    Bad("export dir --output x", 6, "holds neither a model", "train again"),
    Bad("server --scenario planted", 2, "Missing option '--settings'", "fedrec server --help",
    "server --help"),
    Bad("server --scenario planted --settings nowhere.toml", 2, "nowhere.toml", "docs/deploy.md"),
    Bad("client --settings nowhere.toml", 2, "nowhere.toml", "docs/deploy.md"),
    Bad("aggregator --settings nowhere.toml", 2, "nowhere.toml", "docs/deploy.md"),
    Bad("inspect nowhere", 6, "holds no state", "state folder"),
    Bad("status nowhere.toml", 2, "nowhere.toml", "docs/deploy.md"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as people have them, good and bad."""
    place = tmp_path_factory.mktemp("bad")
    events = [f"u{k % 7},i{k % 5},{k % 5 + 1}" for k in range(35)]
    texts = {
        "log.csv": "\n".join(["who,what,stars", *events]),
        "right.csv": "\n".join(["user,item", *(event.rpartition(",")[0] for event in events)]),
        "empty.csv": "",
        "header.csv": "user,item\n",
        "short.csv": "user,item,rating\na,b,5\na,c\n",
        "text.csv": "user,item,rating\na,b,five\na,c,3\n",
        "twice.csv": "user,item,rating\na,b,5\na,b,3\n",
        "bad.parquet": "not parquet",
        "broken.toml": "recipe = \n",
        "typo.toml": "[privcy]\nepsilon = 1\n",
        "right.toml": '[privacy]\nepsilon = 1\n[data]\npreset = "small"\n',
        "hist.txt": "1\n2\n",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    (place / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 10)
    (place / "utf16.csv").write_bytes("user,item\n1,2\n".encode("utf-16"))
    (place / "zeros.csv").write_bytes(b"user,item\n1,\0\n")
    (place / "noise.csv").write_bytes(b'\x89"\r\x1a\n\r"\xb2,\x80\r"1\n')
    (place / "cr.csv").write_bytes(b"user,item\r1,2\r3,4\r")
    (place / "odd.csv").write_text("who,what,when\n1,2,3\n3,4,5\n")
    (place / "usual.csv").write_text("userId,movieId\n1,2\n3,4\n")
    (place / "binary.toml").write_bytes(b"\xff\xfe\x00\x01" * 10)
    (place / "dir").mkdir()
    (place / "dir" / "x.bin").write_text("x")
    return place


@pytest.fixture
def said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[None]:
    monkeypatch.chdir(folder)
    yield
    capsys.readouterr()


def test_there_are_more_than_eighty() -> None:
    assert len(BAD) >= 80
    assert len({bad.line for bad in BAD}) == len(BAD)
    assert sum(bool(bad.followed) for bad in BAD) >= 50


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.line)
def test_a_bad_input_has_a_cause_and_a_remedy_that_works(
    bad: Bad, capsys: pytest.CaptureFixture[str]
) -> None:
    code = guarded(shlex.split(bad.line))
    cause, remedy = capsys.readouterr().err.strip().splitlines()[-2:]
    assert code == bad.code != 70
    assert code in EXIT_CODES
    assert cause.startswith("error: ")
    assert remedy.startswith("remedy: ")
    assert bad.cause in cause
    assert bad.remedy in remedy
    assert "Traceback" not in cause
    assert "pydantic" not in cause
    if bad.followed in FOLLOWED or ("privaterec" in bad.followed and not find_spec("torch")):
        return
    assert guarded(shlex.split(bad.followed)) == 0, capsys.readouterr().err
    FOLLOWED.add(bad.followed)


@pytest.mark.usefixtures("said")
def test_a_program_may_ask_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "data formats --json",
        "scenarios --json",
        "schema",
        "data describe right.csv --json",
        f"account {SMALL} --json",
    ):
        assert guarded(shlex.split(line)) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict), line


@pytest.mark.usefixtures("said")
def test_the_schema_of_scenarios_knows_every_table_and_refuses_unknown_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"recipe", "data", "privacy", "model", "own"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["PrivacySettings"]["properties"]["noise"]["enum"] == ["system", "seeded"]


WEIGHTS = ["--weights stars", "--plays stars", "--decay .5", "--sample-weight stars"]
WEIGHTS += ["--set data.weights=stars", "--set data.columns.weight=stars", "--set model.decay=3"]


@pytest.mark.parametrize("said", WEIGHTS)
@pytest.mark.parametrize("verb", ["train log.csv -o made", "simulate --data log.csv"])
def test_weights_of_clicks_are_refused_with_what_to_say(
    verb: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("user,item,stars\na,x,1\nb,y,5\n")
    assert guarded([*verb.split(), *said.split()]) == 2
    assert "A click counts once" in (told := capsys.readouterr().err)
    assert "--clicks-from" in told
    assert not (tmp_path / "made").exists()


def test_a_folder_with_files_of_a_person_is_not_planted_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_text("mine")
    assert guarded(["data", "plant", ".", "--preset", "small"]) == 6
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "items.csv").read_text() == "mine"


@pytest.mark.parametrize("width", ["0", "1", "", "many"])
def test_no_width_of_a_terminal_hides_a_result(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", width)
    keys = ["data.preset=small", "data.kind=clicks", "recipe=dp-popularity", "compare.als=false"]
    assert guarded(["simulate", *(word for key in keys for word in ("--set", key))]) == 0
    shown = capsys.readouterr().out
    assert "guarantee" in shown
    assert "fedrec compare" in shown
