"""kill -9 of leaves and a root of three parties, in the middle of a round and after it was released:
the loopback's bytes, and one charge at each root."""

import os
import signal
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import FedRecError
from fedrec.federation.protocol import Invitation, Phase
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, healthy
from fedrec.transport.channel import Access
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_simulations.runtimes.deployment_files import toml
from fedrec_simulations.runtimes.processes import free_addresses
from tests.aggregator_service.conftest import QUICK
from tests.aggregator_service.three_trees import (
    LEAVES,
    NAMES,
    ROOTS,
    participants,
    settings_of,
    write_certificates,
)
from tests.sharing.test_three_cores import PUBLISHED
from tests.sharing.three_cores import RUN, USERS, Cores, federation
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes


class Trees:
    """Nine processes that are started again where they listened."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.certificates = folder / "certificates"
        write_certificates(self.certificates)
        self.addresses = dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))
        self.company = Supervisor(most_starts=9)
        stack.callback(self.company.stop)
        for name in (*LEAVES, *ROOTS):
            settings = folder / f"{name}.toml"
            settings.write_text(toml(settings_of(self.certificates, folder, name, self.addresses)))
            verb = ["aggregator", "--settings", str(settings)]
            self.company.start(name, verb, log=folder / f"{name}.log")
        for name in NAMES:
            until(lambda name=name: self.serves(name), name, pause_s=0.2)  # type: ignore[misc]

    def access(self, name: str) -> Access:
        return Access(
            self.addresses[name],
            ca=f"{self.certificates}/ca.pem",
            certificate=f"{self.certificates}/server.pem",
            key=f"{self.certificates}/server-key.pem",
        )

    def serves(self, name: str) -> bool:
        try:
            return healthy(self.access(name))
        except FedRecError:
            return False

    def kill(self, name: str) -> None:
        before = self.company.pid(name)
        os.kill(before, signal.SIGKILL)
        self.company.wait_for(
            lambda: self.company.pid(name) != before or None,
            what=f"another process of {name}",
            timeout_s=HANG_S,
        )
        until(lambda: self.serves(name), name, pause_s=0.2)


def test_killed_leaves_and_roots_cost_attempts_and_the_round_is_released_once(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        trees = Trees(tmp_path, stack)
        cores = stack.enter_context(closing(Cores(tmp_path / "unused")))
        made = federation(cores, stack, *PUBLISHED, clients=2)
        clients = participants(made, trees.certificates, tmp_path, trees.addresses, stack)
        there = replace(made, participants=clients)
        question, plan = there.first, there.prepared.plan

        def joined() -> bool:
            return not any(answer.refusal for answer in there.join(there.terms))

        until(joined, "that leaves hear of their roots' ledgers", pause_s=0.2)
        endpoints = [
            stack.enter_context(RemoteReleaseEndpoint(trees.access(root), retry=QUICK))
            for root in ROOTS
        ]
        endpoint = ThreeEndpoints(endpoints)
        endpoint.open_run(RUN, plan)
        for name in ("b-2", "1"):
            assert endpoint.open_round(there.opening(question, quorum=USERS)).phase is Phase.OPEN
            clients[0].answer(Invitation(RUN, plan, question, quorum=USERS))
            trees.kill(name)
            until(joined, "that leaves hear of their roots' ledgers", pause_s=0.2)
        patience = Patience(round_s=HANG_S, pause_s=0.05, min_share=1.0)
        link = AggregatedLink(there.terms, plan, endpoint, there, patience)
        link.num_users = USERS
        released = pack_release(link.answer(question))
        assert released == pack_release(made.loopback.answer(question))
        for name in ("a-1", "2"):
            trees.kill(name)
        until(joined, "that leaves hear of their roots' ledgers", pause_s=0.2)
        assert pack_release(link.answer(question)) == released
        trees.company.stop()
        for root in ROOTS:
            with closing(ReleaseLedger(tmp_path / f"aggregator-{root}", limit=None)) as kept:
                assert sorted(charge.release for charge in kept.spends().charges) == sorted(
                    spec.name for spec in question.releases
                )
                status = kept.released(RUN, question.round)
                assert status is not None
                assert (status.reported, status.attempt > 1) == (USERS, True)
