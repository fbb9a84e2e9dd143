"""What one round costs a light device: memory of its process and seconds, for every step of the
default recipe.

Of MovieLens 1M's number of items, on planted ratings; the device is a process of its own that finds
questions in a folder, not at a leaf. Its bytes are compared with those of the full client's step.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedrec.data.planted import planted, shape_of_sizes
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Terms
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.rounds import train
from fedrec.federation.wire import pack_terms, question_digest, question_header, report_digest
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe, prepare
from fedrec.run.job import run_id
from fedrec.settings import load
from fedrec_simulations.experiments.rows import table

ITEMS, USERS, EACH = 3_883, 6_040, 132
_SCRIPT = """
import hashlib, json, sys, time
from pathlib import Path
from fedrec_client.device import Device, History, Limit
from fedrec_client.device.questions import read_header
folder, header = Path(sys.argv[1]), sys.argv[2]
class Folder:
    def content(self, sha256):
        return (folder / sha256).read_bytes()
told = json.loads((folder / "history.json").read_text())
started = time.perf_counter()
mine = History(tuple(told["items"]), tuple(told["values"]))
device = Device(folder / "me", mine, limit=Limit(100.0, 1e-5), service=Folder())
terms = json.loads((folder / told["terms"]).read_text())
batch = device.answered(read_header((folder / header).read_bytes()), terms, 0)
seconds = time.perf_counter() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
digest = hashlib.sha256(batch[76:]).hexdigest()
print(json.dumps({"seconds": seconds, "mb": int(peak.split()[1]) / 1024, "body": digest}))
"""


def run(*, quick: bool) -> dict[str, Any]:
    """Rows of memory and seconds by step, and whether the report is the full client's."""
    items, users = (300, 100) if quick else (ITEMS, 400)
    scenario = load(None, ["privacy.noise=seeded"])
    dataset = planted(
        shape_of_sizes(
            users, items, users * min(EACH, items // 5), value_range=(1.0, 5.0), step=1.0
        ),
        seed=1,
    )
    data = dataset.interactions
    facts = PublicFacts(USERS, items, data.kind, data.value_range, dataset.features, Streams(1))
    prepared = prepare(scenario, facts)
    link = Loopback(
        data, prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
    )
    asked = {
        done.question.step: done.question
        for done in train(prepared.recipe, link, prepared.recipe.begin())
    }
    rows = list[dict[str, Any]]()
    with TemporaryDirectory(prefix="fedrec-device-") as folder:
        terms = Terms(
            run_id(scenario),
            client_recipe(scenario),
            data.kind,
            data.value_range,
            dataset.catalogue.item_ids,
        )
        # of the person with the most
        mine = data.users_subset(np.array([int(np.argmax(np.diff(data.user_ptr)))]))
        names = [terms.items[j] for j in mine.items]
        told = {
            "items": names,
            "values": [float(v) for v in mine.values],
            "terms": _kept(Path(folder), pack_terms(terms)),
        }
        (Path(folder) / "history.json").write_text(json.dumps(told))
        for step, question in asked.items():
            header = question_header(question, run=terms.run, plan=prepared.plan.digest())
            for array in question.public.values():
                _kept(Path(folder), array.tobytes())
            found = _measured(Path(folder), _kept(Path(folder), header))
            nobody = np.zeros((1, 16), np.uint8)
            whole = pack_reports(
                Batch(nobody, nobody, prepared.steps[step](question, mine)),
                report_digest(question_digest(header), 0),
            )
            same = hashlib.sha256(whole[76:]).hexdigest() == found.pop("body")
            rows.append(
                {
                    "step": step,
                    "download_mb": _bytes(question) / 1e6,
                    "report_bytes": len(whole),
                    "same_bytes": same,
                    **found,
                }
            )
    lines = [
        [
            r["step"],
            f"{r['mb']:.0f}",
            f"{r['seconds']:.3f}",
            f"{r['report_bytes']:,}",
            str(r["same_bytes"]),
        ]
        for r in rows
    ]
    header_row = ["step", "peak MB", "seconds", "report bytes", "bytes of the full client"]
    return {"items": items, "ratings": len(mine), "rows": rows, "table": table(header_row, lines)}


def _bytes(question: Question) -> float:
    return float(sum(array.nbytes for array in question.public.values()))


def _kept(folder: Path, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    (folder / name).write_bytes(content)
    return name


def _measured(folder: Path, header: str) -> dict[str, Any]:
    """The least time of three processes."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _SCRIPT, str(folder), header]
    done = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(3)
    ]
    return dict(min(map(json.loads, done), key=lambda row: float(row["seconds"])))
