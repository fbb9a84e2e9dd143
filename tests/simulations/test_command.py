"""Every help reads well at any width, and bad input of any kind ends in a line of cause, a line of
remedy and its exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from fedrec import errors
from fedrec.cli import main
from fedrec.cli.main import EXIT_CODES, app
from fedrec.run.data import describing

SMALL = [
    "--set",
    "data.preset=small",
    "--set",
    "compare.als=false",
    "--set",
    "evaluation.ranking=false",
    "--set",
    "run.examples=1",
]
ENTRY = "from fedrec.cli.main import main; main()"
NOT_SHOWN = "\x1b"


def verbs(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    if isinstance(group, TyperGroup):
        for name, inner in group.commands.items():
            if not inner.hidden:
                yield from verbs(inner, (*path, name))


VERBS = dict(verbs(get_command(app)))


@pytest.fixture(autouse=True)
def _environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # what the command would set, were numpy not loaded yet
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture
def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process: exit code, stdout, stderr."""

    def run(*arguments: str, width: int = 80) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        code = main.guarded(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


Said = Callable[..., tuple[int, str, str]]


def refused(answer: tuple[int, str, str], *, code: int, named: str) -> None:
    """One line of cause that names what is wrong, one of remedy, nothing else, and the documented
    code."""
    found, out, err = answer
    assert found == code, err
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "remedy: "))]
    assert [line.split(":")[0] for line in lines] == ["error", "remedy"], err
    assert named in lines[0]
    assert len(lines[1]) > len("remedy: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_help_of_every_verb_is_complete_and_fits_the_terminal(
    path: tuple[str, ...], width: int, said: Said
) -> None:
    code, out, err = said(*path, "--help", width=width)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: fedrec {' '.join(path)}".rstrip())
    # nothing is cut off
    assert "..." not in re.sub(
        r"\[ARGS\]\.\.\.|(?:RUN_DIR|NAME)\.\.\.|SOURCE\.\.\.|SETTINGS\.\.\.", "", out
    )
    assert NOT_SHOWN not in out
    if width >= 80:  # example commands are not wrapped: they are there to be copied
        assert max(map(len, out.splitlines())) <= width


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_and_every_parameter_is_described(path: tuple[str, ...]) -> None:
    verb = VERBS[path]
    assert verb.help
    for parameter in verb.params:
        assert parameter.help, parameter.name
        assert parameter.help.rstrip().endswith("."), parameter.name


def test_the_first_help_lists_every_verb_and_every_exit_code(said: Said) -> None:
    _, out, _ = said("--help", width=100)
    assert all(
        re.search(rf"^  {name} ", out, re.MULTILINE)
        for name in ("simulate", "account", "serve", "data")
    )
    assert all(f"{code} {words}" in " ".join(out.split()) for code, words in EXIT_CODES.items())


def test_every_error_has_a_documented_exit_code() -> None:
    leaves = [
        c
        for c in vars(errors).values()
        if isinstance(c, type) and issubclass(c, errors.FedRecError) and c is not errors.FedRecError
    ]
    assert len(leaves) > 5
    assert {c.exit_code for c in leaves} <= set(EXIT_CODES)


