"""Every extra of pyproject.toml, and the tests that use its packages: `make extras`.

python tests/release/extras.py names    the extras, with commas
python tests/release/extras.py tests    runs the tests of each, a line an extra; a test that is
    skipped for a missing package fails
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS: dict[str, tuple[str, ...]] = {
    "serve": ("tests/serving_server",),
    "deploy": ("tests/server", "tests/aggregator_service"),
    "flower": ("tests/client_flower", "tests/server_flower", "tests/contracts"),
    "news": ("tests/news", "tests/api/test_news.py"),
    "plm": ("tests/encoders/test_news_models.py",),
    "store": ("tests/partitions/test_partitioned_runs.py",),
    "cluster": ("tests/partitions/test_partitioned_runs.py",),
    "postgres": ("tests/aggregator/test_postgres_outage.py", "tests/ledgers/test_ledgers_in_postgres.py"),
    "telemetry": ("tests/operations/test_tracing.py", "tests/processes/test_traces_arrive.py"),
    "ray": ("tests/simulations/test_flower_app.py",),
    "all": ("tests/readme/test_documents.py",),
    "lenskit": ("tests/api/test_lenskit.py",),
}  # fmt: skip


def names() -> list[str]:
    """As pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])


def main() -> int:
    """The exit code: 1 where a test of an extra failed, or an extra has no test here."""
    status = 0
    for extra in names():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", *TESTS[extra]],
            cwd=ROOT,
            env={**os.environ, "FEDREC_EVERY_EXTRA": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        last = re.findall(r"^.*\d+ (?:passed|failed|skipped).*$", done.stdout, re.MULTILINE)
        print(f"{extra:10} {(last or [done.stdout[-2_000:] + done.stderr[-2_000:]])[-1]}")
        if done.returncode:
            status = 1
            print(*re.findall(r"^(?:FAILED|ERROR).*$", done.stdout, re.MULTILINE), sep="\n")
    return status


if __name__ == "__main__":
    if sys.argv[1:] == ["names"]:
        print(",".join(names()))
    elif sys.argv[1:] == ["tests"]:
        sys.exit(main())
    else:
        sys.exit(__doc__)
