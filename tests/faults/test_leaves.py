"""A root and two leaves under seeded faults; hundreds of seeds are run with `fedrec faults
--leaves`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.errors import ProtocolError
from fedrec_simulations.faults import leaves
from fedrec_simulations.faults.leaves import run


def test_under_faults_every_release_of_a_tree_is_the_loopbacks_and_charged_once() -> None:
    assert "4 runs with a root and two leaves" in run(runs=4, seed=0)


def test_a_lie_that_no_root_can_see_is_found_by_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the comparison is known to find what gets through."""
    unseen = {
        "one less": lambda sums: replace(sums, blocks=tuple(b - (b > 0) for b in sums.blocks))
    }
    monkeypatch.setattr(leaves, "LIES", unseen)
    with pytest.raises(ProtocolError, match="is not the loopback's"):
        run(runs=12, seed=0)
