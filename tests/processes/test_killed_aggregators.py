"""kill -9 of each of three aggregators, in the middle of a round and after it was released: the
same bytes, and one charge."""

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import FedRecError
from fedrec.federation.protocol import Invitation, Phase
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.federation.wire import pack_release
from fedrec.operations.certificates import PLACES, write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, healthy
from fedrec.transport.channel import Access
from fedrec.transport.three_party_client import RemoteShareEndpoint
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.three_way import ThreeWay, names_of
from fedrec_simulations.runtimes.deployment_files import toml
from fedrec_simulations.runtimes.processes import free_addresses
from tests.aggregator_service.conftest import QUICK
from tests.aggregator_service.test_three_service import content
from tests.sharing.three_cores import PROMISE, RUN, USERS, Cores, federation
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes


class Aggregators:
    """Three processes that are started again where they listened."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.company = Supervisor(most_starts=9)
        self.addresses = free_addresses(3)
        write_development_certificates(
            folder / "certificates", clients=["client-1", "client-2"], three_aggregators=True
        )
        self.pins = read_pins(write_pins(folder / "certificates"))
        stack.callback(self.company.stop)
        for place in (1, 2, 3):
            settings = folder / f"aggregator-{place}.toml"
            settings.write_text(
                toml(content(folder / "certificates", folder, place, self.addresses))
            )
            verb = ["aggregator", "--settings", str(settings)]
            self.company.start(f"aggregator-{place}", verb, log=folder / f"aggregator-{place}.log")
        for place in range(3):
            self.wait_for(place, there=True)

    def access(self, place: int, who: str) -> Access:
        certificates = self.folder / "certificates"
        pair = {
            "certificate": str(certificates / f"{who}.pem"),
            "key": str(certificates / f"{who}-key.pem"),
        }
        return Access(
            self.addresses[place], pin=self.pins[f"fedrec:aggregator:{PLACES[place]}"], **pair
        )

    def serves(self, place: int) -> bool:
        try:
            return healthy(self.access(place, "server"))
        except FedRecError:
            return False

    def wait_for(self, place: int, *, there: bool) -> None:
        self.company.wait_for(
            lambda: True if self.serves(place) is there else None,
            what=f"aggregator {place}",
            timeout_s=HANG_S,
        )

    def kill(self, place: int) -> None:
        before = self.company.pid(f"aggregator-{place + 1}")
        os.kill(before, signal.SIGKILL)
        self.company.wait_for(
            lambda: self.company.pid(f"aggregator-{place + 1}") != before or None,
            what="another process",
            timeout_s=HANG_S,
        )
        self.wait_for(place, there=True)


def test_whichever_aggregator_is_killed_whenever_the_round_is_released_once_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        three = Aggregators(tmp_path, stack)
        sets = ("recipe=published", "model.steps=1", "model.encoder=id", "model.dimension=2")
        made = federation(
            stack.enter_context(closing(Cores(tmp_path / "unused"))), stack, *sets, clients=2
        )
        participants = []
        for each in made.participants:
            ledger = stack.enter_context(
                closing(ClientLedger(tmp_path / each.name / "ledger.sqlite", limit=PROMISE))
            )
            ways = [three.access(place, f"client-{each.name}") for place in range(3)]
            endpoints = [stack.enter_context(RemoteShareEndpoint(way, retry=QUICK)) for way in ways]
            way = ThreeWay(
                endpoints, names_of([three.pins[f"fedrec:aggregator:{name}"] for name in PLACES])
            )
            participants.append(
                Participant(each.name, each.users, ledger, way, tmp_path / each.name)
            )
        made.participants = participants
        question = made.first
        plan = made.prepared.plan
        made.join(made.terms)
        ways = [
            stack.enter_context(RemoteReleaseEndpoint(three.access(place, "server"), retry=QUICK))
            for place in range(3)
        ]
        endpoint = ThreeEndpoints(ways)
        endpoint.open_run(RUN, plan)
        for place in range(3):
            assert endpoint.open_round(made.opening(question, quorum=USERS)).phase is Phase.OPEN
            answer = participants[0].answer(Invitation(RUN, plan, question, quorum=USERS))
            assert (answer.refusal, answer.accepted) == ("", answer.users)
            three.kill(place)
        link = AggregatedLink(
            made.terms, plan, endpoint, made, Patience(round_s=HANG_S, pause_s=0.05, min_share=1.0)
        )
        link.num_users = USERS
        released = pack_release(link.answer(question))
        for place in range(3):
            three.kill(place)
        assert (
            pack_release(link.answer(question))
            == released
            == pack_release(made.loopback.answer(question))
        )
        three.company.stop()
        for place in (1, 2, 3):
            with closing(ReleaseLedger(tmp_path / f"aggregator-{place}", limit=None)) as kept:
                assert sorted(charge.release for charge in kept.spends().charges) == sorted(
                    spec.name for spec in question.releases
                )
