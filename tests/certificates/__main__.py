"""Fuzzing of a certified model: `python -m tests.certificates MODEL [TIMES [SEED]]` changes one byte
anywhere in its folder, so often, and prints after which changes the certificate still held."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.certificates.models import fuzzed


def main() -> None:
    """Exit code 1 where one held."""
    model, times, seed = (*sys.argv[1:], *("10000", "1")[len(sys.argv) - 2 :])
    with tempfile.TemporaryDirectory() as folder:
        found = fuzzed(Path(model), Path(folder) / "model", int(times), seed=int(seed))
    sys.stdout.write("\n".join([*found, f"{times} changes, {len(found)} of them held"]) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
