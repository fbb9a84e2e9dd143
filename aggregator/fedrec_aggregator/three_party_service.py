"""The calls of one of three aggregators: of clients that ask for an attempt, and of the other
two.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from google.protobuf.message import Message

from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_api.methods import RpcMethod
from fedrec_aggregator.calls import Call, Calls
from fedrec_aggregator.three_party import ThreePartyAggregator

_THREADS = 2  # there are two peers


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
    """Place of the peer that calls: the roster names peers by their places alone."""
    return int(call.caller) - 1
