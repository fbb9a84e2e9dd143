"""Fuzzing of a certified model: `python -m tests.certificates MODEL [TIMES [SEED]]` changes one byte
anywhere in its folder, so often, and prints after which changes the certificate still held. MODEL
is a folder, or a name in `models.DEPLOYED`: its processes run first."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.certificates.models import DEPLOYED, deployed, fuzzed


def main() -> None:
    """Exit code 1 where one held."""
    named, times, seed = (*sys.argv[1:], *("10000", "1")[len(sys.argv) - 2 :])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = deployed(place / "runs", DEPLOYED[named]) if named in DEPLOYED else Path(named)
        found = fuzzed(model, place / "model", int(times), seed=int(seed))
    sys.stdout.write("\n".join([*found, f"{times} changes, {len(found)} of them held"]) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
