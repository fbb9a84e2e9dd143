"""Whole rounds over three parties with leaves: real roots and leaves with ledgers on disk, clients
that share by range, and the server's rounds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedrec.federation.rounds import train
from fedrec.federation.wire import pack_release
from tests.sharing.test_three_cores import CHECKED, PUBLISHED
from tests.sharing.three_cores import Federation, federation
from tests.sharing.tree_cores import TreeCores

Found = Callable[..., Federation]


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with ExitStack() as stack:

        def make(*sets: str, kind: type[TreeCores] = TreeCores) -> Federation:
            cores = stack.enter_context(closing(kind(tmp_path)))
            made = federation(cores, stack, *sets)
            cores.sleep(0.5)  # roots introduce themselves
            assert not any(answer.refusal for answer in made.join(made.terms))
            return made

        yield make


@pytest.mark.parametrize(
    "sets", [PUBLISHED, (), (*PUBLISHED, *CHECKED)], ids=["published", "default", "checked"]
)
def test_every_round_releases_the_loopbacks_bytes(found: Found, sets: tuple[str, ...]) -> None:
    there = found(*sets)
    recipe = there.prepared.recipe
    ours, theirs = (
        list(train(recipe, there.link(), recipe.begin())),
        list(train(recipe, there.loopback, recipe.begin())),
    )
    assert len(ours) == len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        assert pack_release(one.answer) == pack_release(other.answer)
    charged = [
        sorted((c.round, c.release) for c in ledger.spends().charges)
        for ledger in there.cores.ledgers
    ]
    assert charged[0] == charged[1] == charged[2]
    assert len(charged[0]) == len(there.prepared.plan.releases)
