"""Statement of one person who left: what that person may be in, from the ledger's chain."""

from __future__ import annotations

import json
import math

from fedrec.federation.protocol import (
    DEPARTURE,
)
from fedrec_aggregator.chain import Charge, Departure, LedgerLink
from fedrec_aggregator.ledger import ReleaseLedger


def departure_of(ledger: ReleaseLedger, left: LedgerLink) -> str:
    """Canonical JSON: what a person who left may be in. Of each run begun before, mu of all that it
    charged, of one that was unfinished mu of its whole plan."""
    assert isinstance(left.entry, Departure)
    before = ledger.links()[: left.number]
    mus = dict[str, list[float]]()
    for each in before:
        if isinstance(each.entry, Charge):
            mus.setdefault(each.entry.run, []).append(each.entry.mu)
    for run in left.entry.unfinished:
        plan = ledger.plan(run)
        assert plan is not None
        mus[run] = [release.mu for release in plan.releases]
    delta = ledger.limit.delta if ledger.limit else 1e-5
    runs = {run: math.hypot(*own) for run, own in mus.items()}
    content = {
        "format": DEPARTURE,
        "user": left.entry.user,
        "number": left.number,
        "head": left.head,
        "runs": runs,
        "delta": delta,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
