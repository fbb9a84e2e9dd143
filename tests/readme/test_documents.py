"""What the documents say works: commands, keys, links and figures; and the reference page is what
the code makes."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy.special import ndtr, ndtri
from typer.main import get_command

from fedrec.cli.main import app
from fedrec.data.read import FORMATS
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.run.data.describing import keys_of_news
from fedrec.settings import load, validated
from fedrec.shipped import path_of
from tests.release import reference_page

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {path.name for path in DOCUMENTS}
MADE = {"api.md", "habits.md", "reference.md"}
"""Pages that commands make: the documentation site fills api.md, a list of names."""
TREES = (
    "aggregator",
    "benchmarks",
    "client",
    "docs",
    "fedrec",
    "research",
    "server",
    "simulations",
    "tests",
)


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    for path in [*DOCUMENTS, *sorted((ROOT / "simulations").glob("*.toml"))]:
        lines = [line for block in blocks(path, "sh") for line in block.splitlines()]
        if path.suffix == ".toml":
            lines = [
                line.removeprefix("# ")
                for line in path.read_text().splitlines()
                if line.startswith("# fedrec")
            ]
        yield from ((path.name, line) for line in lines)


COMMANDS = sorted(set(commands()))
SETTINGS = {"--settings", "--aggregator", "--client", "--server", "--serving"}
"""Flags before a party's settings, which an operator writes; test_deploy_page.py loads those of
docs/deploy.md."""
FEDREC: Any = get_command(app)
OF_SETTINGS = {"status", "backup", "restore", "ledger"}
"""Verbs whose arguments are such settings."""


def test_the_documents_are_there_and_hold_commands() -> None:
    assert {
        "README.md",
        "quickstart.md",
        "simulate.md",
        "data.md",
        "privacy.md",
        "reference.md",
    } <= NAMES
    assert sum(line.startswith("fedrec ") for _, line in COMMANDS) > 15


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_guide_of_the_tree_names_is_there(page: str) -> None:
    named = set(
        re.findall(
            r"`([\w./-]+\.(?:py|toml|md|html)|[\w.-]+/[\w./-]+/)`", (ROOT / page).read_text()
        )
    )
    there = [
        path.relative_to(ROOT).as_posix() for part in TREES for path in (ROOT / part).rglob("*")
    ]
    assert len(named) > 5
    assert [
        name
        for name in sorted(named)
        if not (ROOT / name).exists()
        and not any(f"/{path}".endswith(f"/{name.rstrip('/')}") for path in there)
    ] == []


def test_every_dotted_name_of_the_architecture_is_one_of_code() -> None:
    """Its module is there and binds it; a class has the method."""
    named = re.findall(r"`(fedrec\w*(?:\.\w+)+)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not _is_bound(name)] == []


def _is_bound(name: str) -> bool:
    steps = name.split(".")
    for cut in range(len(steps), 0, -1):
        with suppress(ModuleNotFoundError):
            found: Any = importlib.import_module(".".join(steps[:cut]))
            for step in steps[cut:]:
                found = getattr(found, step, None)
            return found is not None
    return False


@pytest.mark.parametrize(
    ("document", "line"), COMMANDS, ids=[f"{d}: {line}" for d, line in COMMANDS]
)
def test_every_command_of_the_documents_exists_with_its_flags_keys_and_scenario(
    document: str, line: str
) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
        return
    if words[0] != "fedrec":
        # the second is run by test_from_a_wheel
        assert line == ". .venv/bin/activate" or line.startswith("printf ")
        return
    if words[1:] == ["--help"]:
        return
    command = FEDREC
    at = 1
    while hasattr(command, "commands"):
        command = command.commands[words[at]]
        at = at + 1
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    flags = [word for word in words[at:] if word.startswith("-")]
    assert set(flags) <= known
    settings = {value for flag, value in itertools.pairwise(words) if flag in SETTINGS} | (
        {*words} if words[1] in OF_SETTINGS else set()
    )
    named = [word for word in words[at:] if word.endswith(".toml") and word not in settings]
    named += [value for flag, value in itertools.pairwise(words) if flag == "--scenario"]
    named += (
        words[at : at + 1]
        if words[1] in {"simulate", "account", "audit"} and words[at : at + 1] != flags[:1]
        else []
    )
    # the operator's own, on docs/deploy.md
    scenarios = [path_of(name) for name in named if name != "scenario.toml"]
    overrides = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    if words[1:3] == ["data", "describe"]:  # the verb adds what makes its format a scenario
        overrides += [f"data.path={words[3]}", *keys_of_news(words[3], overrides)]
    load(scenarios[0] if scenarios else None, overrides)


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name not in MADE], ids=lambda path: path.name
)
def test_every_verb_that_a_page_names_exists(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`fedrec ([a-z][^`]*)`", text):
        group = FEDREC
        for word in line.split():
            if not hasattr(group, "commands"):
                break
            assert word in group.commands, line
            group = group.commands[word]


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if path.name not in ("deploy.md", "flower.md", "serving.md")],
    ids=lambda path: path.name,
)
def test_every_scenario_of_the_documents_is_valid(path: Path) -> None:
    for block in blocks(path, "toml"):
        validated(tomllib.loads(block), source=path.name)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere_and_every_named_file_and_key_exists(path: Path) -> None:
    text = path.read_text()
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if not target.startswith("https://"):
            page = path.parent / target if target else path
            assert page.is_file(), target
            assert not heading or heading in anchors(page), f"{target}#{heading}"
    for name in re.findall(
        r"`((?:aggregator|client|deploy|docs|fedrec|server|simulations|tests)/[\w./-]+)`", text
    ):
        assert (ROOT / name).exists(), name
    keys = re.findall(
        r"`((?:data|split|privacy|model|evaluation|compare|run)\.[a-z_]+)\b(?![.(])", text
    )
    known = re.findall(r"^\| `([a-z_.]+)` \|", reference_page.page(), re.MULTILINE)
    assert {key for key in keys if not key.endswith((".json", ".safetensors"))} <= set(known)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them; a heading that is there twice has a
    number the second time."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = list[str]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def test_a_heading_has_the_anchor_that_pages_link_to(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# News: a `log`, twice\n\n```sh\n# no heading\n```\n\n## What?\n\n## What?\n")
    assert anchors(page) == {"news-a-log-twice", "what", "what-1"}


def test_the_reference_page_is_what_the_code_makes() -> None:
    assert (ROOT / "docs" / "reference.md").read_text() == reference_page.page(), (
        "stale: run make docs"
    )


def test_the_reference_page_describes_every_key_verb_and_format() -> None:
    page = reference_page.page()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert all(row[-1].removesuffix(" |").strip() for row in rows)
    for name in (
        "data.path",
        "data.format",
        "split.kind",
        "split.seed",
        "privacy.epsilon",
        "privacy.delta",
        "recipe",
        "seed",
        *FORMATS,
    ):
        assert f"| `{name}` |" in page
    for verb in (
        "simulate",
        "account",
        "data formats",
        "data describe",
        "data split",
        "data plant",
    ):
        assert f"### `fedrec {verb}`" in page


def test_the_figures_of_the_privacy_page_follow_from_the_accountant() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text()
    for epsilon in (1, 5, 20):
        mu = mu_for(epsilon, 1e-5)
        right = ndtr(mu / 2)
        found = ndtr(ndtri(0.01) + mu)
        assert f"| {epsilon} | {right:.1%} of cases | {found:.1%} of those who are |" in text
    assert (
        f"ε = 1 becomes {epsilon_of(2 * mu_for(1, 1e-5), 1e-5):.1f} and ε = 5 becomes "
        f"{epsilon_of(2 * mu_for(5, 1e-5), 1e-5):.1f}"
    ) in " ".join(text.split())


def test_the_readme_says_of_its_figure_what_was_kept() -> None:
    """The means over seeds of the study, at three digits."""
    kept = json.loads((ROOT / "research/results/study-ml-1m.json").read_text())["cells"]
    mean = {(row["system"], row["epsilon"]): fmean(row["rmse"]) for row in kept}
    said = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"the default has {mean['default', 5.0]:.3f}. Without privacy, item and user biases have"
        in said
    )
    assert f"{mean['item-user-bias', 'inf']:.3f} and ALS has {mean['als', 'inf']:.3f}." in said


def words(path: Path) -> int:
    """Of a page, but for tables that a command makes between two marks."""
    return len(
        re.sub(r"<!-- [^>]*: python -m.*?<!-- end -->", "", path.read_text(), flags=re.S).split()
    )


def test_the_readme_is_read_in_minutes_and_the_pages_in_an_evening() -> None:
    assert words(ROOT / "README.md") <= 900
    written = [ROOT / "CONTRIBUTING.md", *(path for path in DOCUMENTS if path.name not in MADE)]
    assert sum(words(path) for path in written) <= 30_000


def test_the_home_page_of_the_site_begins_as_the_readme() -> None:
    first, _, rest = (ROOT / "README.md").read_text().partition("## Your own table in commands")
    assert rest
    assert (ROOT / "docs" / "index.md").read_text().startswith(first.replace("](docs/", "]("))


def test_no_page_names_a_place_of_one_machine() -> None:
    for path in DOCUMENTS:
        assert not re.search(r"(?<![\w.])/(?:home|work|tmp|root|Users)/", path.read_text()), (
            path.name
        )
