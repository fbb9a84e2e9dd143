"""Files for the parties of a rehearsal: settings, certificates, each client its shard, the server
what is public.

    RUN/certificates/   RUN/settings/*.toml   RUN/shards/*.safetensors   RUN/public/
    RUN/<party>/   its state and its log

Real files of a real deployment on one machine: mutual TLS on loopback, an authority of its own,
free ports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedrec.federation.protocol import ReleaseEndpoint, ReportEndpoint
from fedrec.operations.certificates import PLACES, write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec.run.job import AnyJob
from fedrec.run.shards import Shard
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.storage import write_bytes
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.peers import CoreAsPeer
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.answering import AnswerBounds
from fedrec_client.requests import Answering
from fedrec_client.three_way import ThreeWay
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.gathering import Gathering

ANY_PORT = "127.0.0.1:0"


NOT_FOR_PARTIES = ("run", "compare")
"""Tables of a scenario that parties are not given: where a run folder lies, and comparisons, which
are made where the data is."""


@dataclass(frozen=True)
class Holdings:
    """Who holds what: ratings or news. formats: of `public` and of `data` in settings; client:
    further settings of every client."""

    shards: Sequence[Shard[Any]]
    num_users: int
    num_items: int
    formats: tuple[str, str]
    write_public: Callable[[Path], None]
    write_shard: Callable[[Path, Shard[Any]], None]
    aggregated: bool = True
    client: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)


def limits(users: int, items: int) -> Limits:
    """A rehearsal needs every user in every round: with fewer it would not give the loopback's
    bytes."""
    return Limits(
        min_cohort=users,
        max_users_per_sender=users,
        max_events_per_user=items + AnswerBounds().features,
        max_accumulator_bytes=2**33,
        max_shares_bytes=2**34,
        allow_not_established=True,
    )


@dataclass(frozen=True)
class PartyFiles:
    """Where everything of one rehearsal lies."""

    job: AnyJob
    holdings: Holdings

    @property
    def root(self) -> Path:
        """The run's folder, absolute: a party may look from elsewhere."""
        return self.job.folder.resolve()

    @property
    def shards(self) -> Sequence[Shard[Any]]:
        """Who holds whom."""
        return self.holdings.shards

    @property
    def of_three(self) -> bool:
        """Whether three aggregate."""
        return self.job.scenario.privacy.aggregation == "three-party"

    @property
    def aggregators(self) -> tuple[str, ...]:
        """Their names as parties, in the order of their places."""
        if not self.holdings.aggregated:
            return ()
        return (
            tuple(f"aggregator-{place}" for place in PLACES) if self.of_three else ("aggregator",)
        )

    def state(self, party: str) -> Path:
        """A party's own folder."""
        return self.root / party

    def settings(self, party: str) -> Path:
        """A party's settings file."""
        return self.root / "settings" / f"{party}.toml"

    def log(self, party: str) -> Path:
        """What a party says."""
        return self.state(party) / "process.log"

    def prepare(self) -> None:
        """Certificates, shards, public data and the scenario: what does not depend on who listens
        where."""
        held = self.shards
        write_development_certificates(
            self._certificates,
            clients=[shard.name for shard in held],
            three_aggregators=self.of_three,
        )
        write_pins(self._certificates)
        self.holdings.write_public(self.root / "public")
        self.write_shards()
        self._write(
            "scenario", self.job.scenario.model_dump(mode="json", exclude=set(NOT_FOR_PARTIES))
        )

    def write_shards(self) -> None:
        """Each client's data, in place of what it had before."""
        for shard in self.shards:
            self.holdings.write_shard(self._shard(shard), shard)

    def write_aggregator(self, *, listen: str) -> None:
        """Settings of the aggregator, which listens there."""
        self._write("aggregator", self._of_aggregator("aggregator", listen))

    def write_three(self, addresses: Sequence[str]) -> None:
        """Settings of three aggregators, which listen there and know each other."""
        for own, party in enumerate(self.aggregators):
            peers = [
                {"place": i + 1, "address": address}
                for i, address in enumerate(addresses)
                if i != own
            ]
            three = {"place": own + 1, "peers": peers}
            self._write(party, self._of_aggregator(party, addresses[own]) | {"three_party": three})

    def _of_aggregator(self, party: str, listen: str) -> dict[str, Any]:
        job = self.job
        limit = self.job.limit
        seeded = (
            {"noise": "seeded", "seed": job.scenario.seed}
            if job.scenario.privacy.noise == "seeded"
            else {"noise": "system"}
        )
        return {
            "listen": listen,
            "state": str(self.state(party)),
            "pins": self._pins,
            "metrics": ANY_PORT,
            "simulation": True,
            "tls": {**self._pair(party), "client_ca": str(self._authority)},
            "clients": [{"name": shard.name} for shard in self.shards],
            "privacy": {
                "max_epsilon": limit.epsilon,
                "delta": limit.delta,
                "without_noise": not limit.private,
                **seeded,
            },
            "limits": asdict(limits(self.holdings.num_users, self.holdings.num_items)),
        }

    def write_server(self, *, listen: str, aggregator: str) -> None:
        """Settings of the server, which listens there for clients. aggregator: where it listens,
        or all three of them, with commas."""
        content = {
            "state": str(self.state("server")),
            "pins": self._pins,
            "metrics": ANY_PORT,
            "run": self.job.run,
            "rehearsal": self.job.scenario.privacy.noise == "seeded",
            "public": {"path": str(self.root / "public"), "format": self.holdings.formats[0]},
            # what a simulation reports of each round is read off them
            "rounds": {"checkpoints": 0},
            "gathering": {
                "expected_users": self.holdings.num_users,
                "min_clients": len(self.shards),
            },
            **self._aggregator(aggregator, "server"),
            "link": {
                "listen": listen,
                **self._pair("server"),
                "client_ca": str(self._authority),
            },
        }
        self._write("server", content)

    def write_client(self, shard: Shard[Any], *, server: str, aggregator: str) -> None:
        """Settings of a client."""
        limit = self.job.limit
        own = f"client-{shard.name}"
        content = {
            "name": shard.name,
            "state": str(self.state(shard.name)),
            "pins": self._pins,
            "metrics": ANY_PORT,
            "keep_sent": True,  # a rehearsal is there to be looked at
            "data": {"path": str(self._shard(shard)), "format": self.holdings.formats[1]},
            "privacy": {
                "max_epsilon": limit.epsilon,
                "delta": limit.delta,
                "allow_not_established": True,
                **self.holdings.privacy,
            },
            **self._aggregator(aggregator, own),
            **self.holdings.client,
            "server": {
                "address": server,
                "ca": str(self._authority),
                **self._pair(own),
            },
        }
        self._write(shard.name, content)

    def _aggregator(self, address: str, party: str) -> dict[str, Any]:
        if not self.holdings.aggregated:
            return {}
        ways = [
            {"address": each, "ca": str(self._authority), **self._pair(party)}
            for each in address.split(",")
        ]
        return {"aggregators": ways} if self.of_three else {"aggregator": ways[0]}

    @property
    def _certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def _pins(self) -> str:
        return str(self._certificates / "pins.toml")

    @property
    def _authority(self) -> Path:
        return self._certificates / "ca.pem"

    def _pair(self, name: str) -> dict[str, str]:
        return {
            "certificate": str(self._certificates / f"{name}.pem"),
            "key": str(self._certificates / f"{name}-key.pem"),
        }

    def _shard(self, shard: Shard[Any]) -> Path:
        return self.root / "shards" / f"{shard.name}.safetensors"

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        write_bytes(self.settings(name), toml(content).encode())


