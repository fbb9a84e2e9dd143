"""Demo from a finished run to a private recommendation in one command: a server, a made-up reader,
a question, and what of it left."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.cli.recommend import (
    Choices,
    DeviceOptions,
    as_dict,
    asked,
    beside,
    facts,
    plain,
    titles,
)
from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError
from fedrec.serving.bundle import FILE, Bundle, read
from fedrec.storage import read_json
from fedrec_client.clicks import Clicks
from fedrec_client.explaining import explained

_READ = 8  # items of the example: enough for a taste, few enough to be read in the terminal
_START_S = 60.0
"""For the server to listen: far more than loading a bundle takes."""


def run(folder: Path | None, device: DeviceOptions, choices: Choices) -> tuple[str, dict[str, Any]]:
    """Text and JSON of a question about `folder`, or about the newest run in ./runs. Its ledger is
    its own, and leaves with it.

    Raises RunError where there is no run to be served, or the server does not start.
    """
    served = served_run(folder)
    bundle = read(served / FILE)
    clicks = example_history(bundle)
    company = Supervisor(most_starts=1)
    with tempfile.TemporaryDirectory(prefix="fedrec-demo-") as scratch:
        try:
            url = _started(company, served, Path(scratch))
            return _shown(
                bundle, clicks, replace(device, server=url, state=Path(scratch) / "device"), choices
            )
        finally:
            company.stop()


def served_run(folder: Path | None) -> Path:
    """The given run, or the newest of ./runs, with a bundle in it."""
    if folder is not None:
        if not (folder / FILE).is_file():
            raise RunError(
                f"{folder} has no {FILE}", "Give a run folder that `fedrec simulate` finished."
            )
        return folder
    found = sorted(Path("runs").glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RunError(
            "no run in ./runs can be served", "Make one: `make demo`, or fedrec simulate planted."
        )
    return found[-1].parent


def example_history(bundle: Bundle) -> Clicks:
    """A made-up reader of one taste: every second of the items most like one that is well liked by
    all."""
    V = bundle.items.astype(np.float64)
    V = (V - V.mean(0)) / np.maximum(np.linalg.norm(V - V.mean(0), axis=1, keepdims=True), 1e-12)
    liked = int(np.argsort(-bundle.bias, kind="stable")[0])
    alike = np.argsort(-(V @ V[liked]), kind="stable")[: 2 * min(_READ, bundle.about.history)]
    return Clicks.of([bundle.ids[int(row)] for row in alike[::2]])


def _started(company: Supervisor, served: Path, scratch: Path) -> str:
    """gRPC address of a server process of its own."""
    settings = scratch / "serving.toml"
    told = scratch / "serving.json"
    settings.write_text(f"state = {str(scratch)!r}\n")
    verb = [
        "serve",
        str(served.resolve()),
        "--demo",
        "--settings",
        str(settings),
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "",
    ]
    company.start("server", verb, log=scratch / "serving.log")
    where: str = company.wait_for(
        lambda: read_json(told)["grpc"] if told.exists() else None,
        what="server that listens",
        timeout_s=_START_S,
    )
    return f"grpc://{where}"


def _shown(
    bundle: Bundle, clicks: Clicks, device: DeviceOptions, choices: Choices
) -> tuple[str, dict[str, Any]]:
    with replace(device, via="server").open() as recommender:
        private = asked(recommender, clicks, replace(choices, last=False))
        lines = explained(private, recommender)
        again = recommender.recommend(
            clicks,
            k=choices.k,
            categories=choices.categories,
            candidates=choices.candidates,
            keep_seen=choices.keep_seen,
        )
        exact = recommender.local(
            clicks, k=choices.k, categories=choices.categories, keep_seen=choices.keep_seen
        )
        both = {item.id for item in private.items} & {item.id for item in exact.items}
        content = as_dict(private, recommender, choices)
        content["exact"] = [item.id for item in exact.items]
        content["in_both"] = len(both)
        content["repeated_fresh"] = again.fresh
        places = {item: row for row, item in enumerate(bundle.ids.all())}
        parts = [
            "A made-up reader. Read, oldest first, and known to this device alone:",
            *(f"      {plain(bundle.titles[places[click.item]])}" for click in clicks.events),
            "",
            (
                f"{'':4}  {'recommended, from what left this device':60}  recommended by an "
                "exact ranking on the device"
            ),
            *beside(titles(private), titles(exact)),
            f"{len(both)} of {len(private.items)} are in both lists.",
            "",
            *facts(private, recommender),
            (
                "again    the same question sent the same bytes and cost "
                f"{'nothing' if not again.fresh else 'once more'}"
            ),
            "",
            lines,
        ]
    return "\n".join(parts), content
