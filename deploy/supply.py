"""Supply chain of the image: a lock file with hashes, and a bill of materials made of it.

    python deploy/supply.py lock        writes deploy/requirements.lock by pip's own resolution
    python deploy/supply.py sbom FILE   writes a CycloneDX document of the lock

The lock names every package of the extra `deploy` at the version of constraints.txt, with the
SHA-256 of its wheel for each platform; the image installs these bytes and no others. What Flower
holds back is taken as new as it is, since nothing of `deploy` is Flower's: `make newest` tests
these. `make audit` gives the lock to pip-audit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy" / "requirements.lock"
PLATFORMS = ("x86_64", "aarch64")
TAGS = ("manylinux_2_17", "manylinux2014", "manylinux_2_27", "manylinux_2_28", "manylinux_2_34")
_LINE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+) (?P<hashes>--hash.*)$", re.MULTILINE)


def wanted() -> list[str]:
    """What pip resolves: the package's own requirements and those of `deploy`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list[str]()
    extras = ["deploy"]
    while extras:
        for each in project["optional-dependencies"][extras.pop()]:
            own = re.fullmatch(r"fedrec\[([\w,]+)\]", each)
            extras += own[1].split(",") if own else []
            found += [] if own else [each]
    return [*project["dependencies"], *found]


def held_by_flower() -> set[str]:
    """Names of packages that Flower bounds from above, and of those that need one of the same
    major version."""
    bounded = {_name(re.split(r"[^\w.-]", each)[0]) for each in metadata.requires("flwr") or []}
    return bounded | {"grpcio-reflection", "grpcio-tools"}


def free_of_flower() -> list[str]:
    """The lines of constraints.txt without what Flower bounds."""
    held = held_by_flower()
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if _name(line.partition("==")[0]) not in held]


def lock() -> str:
    """The lock file. Raises CalledProcessError where pip cannot resolve."""
    found = dict[tuple[str, str], set[str]]()
    for platform in PLATFORMS:
        with tempfile.TemporaryDirectory() as folder:
            pins = Path(folder) / "constraints.txt"
            pins.write_text("\n".join(free_of_flower()))
            report = Path(folder) / "report.json"
            tags = [word for tag in TAGS for word in ("--platform", f"{tag}_{platform}")]
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
            command += ["--ignore-installed", "--only-binary", ":all:", "--python-version", "3.11"]
            command += ["--target", folder, "--report", str(report), *tags]
            command += ["--constraint", str(pins)]
            subprocess.run([*command, *wanted()], check=True)
            for each in json.loads(report.read_text())["install"]:
                key = _name(each["metadata"]["name"]), each["metadata"]["version"]
                digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
                found.setdefault(key, set()).add(digest)
    lines = [
        f"{name}=={version} " + " ".join(f"--hash=sha256:{each}" for each in sorted(digests))
        for (name, version), digests in sorted(found.items())
    ]
    return "# By `python deploy/supply.py lock`.\n" + "\n".join(lines) + "\n"


def locked() -> list[tuple[str, str, list[str]]]:
    """Name, version and SHA-256 of wheels of everything in the lock file."""
    return [
        (line["name"], line["version"], re.findall(r"sha256:([0-9a-f]{64})", line["hashes"]))
        for line in _LINE.finditer(LOCK.read_text())
    ]


def sbom() -> dict[str, Any]:
    """A CycloneDX document of the lock file."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("version", "")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "fedrec", "version": version or "0"}
        },
        "components": [
            {
                "type": "library",
                "name": name,
                "version": released,
                "purl": f"pkg:pypi/{name}@{released}",
                "bom-ref": f"pkg:pypi/{name}@{released}",
                "hashes": [{"alg": "SHA-256", "content": each} for each in digests],
            }
            for name, released, digests in locked()
        ],
    }


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        LOCK.write_text(lock())
    elif sys.argv[1:2] == ["sbom"]:
        Path(sys.argv[2]).write_text(json.dumps(sbom(), indent=1) + "\n")
    else:
        sys.exit(__doc__)
