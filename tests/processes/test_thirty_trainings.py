"""A server that trains by itself, `--every`, thirty times as real processes, of which a client and
the aggregator are killed meanwhile: every training is charged once by everybody, and none is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.ledger import read_entries
from fedrec_simulations.runtimes.processes import start

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # two minutes of short trainings

TRAININGS = 30
LIMIT = epsilon_of(mu_for(5.0, 1e-5) * math.sqrt(TRAININGS + 0.5), 1e-5)
"""Thirty trainings of epsilon 5 cost less together, one more costs more."""


def test_thirty_trainings_are_each_charged_once_and_the_next_is_refused(
    play: Any, stage: Callable[..., Any]
) -> None:
    run = stage(
        data=play.job.data,
        more={
            "aggregator": {"privacy": {"max_epsilon": LIMIT}},
            "client-1": {"privacy": {"max_epsilon": 1000.0}},
            "client-2": {"privacy": {"max_epsilon": 1000.0}},
        },
    )
    start(run.files, run.company, server=("--every", "1s"))
    for number, killed in ((5, "client-1"), (12, "aggregator"), (20, "client-2")):
        run.until(
            lambda number=number: len(run.said("server", "published")) >= number,
            f"training {number}",
        )
        run.kill(killed)
    refused, *_ = run.until(lambda: run.said("server", "training-refused"), "the limit")
    assert refused["code"] == "budget"
    assert len(run.said("server", "published")) == TRAININGS
    run.company.stop()
    with closing(ReleaseLedger(run.files.state("aggregator"), limit=None)) as ledger:
        charges = ledger.spends().charges
        spent = ledger.spends().epsilon
    assert len({charge.run for charge in charges}) == TRAININGS
    assert len({(charge.run, charge.release) for charge in charges}) == len(charges)
    assert spent == pytest.approx(epsilon_of(mu_for(5.0, 1e-5) * math.sqrt(TRAININGS), 1e-5), 1e-6)
    for name in ("client-1", "client-2"):
        entries = read_entries(run.files.state(name) / "ledger.sqlite")
        named = [(entry.run, release) for entry in entries for release, _ in entry.releases]
        assert len(set(named)) == len(named)
        assert {one for one, _ in named} == {charge.run for charge in charges}
