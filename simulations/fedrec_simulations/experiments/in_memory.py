"""Training in this process and in memory: what a quality row starts with, before it opens the test
events once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from fedrec.data.interactions import Interactions
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.federation.rounds import RoundDone, State, train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.job import limit_of
from fedrec.settings import Scenario


@dataclass(frozen=True)
class Trained:
    """A finished training, and the seconds that it took."""

    prepared: Prepared
    state: State
    seconds: float

    @property
    def model(self) -> Model:
        """The released model."""
        return self.prepared.recipe.model(self.state)


def rounds(made: Prepared, events: Interactions, seed: int) -> Iterator[RoundDone]:
    """Every round over all users, with the noise of this seed."""
    link = Loopback(events, made.steps, made.plan, Streams(seed), Ledger(limit_of(made.plan)))
    return train(made.recipe, link, made.recipe.begin())


def trained(scenario: Scenario, facts: PublicFacts, events: Interactions) -> Trained:
    """What `fedrec simulate` trains, with the noise of the scenario's seed.

    Raises SettingsError where the recipe refuses its settings."""
    made, started = prepare(scenario, facts), time.perf_counter()
    *_, last = rounds(made, events, scenario.seed)
    return Trained(made, last.state, time.perf_counter() - started)