def toml(content: Mapping[str, Any], *, table: str = "") -> str:
    """A table of plain values, lists and tables as TOML; keys that are None are left out."""
    tables = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in content.items()
        if key not in tables and value is not None
    ]
    head = [f"[{table}]"] if table else []
    parts = [
        toml(value, table=f"{table}.{_key(key)}" if table else _key(key))
        for key, value in tables.items()
    ]
    return "\n".join([*head, *lines, "", *parts])


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)  # numbers: "inf" is TOML's word too


SLOWEST_ROUND_S = 3_600.0
"""Nobody is waited for here: a node answers while its message is delivered."""

Aggregated = tuple[ReleaseEndpoint, Callable[[str], ReportEndpoint | ThreeWay]]


class Parties(Protocol):
    """Real parties of one job, and what they keep; steps are what the job's runtime yields."""

    @property
    def job(self) -> AnyJob:
        """What they train."""

    @property
    def holdings(self) -> Holdings:
        """Who holds what."""

    def check(self) -> None:
        """Raises SettingsError on a scenario that cannot run between real parties."""

    def participant(
        self, shard: Shard[Any], aggregated: Aggregated | None, stack: ExitStack
    ) -> Answering:
        """A client with its ledger under the job's folder, where it goes on after an
        interruption."""

    def serve(
        self, endpoint: ReleaseEndpoint | None, clients: ClientBroadcast, gathering: Gathering
    ) -> Iterator[Any]:
        """The server's rounds in this process, from what the folder holds on."""

    def kept(self, server: Path) -> Callable[[], Iterator[Any]]:
        """What a server's folder tells of steps, each time those that were not told before."""

    def finished(self, server: Path) -> Iterator[Any]:
        """What is still to be told when the server has finished."""


def played(
    parties: Parties, stack: ExitStack
) -> tuple[ReleaseEndpoint | None, Sequence[Answering]]:
    """All parties in this process, as long as `stack`: the aggregator, where one is needed, and the
    clients."""
    held = parties.holdings
    aggregated = (
        aggregation(parties.job, held.num_users, held.num_items, stack) if held.aggregated else None
    )
    return aggregated and aggregated[0], [
        parties.participant(shard, aggregated, stack) for shard in held.shards
    ]


def aggregation(job: AnyJob, users: int, items: int, stack: ExitStack) -> Aggregated:
    """The aggregator, or three of them as one, for so many users and items; and the endpoint of
    each client by name.

    Three protect nobody from the one process that plays them.
    """
    bounds = limits(users, items)
    if job.scenario.privacy.aggregation == "three-party":
        return _three(job, bounds, stack)
    ledger = stack.enter_context(closing(ReleaseLedger(job.folder / "aggregator", limit=job.limit)))
    aggregator = Aggregator(ledger, bounds, noise=job.noise)
    return aggregator, aggregator.client_endpoint


def _three(job: AnyJob, bounds: Limits, stack: ExitStack) -> Aggregated:
    names = [name.encode() for name in PLACES]
    cores = list[ThreePartyAggregator]()

    def sleep(seconds: float) -> None:
        for core in cores:
            core.tick()

    for place, name in enumerate(PLACES):
        ledger = stack.enter_context(
            closing(ReleaseLedger(job.folder / f"aggregator-{name}", limit=job.limit))
        )
        peers = {i: CoreAsPeer(cores, i, caller=place) for i in range(3) if i != place}
        cores.append(
            ThreePartyAggregator(
                ledger, bounds, noise=job.noise, place=place, names=names, peers=peers, sleep=sleep
            )
        )
    return ThreeEndpoints(cores), lambda client: ThreeWay(
        [core.share_endpoint(client) for core in cores], names, sleep=sleep
    )
