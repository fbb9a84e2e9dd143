"""Lower bounds of pyproject.toml beside the versions that are installed for them.

`make lower-bounds` resolves the lowest version of each direct dependency and runs the tests on
them. A bound below the version that the resolver found was never tested, since another dependency
lifts it or no such release can be installed: such a bound is printed, and the exit code is 1.
"""

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def untested(pyproject: str, resolved: str) -> list[str]:
    """The bounds that are not the resolved version.

    Args:
        pyproject: The text of pyproject.toml.
        resolved: Lines `name==version`, as a resolver writes them.

    Returns:
        A sentence for each bound, sorted.
    """
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", resolved, flags=re.MULTILINE))
    versions = {canonicalize_name(name): Version(pin) for name, pin in pins.items()}
    read = tomllib.loads(pyproject)
    project = read["project"]
    extras = (*project["optional-dependencies"].values(), *read["dependency-groups"].values())
    wrong = set[str]()
    for text in (*project["dependencies"], *(text for extra in extras for text in extra)):
        requirement = Requirement(text)
        lowest = versions.get(canonicalize_name(requirement.name))
        for bound in requirement.specifier:
            if bound.operator == ">=" and lowest and Version(bound.version) != lowest:
                wrong.add(f"{requirement.name}>={bound.version}: tests run on {lowest}")
    return sorted(wrong)


if __name__ == "__main__":
    lines = untested((ROOT / "pyproject.toml").read_text(), Path(sys.argv[1]).read_text())
    print(*lines, f"{len(lines)} lower bounds are not what is tested", sep="\n")
    sys.exit(bool(lines))
