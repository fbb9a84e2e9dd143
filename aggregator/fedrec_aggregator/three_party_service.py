"""The calls of one of three aggregators: of clients that ask for an attempt, and of the other
two.

The calls of a leaf's root: where the leaf is, an attempt to open, and frozen sums.

They are its own root's alone: a leaf of three parties has sister leaves, who call it too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version

from google.protobuf.message import Message

from fedrec.federation.protocol import LedgerHead, Opening, Refusal
from fedrec.federation.wire import refused
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_api.methods import RpcMethod
from fedrec_aggregator.calls import Call, Calls
from fedrec_aggregator.leaf import LeafAggregator
from fedrec_aggregator.settings_tables import ROOT
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_aggregator.three_party_root import LeafOfThreeAggregator

_THREADS = 2


class ThreePartyCalls:
    """Handlers over the core of one of three aggregators.

    Peers have threads of their own: one that waits for this aggregator's peers must not keep them
    from being answered.
    """

    def __init__(self, calls: Calls, core: ThreePartyAggregator) -> None:
        self._calls = calls
        self._core = core
        self._threads = ThreadPoolExecutor(_THREADS, "peers")

    def unary(self) -> dict[RpcMethod, Callable[[Call], Awaitable[Message]]]:
        """By method."""
        return {
            methods.GET_ATTEMPT: self._get_attempt,
            methods.GET_STANDING: self._get_standing,
            methods.GET_KEY: self._get_key,
        }

    def streams(self) -> dict[RpcMethod, Callable[[Call], Awaitable[None]]]:
        """By method, what is answered in frames."""
        return {
            methods.GET_HELD: self._get_held,
            methods.GET_EXPLICIT: self._get_explicit,
            methods.GET_OPENINGS: self._get_openings,
        }

    def close(self) -> None:
        """End the threads when their work is done."""
        self._threads.shutdown()

    async def _get_held(self, call: Call) -> None:
        _place(call)
        asked = await self._calls.first(call, pb.GetHeldRequest)
        content = await self._calls.in_threads(
            self._threads, call, self._core.held, asked.run, asked.round, asked.attempt
        )
        await self._calls.sent(call, content)

    async def _get_explicit(self, call: Call) -> None:
        asked = await self._calls.first(call, pb.GetExplicitRequest)
        piece = asked.run, asked.round, asked.attempt, asked.first, asked.last
        read = partial(self._core.explicit, *piece, caller=_place(call))
        await self._calls.sent(call, await self._calls.in_threads(self._threads, call, read))

    async def _get_openings(self, call: Call) -> None:
        _place(call)
        asked = await self._calls.first(call, pb.GetHeldRequest)
        content = await self._calls.in_threads(
            self._threads, call, self._core.openings, asked.run, asked.round, asked.attempt
        )
        await self._calls.sent(call, content)

    async def _get_attempt(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.GetAttemptRequest)
        found = await self._calls.in_threads(
            self._calls.threads, call, self._core.attempt, asked.run, asked.round
        )
        return pb.GetAttemptReply(**vars(found))

    async def _get_standing(self, call: Call) -> Message:
        _place(call)
        asked = await self._calls.first(call, pb.GetStandingRequest)
        standing = await self._calls.in_threads(
            self._threads, call, self._core.standing, asked.run, asked.round
        )
        return methods.standing_message(standing, time_s=int(time.time()))

    async def _get_key(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.GetKeyRequest)
        attempt = asked.run, asked.round, asked.attempt
        key = await self._calls.in_threads(
            self._threads, call, lambda: self._core.key(*attempt, caller=_place(call))
        )
        return pb.GetKeyReply(key=key)


def _place(call: Call) -> int:
    """Place of the peer that calls. Raises RefusedError (`FORBIDDEN`) for a leaf's root, which is
    no peer."""
    if call.caller not in {"1", "2", "3"}:
        raise refused(Refusal.FORBIDDEN, f"aggregator {call.caller!r} is no peer of this one")
    return int(call.caller) - 1


def require_root(caller: str) -> None:
    """Raises RefusedError (`FORBIDDEN`) for anybody but the root: a sister leaf that took a term
    would, with its own, read what the leaf's users sent."""
    if caller != ROOT:
        raise refused(
            Refusal.FORBIDDEN,
            f"aggregator {caller!r} is not this leaf's root",
            "Only the root whose key is leaf.root_pin may ask this.",
        )


class LeafCalls:
    """Handlers over a leaf's core, with threads of their own: a root must not wait behind
    clients."""

    def __init__(self, calls: Calls, core: LeafAggregator | LeafOfThreeAggregator) -> None:
        self._calls = calls
        self._core = core
        self._threads = ThreadPoolExecutor(_THREADS, "root")

    def unary(self) -> dict[RpcMethod, Callable[[Call], Awaitable[Message]]]:
        """By method."""
        return {methods.VISIT_LEAF: self._visit, methods.OPEN_LEAF: self._open}

    def streams(self) -> dict[RpcMethod, Callable[[Call], Awaitable[None]]]:
        """By method, what is answered in frames."""
        return {methods.FREEZE_LEAF: self._freeze}

    def close(self) -> None:
        """End the threads when their work is done."""
        self._threads.shutdown()

    async def _visit(self, call: Call) -> Message:
        require_root(call.caller)
        asked = await self._calls.first(call, pb.VisitLeafRequest)
        since = LedgerHead(asked.since_number, asked.since_head)
        growth = methods.read_growth(asked.growth)
        visit = partial(
            self._core.visit, since, growth, run=asked.run, round=asked.round, ended=asked.ended
        )
        reply = methods.leaf_message(await self._calls.in_threads(self._threads, call, visit))
        reply.MergeFrom(pb.LeafReply(time_s=time.time(), version=version("fedrec")))
        return reply

    async def _open(self, call: Call) -> Message:
        require_root(call.caller)
        asked = await self._calls.first(call, pb.OpenLeafRequest)
        told = {
            field.name: getattr(asked.opening, field.name)
            for field in pb.OpenRoundRequest.DESCRIPTOR.fields
        }
        opened = partial(self._core.open, Opening(**told), methods.read_plan(asked.plan))
        return methods.leaf_message(await self._calls.in_threads(self._threads, call, opened))

    async def _freeze(self, call: Call) -> None:
        require_root(call.caller)
        asked = await self._calls.first(call, pb.FreezeLeafRequest)
        named = {"digest": asked.digest, "attempt": asked.attempt, "epoch": asked.epoch}
        frozen = partial(self._core.freeze, asked.run, asked.round, **named)  # type: ignore[arg-type]
        await self._calls.sent(call, await self._calls.in_threads(self._threads, call, frozen))
