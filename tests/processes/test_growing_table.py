"""A server that trains by itself, `--every`, on a table that grows: each training is charged on top
of all before, those who came later take part, and past the limit nothing is released."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from fedrec.run.shards import Shard
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_simulations.runtimes.processes import start

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # a table that grows

LIMIT = 8.5
"""Two trainings of epsilon 5 cost less together, three cost more."""


def test_a_standing_server_on_a_growing_table_trains_until_its_limit(
    play: Any, stage: Callable[..., Any]
) -> None:
    everybody = play.job.data
    at_first = everybody.num_users * 2 // 3
    run = stage(
        data=everybody.users_subset(np.arange(at_first)),
        more={
            "aggregator": {
                "privacy": {"max_epsilon": LIMIT},
                "limits": {"max_users_per_sender": everybody.num_users},
            },
            "client-1": {"privacy": {"max_epsilon": 100.0}},
            "client-2": {"privacy": {"max_epsilon": 100.0}},
        },
    )
    start(run.files, run.company, server=("--every", "5s"))
    run.until(lambda: run.said("server", "round-released", round=1), "the first training")
    last = run.files.shards[-1]
    grown = everybody.users_subset(np.arange(last.first_user, everybody.num_users))
    more = Shard(last.name, last.first_user, grown)
    run.files.holdings.write_shard(run.files._shard(more), more)
    refused, *_ = run.until(lambda: run.said("server", "training-refused"), "the limit")
    assert refused["code"] == "budget"
    assert len(run.said("server", "published")) == 2
    released = run.said("server", "round-released")
    assert [line["round"] for line in released] == [0, 1, 0, 1]
    assert [line["accepted"] for line in released] == [at_first] * 2 + [everybody.num_users] * 2
    run.company.stop()
    with closing(ReleaseLedger(run.files.state("aggregator"), limit=None)) as ledger:
        spends = ledger.spends()
    assert len({charge.run for charge in spends.charges}) == 2
    assert 5.0 < spends.epsilon <= LIMIT
