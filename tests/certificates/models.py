"""Certified models to tamper with, and what a forger does to one."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.certificates.verifying import verify
from fedrec.certificates.writing import FILE, digests, own_digest, round_file
from fedrec.errors import RunError
from fedrec.federation.protocol import STATEMENT, next_hash, signed_bytes
from fedrec.operations.certificates import KeyPair
from fedrec.operations.signatures import sign
from fedrec.privacy.calibration import Plan
from fedrec.run import simulate
from fedrec.run.job import RuntimeChoice
from fedrec.serving.bundle import FILE as BUNDLE
from fedrec.settings import load
from fedrec.storage import read_json, write_json

SMALL = [
    "data.planted={users=60, items=40, events=900}",
    "data.preset=",
    "compare.als=false",
    "compare.baselines=false",
    "run.examples=2",
]
NEWS = [
    "recipe=privaterec",
    "data.format=planted-news",
    "data.preset=small",
    "news.history=12",
    "privacy.unit=user",
]
DEPLOYED = {
    "ratings": [*SMALL, "recipe=dp-bias", "privacy.evaluation_share=0.05"],
    "three-party": [
        *SMALL,
        "recipe=dp-item-item",
        "data.kind=clicks",
        "privacy.evaluation_share=0.05",
        "privacy.aggregation=three-party",
    ],
    "news": [*NEWS, "news.variant=central", "news.rounds=2"],
}


def simulated(folder: Path, keys: Sequence[str]) -> Path:
    """The model folder of a run."""
    chosen = load(None, [*keys, f"run.directory={folder}"])
    return Path(simulate.run(chosen, name="certified", quiet=True)["run_dir"]) / "model"


def deployed(folder: Path, keys: Sequence[str]) -> Path:
    """The model folder of the server, after a run of real processes over gRPC."""
    chosen = load(None, [*keys, f"run.directory={folder}"])
    done = simulate.run(chosen, name="deployed", quiet=True, choice=RuntimeChoice("processes", 2))
    assert verify(done["run_dir"]).difference == 0  # the simulation's own copy
    (certificate,) = Path(done["run_dir"]).glob(f"epsilon-*/server/runs/*/model/{FILE}")
    return certificate.parents[1]


def copied(model: Path, to: Path) -> Path:
    """A copy to tamper with."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(model, to))


def holds(model: Path) -> bool:
    """Whether its certificate holds; any other end of `verify` is a defect."""
    try:
        verify(model, up_to_rounding=True)
    except RunError:
        return False
    return True


def sealed(model: Path, **changes: Any) -> None:
    """What a forger does last: name the changed files, and write the certificate's own digest."""
    # no certificate names the bundle: one that does is refused, whatever else was forged
    files = {name: sha256 for name, sha256 in digests(model).items() if name != BUNDLE}
    content: Mapping[str, Any] = {**read_json(model / FILE), **changes, "files": files}
    write_json(model / FILE, {**content, "sha256": own_digest(content)})


def change_a_byte(model: Path, rng: random.Random) -> str:
    """Change, drop or add one byte anywhere in the folder, in place; says where. The bytes before
    are in the returned path's twin: `undo`."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    how = rng.choice(["flip", "flip", "drop", "add"])
    if how == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif how == "drop":
        del content[place]
    else:
        content.insert(place, rng.randrange(256))
    path.write_bytes(bytes(content))
    return f"{how} byte {place} of {path.name}"


def fuzzed(model: Path, to: Path, times: int, *, seed: int) -> list[str]:
    """The changes, of so many, after which the certificate still holds."""
    rng = random.Random(seed)
    before = {
        path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()
    }
    target = copied(model, to)
    survivors = list[str]()
    for _ in range(times):
        said = change_a_byte(target, rng)
        if holds(target):
            survivors.append(said)
        for name, content in before.items():
            if (target / name).read_bytes() != content:
                (target / name).write_bytes(content)
    return survivors


def parsed(model: Path) -> dict[str, Any]:
    """The certificate."""
    return dict(json.loads((model / FILE).read_text()))


def stated(model: Path, *, factor: float = 1.0, times: int = 1) -> dict[str, Any]:
    """What the ledger of an aggregator would say of the run, after two entries of others. factor:
    of each mu that it charged, over the plan's; times: how often it charged all of them."""
    content = parsed(model)
    plan = Plan.of(content["plan"])
    charges = [
        json.dumps({"run": content["run"], "release": one.name, "mu": factor * one.mu})
        for _ in range(times)
        for one in plan.releases
    ]
    entries = [hashlib.sha256(charge.encode()).hexdigest() for charge in charges]
    head = before = next_hash(next_hash("", "a"), "b")
    for entry in entries:
        head = next_hash(head, entry)
    rounds = [
        {**one, "release": content["files"][round_file(number)], "head": head}
        for number, one in enumerate(content["rounds"])
    ]
    return {
        "format": STATEMENT,
        "run": content["run"],
        "plan": plan.digest(),
        "since": {"number": 2, "head": before},
        "entries": entries,
        "charges": charges,
        "rounds": rounds,
        "head": head,
    }


def signed(said: dict[str, Any], by: KeyPair, *, shown: KeyPair | None = None) -> dict[str, str]:
    """The statement, signed with a key and shown with a certificate."""
    text = json.dumps(said)
    return {
        "statement": text,
        "signature": sign(by.key, signed_bytes(text)).hex(),
        "certificate": (shown or by).certificate.read_text(),
    }
