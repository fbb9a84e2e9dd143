"""The runtime `loopback`: everybody in this process, in one loop."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from fedrec.federation.coding import coded
from fedrec.federation.protocol import Invitation
from fedrec.federation.rounds import Link, State, told_before, train
from fedrec.federation.wire import invitation_bytes
from fedrec.in_process.loopback import Loopback
from fedrec.in_process.three_aggregators import ThreeAggregators
from fedrec.privacy.ledger import Ledger
from fedrec.run.job import Carried, Job
from fedrec.storage import Checkpoints


def loopback(job: Job, state: State, released: Sequence[str]) -> Generator[Carried, None, None]:
    """Everybody in this process; bytes are what the same messages take on the wire, by
    `Loopback.checked` and `wire.invitation_bytes`."""
    plan = job.prepared.plan
    ledger = Ledger(job.limit)
    for name in released:
        ledger = ledger.add(plan.event(name))
    devices = Loopback(job.data, job.prepared.steps, plan, job.noise, ledger, charge=job.charge)
    link: Link = ThreeAggregators(devices) if job.scenario.privacy.shares == "real" else devices
    started, sent = time.perf_counter(), 0
    told = told_before(job.prepared.recipe, state, Checkpoints(job.folder / "checkpoints").at)
    for done in train(job.prepared.recipe, link, state):
        names = tuple(release.name for release in done.question.releases)
        down = invitation_bytes(
            Invitation(job.run, plan, done.question, coded(done.question.public, told))
        )
        seconds, up = time.perf_counter() - started, devices.bytes_up - sent
        yield Carried(
            done.question.round,
            done.question.step,
            names,
            up,
            down,
            seconds,
            done.state,
            done.answer.noise_std,
        )
        started, sent, told = time.perf_counter(), devices.bytes_up, done.question.public
