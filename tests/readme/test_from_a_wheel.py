"""README and quick start as they stand, from a wheel in a clean environment: their Python, then their
commands, one after another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fedrec_client.clicks import Clicks, read_clicks
from fedrec_client.recommending import Recommender, Via
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")


def block(page: str, language: str) -> str:
    """The first of this language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]


def run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Without any path to this checkout."""
    kept = {name: word for name, word in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "XDG_STATE_HOME": str(folder / "state")}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel of this checkout. Packages that fedrec needs are those
    beside this interpreter."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    (wheel,) = folder.glob("*.whl")
    run(*pip, "--python", programs / "python", "install", "--no-deps", wheel, folder=folder)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    beside = folder / "beside"
    beside.mkdir()
    for needed in Path(sysconfig.get_path("purelib")).iterdir():
        if "fedrec" not in needed.name:  # this checkout, installed where it lies
            (beside / needed.name).symlink_to(needed)
    (packages / "beside.pth").write_text(f"{beside}\n")
    where = run(
        programs / "python", "-c", "import fedrec; print(fedrec.__file__)", folder=folder
    ).strip()
    assert Path(where).is_relative_to(packages)
    return programs


@pytest.fixture
def folder(programs: Path, tmp_path: Path) -> Path:
    """With the table that the README names."""
    (made,) = re.findall(r"`python (docs/\S+)`", (ROOT / "README.md").read_text())
    run(programs / "python", ROOT / made, folder=tmp_path)
    return tmp_path


@pytest.mark.processes
@pytest.mark.slow
def test_the_python_of_the_readme_ends_in_a_list_and_what_it_is_worth(
    programs: Path, folder: Path
) -> None:
    shown = run(programs / "python", "-c", block("README.md", "python"), folder=folder)
    assert shown.count("mystery-") == 10, "five books, each by its id and title"
    assert "without privacy" in shown
    assert (folder / "model").is_dir()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")
@pytest.mark.parametrize("page", PAGES)
def test_three_commands_lead_to_a_private_list_and_each_names_the_next(
    page: str, programs: Path, folder: Path
) -> None:
    """But for the ports, which others may have."""
    lines = block(page, "sh").splitlines()
    (written,) = [line for line in lines if not line.startswith("fedrec ")]
    run("sh", "-c", written, folder=folder)
    train, serve, ask = [line.split()[1:] for line in lines if line != written]
    said = run(programs / "fedrec", *train, folder=folder)
    assert said.splitlines()[-1].split() == ["next", "fedrec", *serve]
    with subprocess.Popen(
        [programs / "fedrec", *serve, "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            named = next(line for line in server.stdout if "fedrec recommend" in line).split()[1:]
            address = named[2]
            assert named == [address if word.startswith("http://") else word for word in ask]
            listed = run(programs / "fedrec", *named, folder=folder)
            told = {person: twenty_lists(address, folder, person) for person in ("known", "nobody")}
        finally:
            server.terminate()
    assert listed.count("mystery-") == 10
    assert "exact; nothing of the history was sent" in listed
    assert len(told["nobody"]) == 1, "the noise of an answer makes no list of its own"
    (mysteries,) = told["known"]
    assert all(item.startswith("mystery-") for item in mysteries)


def twenty_lists(address: str, folder: Path, person: str) -> set[tuple[str, ...]]:
    """Different lists of 20 devices: of the two mysteries of the page, each ranked where the device
    chooses, or of nothing known, each by a noised query."""
    clicks = read_clicks(folder / "read.txt") if person == "known" else Clicks.of(["elsewhere"])
    via: Via = "auto" if person == "known" else "server"
    lists = set()
    for number in range(20):
        with Recommender(address, folder / f"{person}-{number}", via=via) as device:
            lists.add(tuple(item.id for item in device.recommend(clicks).items))
    return lists
