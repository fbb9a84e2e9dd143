"""What a server keeps of the aggregator's ledger, over runs and state folders."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, grown
from fedrec_server.aggregation import FollowedEndpoint
from fedrec_server.watching import SeenLedger

ENTRIES = [f"{number:02x}" * 32 for number in range(9)]
PLAN: Any = SimpleNamespace(content=dict)


@dataclass
class Endpoint:
    """An aggregator whose ledger has the first so many entries; calls are only noted."""

    entries: list[str] = field(default_factory=lambda: ENTRIES[:3])
    calls: list[str] = field(default_factory=list)

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        if grown(LedgerHead(), self.entries[: since.number]) != since:
            raise RefusedError("stale-ledger", "it does not hold what was seen", "Restore it.")
        return LedgerGrowth(grown(LedgerHead(), self.entries), tuple(self.entries[since.number :]))


class Followed(FollowedEndpoint):
    """A way to such an aggregator, without a channel."""

    def __init__(self, endpoint: Endpoint, path: Path) -> None:
        self.memory = SeenLedger(path)
        self.growth = endpoint.growth  # type: ignore[method-assign]
        self.calls = endpoint.calls

    def _unary(self, method: Any, request: Any) -> Any:
        self.calls.append(method.path)
        return SimpleNamespace(users=0)

    def _stream(self, method: Any, request: Any, *, most: int) -> bytes:
        self.calls.append(method.path)
        return b""


def followed(endpoint: Endpoint, path: Path) -> Followed:
    return Followed(endpoint, path)


@pytest.mark.parametrize("last", ["open_run", "enrolled", "release"])
def test_an_aggregator_put_back_after_any_call_is_refused_in_the_next_run(
    tmp_path: Path, last: str
) -> None:
    endpoint = Endpoint()
    path = tmp_path / "seen.json"
    getattr(followed(endpoint, path), last)(
        *{"open_run": ("run", PLAN), "enrolled": (), "release": ("run", 0)}[last]
    )
    endpoint.entries = ENTRIES[:2]
    endpoint.calls = []
    for call in (
        lambda: followed(endpoint, path).open_run("another", PLAN),
        followed(endpoint, path).enrolled,
    ):
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.code == "stale-ledger"
    assert endpoint.calls == []
    endpoint.entries = [*ENTRIES[:2], "ff" * 32, "ee" * 32]  # grown again, on another way
    with pytest.raises(RefusedError):
        followed(endpoint, path).open_run("another", PLAN)
    endpoint.entries = ENTRIES[:5]
    followed(endpoint, path).open_run("another", PLAN)
    assert SeenLedger(path).ledger_head() == grown(LedgerHead(), ENTRIES[:5])


def test_a_new_ledger_is_taken_only_once_the_old_one_is_forgotten(tmp_path: Path) -> None:
    endpoint = Endpoint()
    path = tmp_path / "seen.json"
    followed(endpoint, path).enrolled()
    endpoint.entries = ENTRIES[5:]
    with pytest.raises(RefusedError):
        followed(endpoint, path).enrolled()
    SeenLedger(path).forget()
    followed(endpoint, path).enrolled()
    assert SeenLedger(path).ledger_head().number == 4


def test_a_memory_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text('{"number": "many"}')
    with pytest.raises(RunError, match="aggregator's ledger"):
        SeenLedger(tmp_path / "seen.json").ledger_head()
