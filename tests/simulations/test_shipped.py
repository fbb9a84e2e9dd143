"""Scenarios by name: a file wins, a shipped name is found, anything else is refused with what there
is."""

import re
import tomllib
from pathlib import Path

import pytest

from fedrec import shipped
from fedrec.cli.main import guarded
from fedrec.errors import SettingsError
from fedrec.settings import load

ROOT = Path(__file__).parents[2]


def test_every_scenario_of_the_repository_is_found_by_its_name() -> None:
    files = {path.stem: path for path in (ROOT / "simulations").glob("*.toml")}
    assert shipped.shipped() == files
    for name in ("planted", "planted.toml"):
        assert shipped.scenario_path(Path(name)) == files["planted"]


def test_an_existing_file_of_that_name_wins_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("planted").mkdir()
    assert shipped.scenario_path(Path("planted")) == ROOT / "simulations" / "planted.toml"
    Path("planted").rmdir()
    Path("planted").write_text("seed = 7")
    assert load(shipped.scenario_path(Path("planted"))).seed == 7


@pytest.mark.parametrize(
    ("given", "cause", "remedy"),
    [
        ("plantde", "plantde: there is no such file", "Did you mean planted? "),
        ("zzz", "zzz: there is no such file", ", ml1m, "),
        (
            "simulatons/planted.toml",
            "simulatons/planted.toml: there is no such file",
            "Without its folder, planted is a scenario",
        ),
        (
            "nowhere/mine.toml",
            "nowhere/mine.toml: there is no such file",
            "Give a scenario file or name.",
        ),
    ],
)
def test_an_unknown_name_lists_what_there_is_with_a_near_match(
    given: str, cause: str, remedy: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(cause)) as failure:
        shipped.scenario_path(Path(given))
    assert remedy in failure.value.remedy


@pytest.mark.parametrize(
    "verb",
    ["simulate", "account", "audit", "server --settings none.toml --scenario", "doctor --scenario"],
)
def test_every_verb_that_takes_a_scenario_takes_a_name(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([*verb.split(), "plantde"]) == SettingsError.exit_code
    assert "Did you mean planted?" in capsys.readouterr().err


def test_a_wheel_carries_the_scenarios_where_their_names_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build's own hook says where files go; an installed package looks there first.

    Building a wheel takes a build environment."""
    hook = (ROOT / "hatch_build.py").read_text()
    assert 'force_include"][str(path)] = f"fedrec/scenarios/{path.name}"' in hook
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]["hooks"] == {"custom": {}}
    installed = tmp_path / "site-packages" / "fedrec"
    (installed / "scenarios").mkdir(parents=True)
    (installed / "scenarios" / "planted.toml").write_text("seed = 3")
    (tmp_path / "site-packages" / "strange.toml").write_text("")  # of another distribution
    monkeypatch.setattr(shipped.fedrec, "__file__", str(installed / "__init__.py"))
    assert shipped.shipped() == {"planted": installed / "scenarios" / "planted.toml"}
