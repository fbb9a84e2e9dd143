"""The one-shot service of compose.yaml: certificates of a made-up authority and planted data, each
part in its party's own folder.

    python prepare.py FOLDER [PRESET]      FOLDER has a folder for each volume; what is there
                                           already stays

The authority's key stays in FOLDER/authority, which no other service mounts. Every second user is
at the one site, the others at the other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

USER = 10001
"""Of the image: every folder but the authority's becomes this user's."""

SITES = ("site-1", "site-2")
FILES = {
    "keys-aggregator": ["aggregator.pem", "aggregator-key.pem"],
    "keys-server": ["server.pem", "server-key.pem"],
    "keys-serve": ["serving.pem", "serving-key.pem"],
} | {f"keys-{site}": [f"client-{site}.pem", f"client-{site}-key.pem"] for site in SITES}


def main(root: Path, preset: str = "demo") -> None:
    """Everything, once."""
    fedrec = [sys.executable, "-m", "fedrec.cli"]
    names = [word for site in SITES for word in ("--client", site)]
    hosts = [
        "--aggregator-host",
        "aggregator",
        "--server-host",
        "server",
        "--serving-host",
        "serve",
        "--serving-host",
        "localhost",
    ]
    authority = root / "authority"
    subprocess.run([*fedrec, "certs", str(authority), *names, *hosts], check=True)
    for folder, files in FILES.items():
        for name in (*files, "ca.pem", "pins.toml"):
            shutil.copyfile(authority / name, root / folder / name)
            (root / folder / name).chmod(0o600)
    if not (root / "public" / "items.csv").exists():
        _plant(fedrec, root, preset)
    for folder in (folder for folder in root.iterdir() if folder.name != "authority"):
        for path in (folder, *folder.rglob("*")):
            if os.geteuid() == 0:
                os.chown(path, USER, USER)
        folder.chmod(0o700)


def _plant(fedrec: list[str], root: Path, preset: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([*fedrec, "data", "plant", made, "--preset", preset], check=True)
        parts = sorted(Path(made).rglob("*.parquet"))
        events = pl.concat([pl.read_parquet(part) for part in parts])
        for number, site in enumerate(SITES):
            events.filter(pl.col("user") % len(SITES) == number).write_parquet(
                root / f"data-{site}" / "ratings.parquet"
            )
        shutil.copyfile(Path(made) / "items.csv", root / "public" / "items.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
