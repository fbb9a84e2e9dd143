"""Three aggregators as services with mutual TLS, one of which lies over the wire: what it says is
refused by name, or nothing of the round leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.messages import train
from fedrec.federation.protocol import Refusal
from fedrec.federation.round_driver import AggregatedLink
from fedrec.federation.round_messages import KEY, PROTOCOL
from fedrec.federation.wire import pack_release
from fedrec.sharing.protocol import Standing
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint
from fedrec_aggregator import three_party
from fedrec_aggregator.calls import Calls
from fedrec_aggregator.peers import packed_list
from fedrec_aggregator.three_party import ThreePartyAggregator
from tests.aggregator_service.conftest import ONCE
from tests.aggregator_service.test_three_service import (
    Three,
    certificates,
    clients_of,
    link_over,
    services_of,
)
from tests.sharing.three_cores import Federation

__all__ = ["certificates"]

LIAR = 1
"""Its place: the one that passes explicit shares on."""


@contextmanager
def training(
    certificates: Path, folder: Path, *, joined: bool = True, **waits: Any
) -> Iterator[tuple[Federation, AggregatedLink, list[RemoteReleaseEndpoint]]]:
    """Its clients, its server's link, and the server's way to each of the three."""
    with ExitStack() as stack:
        three: Three = stack.enter_context(contextmanager(services_of)(certificates, folder))
        there = stack.enter_context(contextmanager(clients_of)(three, folder))
        link, endpoints = link_over(there, three.of_server, stack, **waits)
        if joined:
            there.join(there.terms)
        yield there, link, endpoints


def lies(monkeypatch: pytest.MonkeyPatch, method: str, about: Callable[..., Any]) -> None:
    """The liar answers `about(what it would say, its arguments)`."""
    honest = getattr(ThreePartyAggregator, method)

    def answer(core: ThreePartyAggregator, *asked: Any, **more: Any) -> Any:
        said = honest(core, *asked, **more)
        return about(said, *asked) if core.place == LIAR else said

    monkeypatch.setattr(ThreePartyAggregator, method, answer)


def spent(endpoints: list[RemoteReleaseEndpoint]) -> list[float]:
    found = list[float]()
    for endpoint in endpoints:
        budget = endpoint.budget()
        assert budget is not None
        found.append(budget.spent_epsilon)
    return found


OUTPUTS = {  # 4 bytes that begin an output, 32 of its ticket, 4 of the number of users
    "of another attempt": lambda said: said[:4] + bytes(32) + said[36:],
    "of other users": lambda said: said[:36] + bytes(4) + said[40:],
    "cut off": lambda said: said[:-8],
    "nothing": lambda said: b"",
}


@pytest.mark.parametrize("lie", OUTPUTS)
def test_an_output_that_is_not_of_the_round_is_refused(
    lie: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies(monkeypatch, "release", lambda said, *_: OUTPUTS[lie](said))
    with training(certificates, tmp_path) as (there, link, _):
        words = "not of one attempt" if lie.startswith("of") else "cannot be read"
        with pytest.raises(ProtocolError, match=words):
            link.answer(there.first)


def test_an_old_answer_is_none_for_the_next_round(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[bytes]()

    def first(said: bytes, *_: Any) -> bytes:
        kept.append(said)
        return kept[0]

    lies(monkeypatch, "release", first)
    with training(certificates, tmp_path) as (there, link, _):
        recipe = there.prepared.recipe
        rounds = train(recipe, link, recipe.begin())
        assert pack_release(next(rounds).answer) == pack_release(there.loopback.answer(there.first))
        with pytest.raises(ProtocolError, match=r"not of one attempt|cannot be read"):
            next(rounds)
    assert len(kept) == 2


def other_nonce(said: Standing, *_: Any) -> Standing:
    """Another one each time that it is asked after all gave theirs."""
    return replace(said, nonce=bytes(32)) if said.ticket else said


STANDINGS: dict[str, Callable[..., Standing]] = {
    "its nonce": other_nonce,
    "its ticket": lambda said, *_: replace(said, ticket=said.ticket and bytes(32)),
    "whom all hold": lambda said, *_: replace(said, agreed=said.agreed and bytes(32)),
    "whom it sums": lambda said, *_: replace(said, accepted=said.accepted and bytes(32)),
}


@pytest.mark.parametrize("about", STANDINGS)
def test_where_one_lies_about_its_standing_nothing_leaves(
    about: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies(monkeypatch, "standing", STANDINGS[about])
    waits = {"round_s": 2.0, "attempts": 1, "short_attempts": 1}
    with training(certificates, tmp_path, **waits) as (there, link, endpoints):
        with pytest.raises((RefusedError, UnreachableError)):  # what is kept waits for the liar
            link.answer(there.first)
        for place in {0, 1, 2} - {LIAR}:
            endpoints[place]._retry = ONCE  # one that waits for the liar is busy
            with pytest.raises((RefusedError, UnreachableError)):
                endpoints[place].release(there.terms.run, 0)
            # what is kept was charged before, whether a peer stands by it or not
            assert spent(endpoints)[place] == 0.0 or about == "whom it sums"


def test_who_lists_other_users_is_named_to_the_server_and_in_both_honest_logs(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies(monkeypatch, "held", lambda said, *_: packed_list(()))
    logged = list[tuple[str, str]]()

    def say(log: Any, event: str, **fields: Any) -> None:
        if event == "lists-differ":
            logged.append((fields["sender"], fields["cause"].split(" ")[0]))

    monkeypatch.setattr(three_party.logs, "say", say)
    waits = {"attempts": 1, "short_attempts": 1}
    with training(certificates, tmp_path, **waits) as (there, link, endpoints):
        with pytest.raises(RefusedError) as failure:
            link.answer(there.first)
        assert spent(endpoints) == [0.0] * 3
    assert failure.value.code == Refusal.TOO_FEW
    assert "0 of 24 users reported" in failure.value.cause
    assert "aggregator 2 lists other users than the two others" in failure.value.cause
    assert "24 users differ" in failure.value.cause
    assert "cohort" not in failure.value.cause
    assert "min_share" not in failure.value.remedy
    # by both honest ones; what the liar says of them is its own
    assert logged.count(("aggregator-2", "24")) == 2


def test_explicit_shares_that_were_altered_on_their_way_end_the_attempt(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = list[bytes]()

    def altered(said: bytes, *_: Any) -> bytes:
        passed.append(said)
        return said[:-1] + bytes([said[-1] ^ 1])

    lies(monkeypatch, "explicit", altered)
    waits = {"round_s": 2.0, "attempts": 1, "short_attempts": 1}
    with training(certificates, tmp_path, **waits) as (there, link, endpoints):
        with pytest.raises(RefusedError):
            link.answer(there.first)
        assert passed
        assert spent(endpoints)[2] == 0.0


@pytest.mark.parametrize("version", ["99", "0", "-1", "1e0", "one"])
def test_a_version_that_is_none_or_too_far_is_refused_by_the_name_of_who_says_it(
    version: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, version)
    with training(certificates, tmp_path, joined=False) as (there, link, endpoints):
        with pytest.raises(RefusedError, match=endpoints[LIAR]._access.address) as refused:
            link.endpoint.enrolled()
        assert refused.value.code == Refusal.WRONG_PROTOCOL
        with pytest.raises(RefusedError) as refused:
            there.participants[0]._endpoint.enroll([bytes(16)])
        assert refused.value.code == Refusal.WRONG_PROTOCOL


def test_an_aggregator_that_says_to_be_of_the_version_before_takes_nothing_from_the_promise(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, str(PROTOCOL - 1))
    with training(certificates, tmp_path) as (there, link, _):
        assert pack_release(link.answer(there.first)) == pack_release(
            there.loopback.answer(there.first)
        )


def says(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The liar's service says so of itself."""
    made = list[Calls]()
    begun, guarded = Calls.__init__, Calls._guarded

    class Context:
        def __init__(self, context: Any) -> None:
            self._context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        async def send_initial_metadata(self, _: Any) -> None:
            await self._context.send_initial_metadata(((KEY, version),))

    def begin(calls: Calls, *arguments: Any, **more: Any) -> None:
        made.append(calls)
        begun(calls, *arguments, **more)

    def lying(calls: Calls, method: Any, answer: Any) -> Any:
        honest = guarded(calls, method, answer)

        async def handled(request: Any, context: Any) -> Any:
            return await honest(request, Context(context) if calls is made[LIAR] else context)

        return handled

    monkeypatch.setattr(Calls, "__init__", begin)
    monkeypatch.setattr(Calls, "_guarded", lying)
