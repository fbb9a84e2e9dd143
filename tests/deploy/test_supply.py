"""Lock file and bill of materials of the image: everything that the extra `deploy` needs, at the
versions that are tried together, with hashes."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def supply() -> ModuleType:
    specification = importlib.util.spec_from_file_location("supply", ROOT / "deploy" / "supply.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_lock_has_every_requirement_of_the_image_and_what_these_need(
    supply: ModuleType,
) -> None:
    known = {name for name, _, _ in supply.locked()}
    wanted = [supply._name(re.split(r"[^\w.-]", each)[0]) for each in supply.wanted()]
    assert len(wanted) > 10
    while wanted:
        name = wanted.pop()
        assert name in known, f"run `make lock`: {name} is missing"
        known_of = metadata.requires(name) or []
        wanted += [
            need
            for line in known_of
            if ";" not in line
            and (need := supply._name(re.split(r"[^\w.-]", line)[0])) not in known
        ]


def test_the_lock_has_the_versions_that_are_tried_together_with_hashes(supply: ModuleType) -> None:
    lines = supply.free_of_flower()
    tried = {supply._name(name): version for name, _, version in (x.partition("==") for x in lines)}
    for name, version, digests in supply.locked():
        assert tried.get(name, version) == version, f"run `make lock`: {name}"
        assert digests
    uncommented = [x for x in supply.LOCK.read_text().splitlines() if not x.startswith("#")]
    assert len(uncommented) == len(supply.locked())


def test_what_flower_bounds_is_no_older_in_the_lock_and_flower_is_not_there(
    supply: ModuleType,
) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    beside = {supply._name(x.partition("==")[0]): x.partition("==")[2] for x in lines}
    locked = {name: version for name, version, _ in supply.locked()}
    assert "flwr" not in locked
    held = {name for name in supply.held_by_flower() if name in locked and name in beside}
    assert {"fastapi", "starlette", "uvicorn", "protobuf"} <= held
    for name in held:
        assert Version(locked[name]) >= Version(beside[name]), name


def test_the_bill_of_materials_names_every_locked_package_once(supply: ModuleType) -> None:
    document = supply.sbom()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    names = [each["purl"] for each in document["components"]]
    assert len(set(names)) == len(names) == len(supply.locked())
    assert all(each["hashes"] for each in document["components"])


def test_an_audit_that_could_not_ask_about_a_package_fails() -> None:
    """pip-audit says "No known vulnerabilities found" and ends with 0 where no advisory service was
    reached, unless it is told to be strict."""
    recipe = re.search(r"^audit:\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    (run,) = [line.split() for line in recipe[1].splitlines() if "/pip-audit" in line]
    assert {"--strict", "--require-hashes", "deploy/requirements.lock"} <= set(run)
