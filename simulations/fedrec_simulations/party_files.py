"""What the parties of a rehearsal are given: settings, certificates, each client its shard, the server what is public.

    RUN/certificates/   RUN/settings/*.toml   RUN/shards/*.safetensors   RUN/public/   RUN/<party>/  (its state and its log)

Real files of a real deployment on one machine: mutual TLS on loopback, an authority of its own, free ports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrec.checkpoint import write_bytes
from fedrec.data.dataset import Catalogue
from fedrec.operations.certificates import pins, write_development_certificates
from fedrec_client.store import write_shard
from fedrec_server.public import write_public
from fedrec_simulations.in_process import limits
from fedrec_simulations.runtimes import Job, Shard, shards

ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class PartyFiles:
    """Where everything of one rehearsal lies."""

    job: Job
    catalogue: Catalogue
    clients: int

    @property
    def root(self) -> Path:
        """The run's folder, absolute: a party may look from elsewhere."""
        return self.job.folder.resolve()

    @property
    def shards(self) -> list[Shard]:
        """Who holds whom."""
        return shards(self.job.data, self.clients)

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
        """Certificates, shards, public data and the scenario: what does not depend on who listens where."""
        held = self.shards
        write_development_certificates(self._certificates, clients=[shard.name for shard in held])
        write_public(self.root / "public", self.catalogue, self.job.facts)
        for shard in held:
            write_shard(self._shard(shard), shard.events, self.catalogue.item_ids, shard.user_ids)
        self._write("scenario", self.job.scenario.model_dump(mode="json", exclude={"run"}))

    def write_aggregator(self, *, listen: str) -> None:
        """Settings of the aggregator, which listens there."""
        job, limit = self.job, self.job.limit
        seeded = {"noise": "seeded", "seed": job.scenario.seed} if job.scenario.privacy.noise == "seeded" else {"noise": "system"}
        content = {
            "listen": listen,
            "state": str(self.state("aggregator")),
            "simulation": True,
            "tls": {**self._pair("aggregator"), "client_ca": str(self._authority)},
            "clients": [{"name": shard.name} for shard in self.shards],
            "privacy": {"max_epsilon": limit.epsilon, "delta": limit.delta, "without_noise": not limit.private, **seeded},
            "limits": asdict(limits(job.data.num_users, job.data.num_items)),
        }
        self._write("aggregator", content)

    def write_server(self, *, listen: str, aggregator: str) -> None:
        """Settings of the server, whose gate listens there."""
        content = {
            "state": str(self.state("server")),
            "run": self.job.run,
            "public": {"path": str(self.root / "public"), "format": "public"},
            "gathering": {"expected_users": self.job.data.num_users, "min_clients": self.clients},
            "aggregator": {"address": aggregator, "ca": str(self._authority), **self._pair("server")},
            "superlink": {"listen": listen, **self._pair("server")},
        }
        self._write("server", content)

    def write_client(self, shard: Shard, *, gate: str, aggregator: str) -> None:
        """Settings of a client."""
        limit, pin = self.job.limit, pins((self._certificates / "aggregator.pem").read_bytes()).certificate
        pair = self._pair(f"client-{shard.name}")
        content = {
            "name": shard.name,
            "state": str(self.state(shard.name)),
            "first_user": shard.first_user,
            "keep_sent": True,  # a rehearsal is there to be looked at
            "data": {"path": str(self._shard(shard)), "format": "shard"},
            "privacy": {"max_epsilon": limit.epsilon, "delta": limit.delta, "allow_not_established": True},
            "aggregator": {"address": aggregator, "ca": str(self._authority), "pin": pin, **pair},
            "superlink": {"address": gate, "root_certificates": str(self._authority)},
        }
        self._write(shard.name, content)

    @property
    def _certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def _authority(self) -> Path:
        return self._certificates / "ca.pem"

    def _pair(self, name: str) -> dict[str, str]:
        return {"certificate": str(self._certificates / f"{name}.pem"), "key": str(self._certificates / f"{name}-key.pem")}

    def _shard(self, shard: Shard) -> Path:
        return self.root / "shards" / f"{shard.name}.safetensors"

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        write_bytes(self.settings(name), toml(content).encode())


def toml(content: Mapping[str, Any], *, table: str = "") -> str:
    """A table of plain values, lists and tables as TOML; keys that are None are left out."""
    tables = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in content.items() if key not in tables and value is not None]
    head = [f"[{table}]"] if table else []
    parts = [toml(value, table=f"{table}.{_key(key)}" if table else _key(key)) for key, value in tables.items()]
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
