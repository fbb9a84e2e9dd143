"""Three aggregators as services, of which every caller lies: random messages of every method under
the server's, a client's and a peer's certificates, before and after a training among honest ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from fedrec.federation.round_messages import KEY
from fedrec.federation.wire import question_digest, question_header
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.channel import open_channel
from tests.aggregator_service import test_three_service as services
from tests.cases import slow_but
from tests.sharing.three_cores import PROMISE, RUN, Federation
from tests.waiting import HANG_S

certificates = services.certificates
three = services.three
there = services.there

SEEDS = range(2)
TIMES = 30
CALLERS = {"server": "server", "client": "client-client-2", "aggregator": "aggregator-2"}
METHODS = [one for one in vars(methods).values() if isinstance(one, methods.RpcMethod)]
TEXTS = ("", RUN, "other", "../../x", "\x00", "a" * 5000, "None", "\u202e", "-", ".")
COUNTS = (0, 1, 2, 3, 7, 2**31 - 1, 2**32 - 1)
LONG_COUNTS = (*COUNTS, 2**53, 2**63, 2**64 - 1)
REALS = (0.0, -1.0, 1e-300, 1e308, float("nan"), float("inf"), 5.0)
PLANS = (
    b"",
    b"{}",
    b"[" * 5000,
    b'{"guarantee": {"epsilon": 1' + b"0" * 400 + b', "delta": 1e-5}, "releases": []}',
    b'{"guarantee": {"epsilon": NaN, "delta": 1e-5}, "releases": [{"name": "a", "mu": NaN}]}',
    b"\xff\xfe",
)


class Liar:
    """Draws messages; what an honest party would send is among the parts it draws from."""

    def __init__(self, seed: int, there: Federation) -> None:
        self.rng = random.Random(seed)
        plan = there.prepared.plan
        header = question_header(there.first, run=RUN, plan=plan.digest())
        self.contents = (*PLANS, methods.plan_bytes(plan), header, b"\x00" * 16, b"x" * 100_000)
        self.texts = (*TEXTS, question_digest(header), "0" * 64)

    def method(self, role: str) -> methods.RpcMethod:
        """Mostly one that the caller may use."""
        own = [one for one in METHODS if one.role in {role, "either"}]
        return self.rng.choice(own if self.rng.random() < 0.8 else METHODS)

    def message(self, kind: type[Message]) -> Message:
        """A message of this kind, every field of it drawn."""
        made = kind()
        for field in kind.DESCRIPTOR.fields:
            if field.message_type is not None:
                continue
            drawn: Any = {
                field.TYPE_STRING: lambda: self.rng.choice(self.texts),
                field.TYPE_BYTES: lambda: self.rng.choice(self.contents),
                field.TYPE_DOUBLE: lambda: self.rng.choice(REALS),
                field.TYPE_UINT32: lambda: self.rng.choice(COUNTS),
                field.TYPE_UINT64: lambda: self.rng.choice(LONG_COUNTS),
                field.TYPE_BOOL: lambda: self.rng.random() < 0.5,
            }[field.type]
            if field.is_repeated:
                getattr(made, field.name).extend(drawn() for _ in range(self.rng.choice((0, 3))))
            else:
                setattr(made, field.name, drawn())
        return made


def answered(channel: Any, method: methods.RpcMethod, asked: Message, metadata: Any) -> str:
    """The code that came back, "" for an answer."""
    into, out = method.request.SerializeToString, method.reply.FromString
    how = {"metadata": metadata, "timeout": HANG_S}
    try:
        if method is methods.REPORT:
            channel.stream_unary(method.path, into, out)(iter([asked]), **how)
        elif method.reply is pb.ReleaseFrame:
            list(channel.unary_stream(method.path, into, out)(asked, **how))
        else:
            channel.unary_unary(method.path, into, out)(asked, **how)
    except grpc.RpcError as failure:
        told = dict(failure.trailing_metadata() or ())
        return str(told.get(methods.CODE_KEY, failure.code().name))
    return ""


def attacked(three: services.Three, liar: Liar, times: int) -> Iterator[tuple[str, str, str]]:
    """Who called what of each aggregator, and the code that came back."""
    for place in range(3):
        for role, who in CALLERS.items():
            with open_channel(three.access(place, who), timeout_s=HANG_S) as channel:
                for _ in range(times):
                    method = liar.method(role)
                    asked = liar.message(method.request)
                    if isinstance(asked, pb.GetRoundRequest):
                        asked.wait_s = 0.0  # it waits, which is no fault
                    if isinstance(asked, pb.GetGrowthRequest):
                        asked.charged = 0  # a client that says more shuts out itself
                    version = liar.rng.choice(("1", "2", "2", "3", "99", "x"))
                    yield role, method.name, answered(channel, method, asked, ((KEY, version),))


@pytest.mark.parametrize("seed", slow_but(SEEDS[:1], SEEDS))
def test_no_message_of_a_liar_fails_an_aggregator_or_changes_or_charges_a_training(
    seed: int, there: Federation, three: services.Three, tmp_path: Path
) -> None:
    liar = Liar(seed, there)
    told = list(attacked(three, liar, TIMES))
    with ExitStack() as stack:
        link, endpoints = services.link_over(there, three.of_server, stack)
        assert [one.budget().spent_epsilon for one in endpoints] == [0.0] * 3  # type: ignore[union-attr]
        there.join(there.terms)
        there.trained_over(link)
        told += attacked(three, liar, TIMES)
        assert all(one.budget().spent_epsilon <= PROMISE.epsilon * (1 + 1e-9) for one in endpoints)  # type: ignore[union-attr]
        again = ThreeEndpoints(endpoints)
        assert [one.release(RUN, 0) for one in endpoints] == [
            one.release(RUN, 0) for one in again.endpoints
        ]
    failed = [one for one in told if one[2] in {methods.FAILED, "INTERNAL", "UNKNOWN"}]
    assert failed == []
    assert len({code for *_, code in told}) > 5  # liars got far enough to be refused in many ways
    for path in tmp_path.glob("aggregator-*.jsonl"):
        assert not [line for line in path.read_text().splitlines() if "trace" in json.loads(line)]