@pytest.mark.parametrize("arguments", [(), ("data",)])
def test_a_bare_group_shows_its_help(arguments: tuple[str, ...], said: Said) -> None:
    code, out, _ = said(*arguments)
    assert (code, out) == (0, said(*arguments, "--help")[1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["simulate", "--nope"], "--nope"),
        (["simulate", "planted", "b.toml"], "b.toml"),
        (["nope"], "nope"),
        (["data", "nope"], "nope"),
        (["data", "describe"], "PATH"),
        (["data", "split", "x"], "--output"),
        (["data", "plant"], "FOLDER"),
        (["data", "plant", "x", "--seed", "one"], "--seed"),
        (["data", "plant", "x", "--seed", "-1"], "-1"),
        (["data", "plant", "x", "--preset", "huge"], "huge"),
        (["account", "--users", "many"], "--users"),
        (["account", "--users", "10"], "--items"),
        (["account", "--users", "-1", "--items", "5"], "-1"),
        (["simulate", "--set"], "--set"),
        (["simulate", "--set", "garbage"], "garbage"),
        (["simulate", "--set", "=5"], "=5"),
        (["simulate", "--set", "seed=1", "--set", "seed.x=5"], "seed"),
        (["simulate", "--set", "seed=[1,"], "seed"),
        (["simulate", "--set", "privacy.epsilom=5"], "privacy.epsilom"),
        (["simulate", "--set", "privacy.epsilon=0"], "privacy.epsilon"),
        (["simulate", "--set", "privacy.epsilon=-3"], "privacy.epsilon"),
        (["simulate", "--set", "privacy.epsilon=lots"], "lots"),
        (["simulate", "--set", "privacy.epsilon=nan"], "privacy.epsilon"),
        (["simulate", "--set", "privacy.delta=1"], "privacy.delta"),
        (["simulate", "--set", "split.kind=diagonal"], "split.kind"),
        (["simulate", "--set", "privacy.unit=example"], "privacy.unit"),
        (["simulate", "--set", "data.preset=huge"], "huge"),
        (["simulate", "--set", "data.format=ml-1m"], "data.path"),
        (["simulate", "absent.toml"], "absent.toml"),
        (["simulate", "."], "."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_flag_or_key_is_named(
    arguments: list[str], named: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(said(*arguments), code=2, named=named)


def test_a_broken_scenario_file_is_named(said: Said, tmp_path: Path) -> None:
    for name, content in {
        "broken.toml": b"[privacy\nepsilon = 5",
        "binary.toml": b"\xff\xfe\x00",
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(said("account", str(tmp_path / name)), code=2, named=name)


RATINGS = "user,item,rating\n1,10,4\n1,11,3\n2,10,5\n2,12,1\n"
AS_RATINGS = ["--set", "data.columns.rating=rating", "--set", "data.rating_range=[1,5]"]


@pytest.mark.parametrize(
    ("content", "more", "code", "named"),
    [
        (RATINGS + "3,10,five\n", AS_RATINGS, 3, "line 6"),
        (RATINGS + "3,10\n", AS_RATINGS, 3, "line 6"),
        (RATINGS + "3,10,\n", AS_RATINGS, 3, "line 6"),
        (RATINGS + "3,10,9\n", AS_RATINGS, 3, "line 6"),
        (RATINGS + "2,12,3\n", AS_RATINGS, 3, "line 6"),
        ("", AS_RATINGS, 3, "ratings.csv"),
        ("user,item,rating\n", AS_RATINGS, 3, "ratings.csv"),
        (
            RATINGS,
            ["--set", "data.columns.rating=stars", "--set", "data.rating_range=[1,5]"],
            3,
            "stars",
        ),
        (RATINGS, ["--set", "data.columns.rating=rating"], 2, "rating_range"),
        (
            RATINGS,
            ["--set", "data.columns.rating=rating", "--set", "data.rating_range=[5,1]"],
            2,
            "rating_range",
        ),
        (RATINGS, ["--set", "data.columns.stars=rating"], 2, "stars"),
        (RATINGS, ["--set", "data.kind=ratings"], 2, "rating_range"),
        (
            "user,item\n" + "".join(f"{k},{j}\n" for k in range(9) for j in range(3)),
            ["--set", "data.kind=ratings"],
            2,
            "clicks",
        ),
        (RATINGS, ["--set", "data.format=ml-1m"], 3, "ratings"),
        (RATINGS, ["--set", "data.format=nonsense"], 2, "nonsense"),
        (RATINGS, [*AS_RATINGS, "--set", "data.features_path=absent.csv"], 3, "absent.csv"),
    ],
)
def test_bad_data_is_named_with_file_and_line(
    content: str,
    more: list[str],
    code: int,
    named: str,
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ratings.csv").write_text(content)
    refused(said("data", "describe", "ratings.csv", *more), code=code, named=named)


def test_data_that_is_not_there_or_in_no_known_format_is_named(said: Said, tmp_path: Path) -> None:
    refused(said("data", "describe", str(tmp_path / "absent")), code=3, named="absent")
    (tmp_path / "notes.md").write_text("nothing")
    refused(said("data", "describe", str(tmp_path / "notes.md")), code=3, named="notes.md")


@pytest.mark.parametrize(
    ("kind", "code", "named"),
    [("temporal", 3, "times"), ("leave-last-out", 3, "times"), ("given", 2, "given")],
)
def test_a_split_that_the_data_cannot_give_is_refused(
    kind: str, code: int, named: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ratings.csv").write_text(RATINGS)
    refused(
        said(
            "account", "--set", "data.path=ratings.csv", *AS_RATINGS, "--set", f"split.kind={kind}"
        ),
        code=code,
        named=named,
    )


def test_a_folder_that_cannot_be_written_is_refused(said: Said, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    inside = tmp_path / "file" / "runs"
    refused(
        said("simulate", *SMALL, "--json", "--set", f"run.directory={inside}"),
        code=6,
        named=str(inside),
    )
    refused(
        said("data", "plant", str(inside), "--preset", "small"),
        code=6,
        named=str(tmp_path / "file"),
    )


def test_a_defect_is_one_line_and_asks_for_a_report(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(describing, "formats", broken)
    code, _, err = said("data", "formats")
    assert code == 70
    assert err.splitlines()[0] == "error: RuntimeError: two lines"


def test_an_interruption_names_resume(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(describing, "formats", interrupted)
    code, _, err = said("data", "formats")
    assert code == 130
    assert "--resume" in err


@pytest.mark.parametrize("recipe", ["default", "published"])
def test_account_needs_no_data_when_it_is_told_the_sizes(recipe: str, said: Said) -> None:
    sizes = [
        "--users",
        "90000",
        "--items",
        "2000",
        "--set",
        f"recipe={recipe}",
        "--set",
        "data.path=absent",
    ]
    code, out, _ = said("account", "--json", *sizes)
    plan = json.loads(out)
    assert code == 0
    assert (
        plan["guarantee"]["words"]
        == "epsilon 5 at delta 1e-05 per user (add/remove, number of users public)"
    )
    assert sum(release["share"] for release in plan["releases"]) == pytest.approx(1)
    assert plan["accountants"]["gdp"] == pytest.approx(5)
    assert said("account", *sizes)[1].count("per user (add/remove, number of users public)") == 4


def test_account_says_which_accountant_found_nothing(said: Said) -> None:
    code, printed, _ = said("account", "--set", "data.preset=small", "--set", "privacy.delta=1e-30")
    assert code == 0
    assert "by privacy loss distribution: not computed at delta = 1e-30" in printed
    assert "inf" not in printed.split()


def test_account_says_what_is_not_established(said: Said) -> None:
    sizes = ["--users", "1000", "--items", "500", "--set", "recipe=published"]
    for key in ("privacy.unit=example", "privacy.accountant=am-ssp"):
        assert "NOT ESTABLISHED" in said("account", *sizes, "--set", key)[1]
    assert "no privacy" in said("account", *sizes, "--set", "privacy.epsilon=inf")[1]


def test_planted_data_in_files_can_be_read_back(said: Said, tmp_path: Path) -> None:
    code, out, _ = said("data", "plant", str(tmp_path / "planted"), "--preset", "small", "--json")
    assert code == 0
    assert all(Path(file).is_file() for file in json.loads(out)["files"])
    code, out, err = said("data", "describe", str(tmp_path / "planted"), *AS_RATINGS)
    assert code == 0, err
    assert re.search(r"^ +users  300$", out, re.MULTILINE)


def test_real_processes_answer_with_the_same_codes_and_a_closed_pipe_is_quiet(
    tmp_path: Path,
) -> None:
    wrong = subprocess.run(
        [sys.executable, "-c", ENTRY, "simulate", "--nope"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[0].startswith("error: ")
    piped = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -c '{ENTRY}' --help | true"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (piped.returncode, piped.stderr) == (1, "")


def test_an_option_that_is_a_scenario_key_is_answered_with_how_to_set_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.guarded(["simulate", "--max-total-epsilon", "5"]) == 2
    assert "--set privacy.max_total_epsilon=VALUE" in capsys.readouterr().err


def test_help_prints_defaults_in_plain_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    main.guarded(["simulate", "--help"])
    out = capsys.readouterr().out
    assert "[default: loopback]" in out
    assert "\\[" not in out
