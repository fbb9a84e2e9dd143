"""Golden results: what a small training of every recipe and news variant gives, kept as digests.

    python tests/golden/run.py --check      # everything, about two minutes of CPU
    python tests/golden/run.py --write      # after a change of numbers on purpose: the commit says
                                            why
    python tests/golden/run.py --check noisy-descent/loopback additive

Bytes of floats differ between processors and builds of BLAS. Exact digests are therefore kept for
each machine's fingerprint and checked where the fingerprint is known; names, shapes, words and
sizes of numbers (within `TOLERANCE`) are checked on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# before numpy: sums depend on how many threads share them
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import llvmlite.binding
import numba
import numpy as np
import scipy
from numpy._core import _multiarray_umath
from safetensors import safe_open

from fedrec.news.variant import VARIANTS, require
from fedrec.run import simulate
from fedrec.run.job import RuntimeChoice
from fedrec.settings import load

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script's own folder comes first otherwise

from tests.torch_modules.registered import TORCH

KEPT = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-3
"""Relative, of norms and sums: another machine's last bits may round one number of a report
differently, and noise carries it on."""

RATINGS = {
    "default": ["recipe=default"],
    "default-three": [
        "recipe=default",
        "privacy.aggregation=three-party",
        "privacy.shares=real",
        "privacy.noise=seeded",
    ],
    "default-id": ["recipe=default", "model.encoder=id"],
    "published": ["recipe=published"],
    "published-id": ["recipe=published", "model.encoder=id"],
    "dp-cmf": ["recipe=dp-cmf", 'collective.sides=["metadata"]'],
    "noisy-descent": ["recipe=noisy-descent"],
    "dp-gd": ["recipe=dp-gd"],
    "am-dpsgd": ["recipe=am-dpsgd"],
    "encoder-descent": ["recipe=encoder-descent"],
    "dp-bias": ["recipe=dp-bias"],
    "clicks": ["data.kind=clicks", "recipe=default"],
    "published-clicks": ["data.kind=clicks", "recipe=published"],
    "convex-ssp": ["data.kind=clicks", "recipe=convex-ssp"],
    "dp-popularity": ["data.kind=clicks", "recipe=dp-popularity"],
    "torch": ["data.kind=clicks", *TORCH],
    "dp-item-item": ["data.kind=clicks", "recipe=dp-item-item"],
}
NEWS = {
    variant: [f"news.variant={variant}", f"privacy.unit={require(variant).unit}"]
    for variant in VARIANTS
}
NEWS["fedrec"].append("privacy.epsilon=inf")
NEWS["centralized"].append("privacy.epsilon=inf")
NEWS["central"].append("news.rounds=3")
NEWS["central-encoder"].append("news.rounds=2")
ALONE = {"default-three"}
"""Which no runtime but the loopback carries."""
CASES = [
    *(f"{name}/loopback" for name in RATINGS),
    *(f"{name}/parties" for name in RATINGS if name not in ALONE),
    *NEWS,
]
QUICK = ("default/loopback", "default/parties", "clicks/loopback", "dp-gd/loopback", "additive")
"""What the test checks; everything else is the command's."""

PARTS = {
    "model": ("model/*", "popularity.safetensors"),
    "states": ("epsilon-*/checkpoints/*",),
    "plan": ("epsilon-*/plan.json", "guarantee.json"),
    "releases": ("epsilon-*/aggregator/releases/*/*",),
    "ledgers": ("epsilon-*/*/ledger.sqlite",),
    "result": ("result.json", "metrics.jsonl"),
    "report": ("report.html",),
    "bundle": ("serving.safetensors",),
}
"""Files of a run folder, by what a digest is kept of."""
VOLATILE = {
    "seconds",
    "training_seconds",
    "peak_rss_mb",
    "run_dir",
    "time_s",
    "ledger_head",
    "nonce",
    "seconds_per_person",
}
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?|\binf\b|\bnan\b")
HEX = re.compile(r"\b[0-9a-f]{10,}\b")


def run(case: str, folder: Path) -> Path:
    """Train a case; its run folder."""
    name, _, runtime = case.partition("/")
    common = [
        "privacy.noise=seeded",
        "compare.als=false",
        "run.examples=2",
        f"run.directory={folder}",
    ]
    if name in NEWS:
        chosen = load(
            None,
            [
                "recipe=privaterec",
                "data.format=planted-news",
                "data.preset=small",
                "news.history=12",
                *common,
                *NEWS[name],
            ],
        )
        result = simulate.run(chosen, name="golden", quiet=True)
    else:
        data = ["data.planted={users=60, items=40, events=900}", "data.preset="]
        chosen = load(None, [*data, *common, *RATINGS[name]])
        result = simulate.run(
            chosen,
            name="golden",
            choice=RuntimeChoice("parties" if runtime == "parties" else "loopback"),
            quiet=True,
        )
    return Path(result["run_dir"])


def digests(folder: Path) -> dict[str, dict[str, Any]]:
    """By part: an exact digest, and what any machine has to give: words, and sizes of numbers."""
    found = {}
    for part, patterns in PARTS.items():
        contents = [
            content
            for pattern in patterns
            for path in sorted(folder.glob(pattern))
            for content in _contents(path, folder)
        ]
        if contents:
            exact = hashlib.sha256(b"\0".join(content for content, _, _ in contents)).hexdigest()[
                :16
            ]
            words = hashlib.sha256("\0".join(text for _, text, _ in contents).encode()).hexdigest()[
                :16
            ]
            numbers = [number for _, _, numbers in contents for number in numbers]
            found[part] = {
                "exact": exact,
                "words": words,
                "size": math.fsum(abs(number) for number in numbers),
                "count": len(numbers),
            }
    return found


