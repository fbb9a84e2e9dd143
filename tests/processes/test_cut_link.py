"""Four hosts in network namespaces, and links that are cut in the middle of a round and mended: the
same bytes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.operations.certificates import write_development_certificates
from fedrec_client.ledger import read_entries
from fedrec_simulations.runtimes.deployment_files import PartyFiles

pytestmark = pytest.mark.processes

PARTIES = ("aggregator", "server", "client-1", "client-2")
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Hosts:
    """A network namespace for each party, all on one bridge; `name` keeps two of these apart."""

    name: str
    parties: Sequence[str] = PARTIES

    def address(self, party: str) -> str:
        return f"10.213.77.{1 + self.parties.index(party)}"

    def namespace(self, party: str) -> str:
        return f"{self.name}-{party}"

    def link(self, party: str) -> str:
        """The bridge's end of a party's cable; 15 characters at most."""
        return f"{self.name}p{self.parties.index(party)}"

    def build(self, stack: ExitStack) -> None:
        """The bridge in a namespace of its own, so that nothing of this machine's network
        changes."""
        self._namespace("bridge", stack)
        middle = self.namespace("bridge")
        _ip("-n", middle, "link", "add", "middle", "type", "bridge")
        _ip("-n", middle, "link", "set", "middle", "up")
        for party in self.parties:
            self._namespace(party, stack)
            inside = self.namespace(party)
            _ip(
                "-n",
                middle,
                "link",
                "add",
                self.link(party),
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                inside,
            )
            _ip("-n", middle, "link", "set", self.link(party), "master", "middle", "up")
            _ip("-n", inside, "address", "add", f"{self.address(party)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", inside, "link", "set", device, "up")

    def _namespace(self, party: str, stack: ExitStack) -> None:
        _ip("netns", "add", self.namespace(party))
        stack.callback(_ip, "netns", "delete", self.namespace(party))

    def cut(self, party: str) -> None:
        """Nothing goes to a party or comes from it, and nobody is told."""
        _ip("-n", self.namespace("bridge"), "link", "set", self.link(party), "down")

    def mend(self, party: str) -> None:
        _ip("-n", self.namespace("bridge"), "link", "set", self.link(party), "up")

    @contextmanager
    def inside(self, party: str) -> Iterator[None]:
        """This thread, and what it starts, on a party's host."""
        with (
            open("/proc/thread-self/ns/net") as home,
            open(f"/var/run/netns/{self.namespace(party)}") as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


class Apart(Supervisor):
    """Parties each on its host. One that dies would come back on ours: nobody dies here."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__(most_starts=1)
        self._hosts = hosts

    def start(self, name: str, verb: Sequence[str], *, log: Path, ends: bool = False) -> None:
        with self._hosts.inside(name):
            super().start(name, verb, log=log, ends=ends)


@dataclass(frozen=True)
class FilesOfHosts(PartyFiles):
    """Parties that listen on their hosts' addresses, with certificates that name these."""

    hosts: Hosts = field(kw_only=True)

    def prepare(self) -> None:
        write_development_certificates(
            self.root / "certificates",
            clients=[],
            aggregator_hosts=[self.hosts.address("aggregator")],
            server_hosts=[self.hosts.address("server")],
        )
        super().prepare()

    def write_aggregator(self, *, listen: str) -> None:
        super().write_aggregator(listen=self._moved(listen, "aggregator"))

    def write_server(self, *, listen: str, aggregator: str) -> None:
        super().write_server(listen=self._moved(listen, "server"), aggregator=aggregator)

    def _moved(self, listen: str, party: str) -> str:
        return f"{self.hosts.address(party)}:{listen.rpartition(':')[2]}"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2's ip")
    with ExitStack() as stack:
        made = Hosts(f"fr{os.getpid() % 10**7}")
        try:
            made.build(stack)
        except subprocess.CalledProcessError as failure:
            pytest.skip(f"network namespaces cannot be made here: {failure.stderr.strip()}")
        yield made


def test_links_that_are_cut_in_the_middle_of_a_round_and_mended_change_no_byte(
    play: Any, hosts: Hosts, stage: Callable[..., Any]
) -> None:
    run = stage(files=lambda *what: FilesOfHosts(*what, hosts=hosts), company=Apart(hosts))
    run.start()
    run.until(run.is_planned, "plan")
    hosts.cut("client-1")  # from the aggregator, and from the server
    run.until(lambda: run.reporters(0) == {"client-2"}, "report of the client whose link holds")
    hosts.cut("aggregator")  # from everybody
    hosts.mend("client-1")
    state = run.files.state("client-1")
    run.until(
        lambda: '"code":"unreachable"' in (state / "process.log").read_text(),
        "refusal of the client that cannot report",
    )
    assert run.reporters(0) == {"client-2"}
    # nothing is charged before the aggregator's ledger was seen
    assert not read_entries(state / "ledger.sqlite")
    hosts.mend("aggregator")
    assert list(run.states()) == play.states
    assert [line["reported"] for line in run.rounds()] == [play.job.data.num_users] * 2
    run.company.stop()
    assert run.charges() == [name for line in run.rounds() for name in line["releases"]]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
