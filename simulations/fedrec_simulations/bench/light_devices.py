"""Ten thousand light devices in one round: each fetches the question over HTTP, charges its ledger
on disk, and posts its report.

Planted people, one device each, all in this process and eight at a time, against an aggregator's
real endpoint on loopback. The first round of the default recipe is released with seeded noise and
compared with the loopback's: equal, and every device was counted once.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrec.data.planted import planted, shape_of_sizes
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.protocol import Invitation, Opening, Phase, Terms
from fedrec.federation.wire import pack_release, question_digest, question_header
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe, prepare
from fedrec.run.job import run_id
from fedrec.settings import load
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.device_server import device_endpoint
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.settings_tables import DevicesTable
from fedrec_client.device import Device, History, Limit, Service
from fedrec_server.device_clients import Publication

DEVICES, ITEMS, EACH, AT_ONCE = 10_000, 300, 20, 8


def run(*, quick: bool) -> dict[str, Any]:
    """Seconds and counts. quick: forty devices."""
    users = 40 if quick else DEVICES
    scenario = load(None, ["privacy.noise=seeded"])
    dataset = planted(
        shape_of_sizes(users, ITEMS, users * EACH, value_range=(1.0, 5.0), step=1.0), seed=1
    )
    data = dataset.interactions
    prepared = prepare(
        scenario,
        PublicFacts(users, ITEMS, data.kind, data.value_range, dataset.features, Streams(1)),
    )
    question, guarantee = prepared.recipe.ask(prepared.recipe.begin()), prepared.plan.guarantee
    assert question is not None
    expected = pack_release(
        Loopback(data, prepared.steps, prepared.plan, Streams(1), Ledger(guarantee)).answer(
            question
        )
    )
    terms = Terms(
        run_id(scenario),
        client_recipe(scenario),
        data.kind,
        data.value_range,
        dataset.catalogue.item_ids,
    )
    header = question_header(question, run=terms.run, plan=prepared.plan.digest())
    with (
        TemporaryDirectory(prefix="fedrec-devices-") as name,
        closing(ReleaseLedger(Path(name) / "ledger", limit=guarantee)) as ledger,
    ):
        folder = Path(name)
        core = Aggregator(ledger, Limits(min_cohort=1), noise=Streams(1))
        core.open_run(terms.run, prepared.plan)
        Publication(folder / "published").publish(
            terms, Invitation(terms.run, prepared.plan, question, quorum=users)
        )
        core.open_round(
            Opening(
                terms.run, question.round, header, question_digest(header), 3_600.0, quorum=users
            )
        )
        table = DevicesTable(
            listen="127.0.0.1:0", content=str(folder / "published"), any_device=True
        )
        with device_endpoint(core, table) as address, ThreadPoolExecutor(AT_ONCE) as devices:

            def take_part(user: int) -> bool:
                own = slice(int(data.user_ptr[user]), int(data.user_ptr[user + 1]))
                history = History(
                    tuple(terms.items[j] for j in data.items[own]),
                    tuple(map(float, data.values[own])),
                )
                limit = Limit(guarantee.epsilon, guarantee.delta)
                device = Device(
                    folder / f"device-{user}",
                    history,
                    limit=limit,
                    service=Service(f"http://{address}"),
                )
                try:
                    return device.take_part()
                finally:
                    device.ledger.close()

            started = time.perf_counter()
            took_part = sum(devices.map(take_part, range(users)))
            seconds = time.perf_counter() - started
        status = core.close(terms.run, question.round)
        same = (
            status.phase is Phase.RELEASED and core.release(terms.run, question.round) == expected
        )
    row = {
        "devices": users,
        "took_part": took_part,
        "counted": status.reported,
        "same_release": same,
    }
    return {**row, "seconds": seconds, "devices_per_second": users / seconds}