def _contents(path: Path, folder: Path) -> Iterator[tuple[bytes, str, list[float]]]:
    """Of a file: bytes that this machine repeats, text without numbers, and the numbers."""
    name = HEX.sub("#", path.relative_to(folder).as_posix())
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            for key in sorted(file.keys()):
                array = file.get_tensor(key)
                norm = (
                    float(np.linalg.norm(array.astype(np.float64).ravel()))
                    if array.dtype.kind in "fiu"
                    else 0.0
                )
                yield array.tobytes(), f"{name} {key} {array.dtype} {array.shape}", [norm]
    elif path.suffix == ".json":
        yield _of_json(name, json.loads(path.read_text()))
    elif path.suffix == ".jsonl":
        for line in path.read_text().splitlines():
            yield _of_json(name, json.loads(line))
    elif path.suffix == ".html":
        # the scenario itself, every new key of which would show
        page = re.sub(r"<pre.*?</pre>", "", path.read_text(), flags=re.DOTALL)
        page = HEX.sub("#", re.sub(r"<(style|script|svg).*?</\1>", "", page, flags=re.DOTALL))
        yield page.encode(), NUMBER.sub("#", page), []
    elif path.suffix == ".sqlite":
        yield _of_ledger(name, path)


def _of_json(name: str, content: Any) -> tuple[bytes, str, list[float]]:
    numbers = list[float]()

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(inner) for key, inner in value.items() if key not in VOLATILE}
        if isinstance(value, list):
            return [stripped(inner) for inner in value]
        return HEX.sub("#", value) if isinstance(value, str) else value

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [shape(inner) for inner in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                numbers.append(float(value))
            return "#"
        return NUMBER.sub("#", value) if isinstance(value, str) else value

    lasting = stripped(content)
    words = json.dumps(shape(lasting), sort_keys=True)
    return json.dumps(lasting, sort_keys=True).encode(), f"{name} {words}", numbers


def _of_ledger(name: str, path: Path) -> tuple[bytes, str, list[float]]:
    """Its tables, columns and numbers of rows: what is in them holds times and random tokens."""
    database = sqlite3.connect(path)
    try:
        tables = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        rows = [
            database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table, _ in tables
        ]
    finally:
        database.close()
    text = f"{name} {tables} {rows}"
    return text.encode(), text, []


def fingerprint() -> str:
    """What decides the last bits of floats: the processor's features, and the builds that sum."""
    features = sorted(name for name, there in _multiarray_umath.__cpu_features__.items() if there)
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index,call-overload]
    cpu = llvmlite.binding.get_host_cpu_name()
    facts = [
        np.__version__,
        scipy.__version__,
        numba.__version__,
        blas.get("name"),
        blas.get("version"),
        os.environ.get("OPENBLAS_CORETYPE"),  # another kernel sums in another order
        cpu,
        *features,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def differences(
    case: str, found: dict[str, Any], kept: dict[str, Any], exact: dict[str, str] | None
) -> list[str]:
    """What of a case is not as it was, in words."""
    parts = [f"{case}: no {part}" for part in kept.keys() - found.keys()] + [
        f"{case}: new {part}" for part in found.keys() - kept.keys()
    ]
    for part in sorted(found.keys() & kept.keys()):
        now = found[part]
        then = kept[part]
        if exact is not None and exact[part] != now["exact"]:
            parts.append(f"{case}: other bytes of {part}")
        if now["words"] != then["words"] or now["count"] != then["count"]:
            parts.append(f"{case}: other names, shapes or words of {part}")
        if not math.isclose(now["size"], then["size"], rel_tol=TOLERANCE):
            parts.append(
                f"{case}: numbers of {part} are {now['size']:.6g} together, were {then['size']:.6g}"
            )
    return parts


def check(cases: Sequence[str]) -> list[str]:
    """Run the cases; every difference from what is kept."""
    kept = json.loads(KEPT.read_text())
    exact = kept["exact"].get(fingerprint())
    found = list[str]()
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            found += differences(
                case,
                digests(run(case, Path(folder))),
                kept["portable"][case],
                exact and exact.get(case),
            )
    return found


def write(cases: Sequence[str]) -> None:
    """Run the cases and keep what they give; exact digests of other machines go, as they are of
    what was."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"portable": {}, "exact": {}}
    own = kept["exact"].get(fingerprint(), {})
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            found = digests(run(case, Path(folder)))
        kept["portable"][case] = {
            part: {key: value for key, value in of.items() if key != "exact"}
            for part, of in found.items()
        }
        own[case] = {part: of["exact"] for part, of in found.items()}
    kept["exact"] = {fingerprint(): own}
    text = json.dumps(kept, indent=1, sort_keys=True)
    # a line for each part
    KEPT.write_text(re.sub(r"\{[^{}]*\}", lambda part: " ".join(part.group().split()), text) + "\n")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="golden results of every recipe and news variant")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--check", action="store_true")
    how.add_argument("--write", action="store_true")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    given = parser.parse_args()
    cases = given.cases or CASES
    if given.write:
        write(cases)
        return
    found = check(cases)
    sys.stdout.write("\n".join(found or [f"{len(cases)} cases as they were"]) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
