"""Settings of one run of ratings or news that its host gives it: whom to wait for and how long, the
run's id, and who states what of it."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.certificates.writing import Statements, nobody_states
from fedrec.federation.round_driver import Patience
from fedrec_server.gathering import Gathering


@dataclass(frozen=True)
class RunSettings:
    """gathering: whom a run waits for before it begins. patience: how long a round waits, and how
    often it is begun again. absent_s: how long it waits for a client that joined and does not
    answer. run: the run's id; None makes one, once. statements: what aggregators sign of the run,
    for its certificate."""

    gathering: Gathering
    patience: Patience
    absent_s: float = 0.0
    run: str | None = None
    statements: Statements = nobody_states
