"""Choice of a runtime: who carries a training's messages. All give the same bytes.

A runtime takes a job and yields every step that is left of it. `loopback` plays all parts in
one loop, and needs no process. Runtimes that play real parties are offered by an installed package:

    [project.entry-points."fedrec.runtimes"]
    flower = "fedrec_simulations.runtimes.in_process:flower"

`flower` runs aggregator, server and clients with ledgers over Flower's `Grid` in this process,
`flower-ray` over Flower's simulation engine; `processes` starts each as a process of its own. Each
carries jobs of ratings, clicks and news alike. `partitions` and `ray` take partitioned data instead
(`fedrec.run.partitions`): in this process part by part, or on a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

from fedrec.data.interactions import Catalogue
from fedrec.errors import SettingsError
from fedrec.extras import require
from fedrec.run.job import Runtime, loopback

Name = Literal["loopback", "flower", "processes", "partitions", "ray"]
Backend = Literal["grid", "ray"]
GROUP = "fedrec.runtimes"
"""Entry points of runtimes that play real parties."""


@dataclass(frozen=True)
class RuntimeChoice:
    """What `fedrec simulate` was asked for: a runtime, how many clients share the users, what plays
    Flower's nodes, and Ray's address.

    In loopback, and over partitions, every user is a client. address: of a Ray cluster, "" to start
    Ray on this machine. ship: whether its nodes are sent this package. Raises SettingsError where
    there is less than one client, and where Ray is asked for and is not installed or has nothing to
    do.
    """

    runtime: Name = "loopback"
    clients: int = 2
    backend: Backend = "grid"
    address: str = ""
    ship: bool = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise SettingsError(
                f"clients must be at least 1, found {self.clients}",
                "Give --clients a positive number.",
            )
        if self.backend == "ray" and self.runtime != "flower":
            raise SettingsError(
                f"--backend ray has no effect with --runtime {self.runtime}",
                "Add --runtime flower, or leave --backend out.",
            )
        if self.runtime == "ray":
            require("cluster", "--runtime ray")
        elif self.runtime not in {"loopback", "partitions"}:
            # before anything is read, or an older run's folder replaced
            require(
                "ray" if self.backend == "ray" else "deploy",
                f"--runtime {self.runtime}" + self.backend_flag,
            )
        for flag, said in (("--address", self.address), ("--ship-package", self.ship)):
            if said and self.runtime != "ray":
                raise SettingsError(
                    f"{flag} has no effect with --runtime {self.runtime}",
                    f"Add --runtime ray, or leave {flag} out.",
                )

    @property
    def backend_flag(self) -> str:
        """The flag that chose the backend, where it is not the usual one."""
        return "" if self.backend == "grid" else f" --backend {self.backend}"

    @property
    def partitioned(self) -> bool:
        """Whether it trains over partitions, which no process holds together."""
        return self.runtime in {"partitions", "ray"}

    @property
    def described(self) -> dict[str, Any]:
        """Return the choice as an object for a run's record."""
        plain = {"runtime": self.runtime, "clients": self.clients, "backend": self.backend}
        return plain | (
            {"address": self.address, "ship": self.ship} if self.runtime == "ray" else {}
        )

    @property
    def suffix(self) -> str:
        """What tells its run folder from that of another choice."""
        if self.partitioned:
            return f"-{self.runtime}"
        backend = "" if self.backend == "grid" else f"-{self.backend}"
        return "" if self.runtime == "loopback" else f"-{self.runtime}{backend}-{self.clients}"

    def carrier(
        self, catalogue: Catalogue | None, alone: Callable[[Any], Any] = loopback
    ) -> Runtime[Any, Any]:
        """The runtime itself. catalogue: of ratings or clicks; jobs of news bring their own. alone:
        what everybody in this process is.

        Raises ValueError where it takes partitions: `partitions.run.run` carries those, and
        SettingsError where no installed package offers it."""
        if self.partitioned:
            raise ValueError(f"runtime {self.runtime!r} takes partitions")
        if self.runtime == "loopback":
            return alone
        name = self.runtime + ("-ray" if self.backend == "ray" else "")
        for point in entry_points(group=GROUP, name=name):
            runtime: Runtime[Any, Any] = point.load()(catalogue, clients=self.clients)
            return runtime
        raise SettingsError(
            f"no installed package offers the runtime {name!r}",
            f"Install one with an entry point of that name in the group {GROUP!r}.",
        )


LOOPBACK = RuntimeChoice()
"""Everybody in one process, as long as nothing else is asked for."""
