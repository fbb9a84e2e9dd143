"""A client that answers the server's rounds with anything at all, and a program under its key that
sends no messages: the other client is heard in every round, nothing fails, and no room is held."""

from __future__ import annotations

import logging
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Answer
from fedrec.federation.round_messages import RoundMessage, npy_files, read_npy
from fedrec.federation.wire import pack_answer
from fedrec.news.messages import Ask
from fedrec.transport.rounds_api import rounds_pb2 as pb
from fedrec.transport.rounds_client import packed, pieces
from fedrec_client.requests import answering
from fedrec_server.broadcast import arrays_of
from fedrec_server.received import require_gradient, require_reports
from fedrec_server.round_service import RoundService, ServiceLimits
from tests.cases import slow_but
from tests.server_flower.test_round_service import TERMS, broadcast, line, sites, table
from tests.server_flower.test_round_service import keys as keys
from tests.waiting import HANG_S, until

ROUNDS = 12
SHAPE = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"
HEADERS = (
    *("-" * 5000 + "1", "[" * 5000, "1+" * 4000 + "1", "(" * 90 + ")" * 90, "not " * 2000 + "1"),
    *(SHAPE % ("-" * 4000 + "1"), SHAPE % ("9" * 4400), SHAPE % "-1,-1", SHAPE % "True", "\x00"),
    *(SHAPE % "1e9", SHAPE % ("1," * 90)),
    "{'descr': " + "(" * 60 + "'<f8'" + ",)" * 60 + ", 'fortran_order': False, 'shape': (1,), }",
    "{'descr': 'O', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<i1000000', 'fortran_order': False, 'shape': (0,), }",
)
"""Of .npy files: Python that is nested too deep, cut off or very long, and shapes that are none."""


def npy(header: str) -> bytes:
    content = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


@pytest.mark.parametrize("header", HEADERS)
def test_an_array_whose_header_is_none_is_no_array_and_no_failure(header: str) -> None:
    with pytest.raises(ValueError):
        read_npy(npy(header))
    assert arrays_of(RoundMessage({}, {"gradient": npy(header)})) == {}


def numbers(rng: random.Random) -> Any:
    """Arrays of the kinds that are asked for, and of others, also at the ends of their types."""
    dtype = np.dtype(rng.choice(["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8"]))
    shape = tuple(rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.choice([0, 1, 1, 2])))
    ends = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    values = [0, 1, float(ends.max), float(ends.min)]
    values += [np.nan, np.inf, -np.inf] if dtype.kind == "f" else [ends.max, ends.min]
    drawn = np.array([rng.choice(values) for _ in range(int(np.prod(shape)))], object)
    with np.errstate(all="ignore"), suppress(OverflowError):
        return drawn.astype(dtype).reshape(shape)
    return np.zeros(shape, dtype)


NAMES = ("gradient", "weight", "loss", "coefficients", "users", "candidates", "candidate_ptr")
NAMES += ("reported", "null")


@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_arrays_that_a_client_tells_are_taken_or_refused_by_name(seed: int) -> None:
    """`server/received.py` refuses with a RefusedError alone, whatever it is told."""
    rng = random.Random(seed)
    for _ in range(400):
        told = {name: numbers(rng) for name in NAMES if rng.random() < 0.9}
        with suppress(RefusedError), np.errstate(all="ignore"):
            require_gradient("liar", told, length=rng.choice([0, 1, 3]))
        with suppress(RefusedError), np.errstate(all="ignore"):
            require_reports("liar", told, users=rng.choice([1, 3]), items=3, topics=2)


def lie(rng: random.Random, name: str) -> Iterator[pb.Piece]:
    """Pieces of what is no answer, or of one with any content."""
    if rng.random() < 0.3:
        for _ in range(rng.choice((1, 3))):
            yield pb.Piece(
                id=rng.choice((name, "", "99999", "\u202e", "a" * 3000)),
                total_bytes=rng.choice((0, 1, 2**16, 2**20, 2**40, 2**64 - 1)),
                data=rng.randbytes(rng.choice((0, 1, 2**16))),
            )
        return
    answer = rng.choice(
        (
            pack_answer(Answer("library", 1)),
            pack_answer(Answer("hospital", 1)),
            pack_answer(Answer("", 2**63, accepted=2**63 - 1)),
            *(b"", b"{}", b"[" * 5000, b"\xff", b"null", b'{"client": "library", "users": -1}'),
            b'{"client": "library", "users": 1e400, "accepted": true}',
        )
    )
    arrays = npy_files({each: numbers(rng) for each in NAMES})
    arrays |= {"x": npy(rng.choice(HEADERS)), "weight": npy(rng.choice(HEADERS))}
    said = {"answer": answer, "protocol": rng.choice((3, 2, 0, 2**63, b"3")), "header": b"x"}
    kept = {key: value for key, value in said.items() if rng.random() < 0.9}
    message = RoundMessage(kept, arrays, rng.choice(("", "join", "\x00")))
    content = bytearray(rng.choice((packed(message), packed(answering(Answer("library", 1))))))
    for _ in range(rng.choice((0, 0, 3))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    yield from pieces(name, bytes(content))


@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_no_answer_of_a_liar_fails_a_round_or_costs_another_client_its_place(
    seed: int, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    over = threading.Event()
    calls = list[Any]()

    def lying(service: RoundService) -> None:
        with line(keys, service) as opened:
            while not over.is_set():
                heard = threading.Event()
                names = list[str]()

                def sent(heard: threading.Event = heard, names: list[str] = names) -> Iterator[Any]:
                    while not over.is_set():
                        if heard.wait(0.01):
                            heard.clear()
                            yield from lie(rng, names[-1])

                calls.append(opened(sent()))
                with suppress(grpc.RpcError):
                    for piece in calls[-1]:
                        names.append(piece.id or (names or [""])[-1])
                        heard.set()

    limits = ServiceLimits(answer_bytes=2**20, bytes=2**22, piece_s=0.5, away_s=0.5)
    ask = Ask("run", 1, 3, {"library": 0, "hospital": 1}, {"parameters": np.zeros(3, np.float32)})
    with (
        RoundService(table(keys), limits) as service,
        sites(keys, service, "hospital") as (honest,),
        caplog.at_level(logging.WARNING),
    ):
        liar = threading.Thread(target=lying, args=(service,))
        liar.start()
        try:
            until(lambda: len(service.nodes()) == 2, "both are connected")
            clients = broadcast(service, 2.0)
            for number in range(ROUNDS):
                answers = (
                    clients.join(TERMS)
                    if number % 2
                    else [reply.answer for reply in clients.tell(ask)]
                )
                (own,) = [one for one in answers if one.client == "hospital"]
                assert own == Answer("hospital", len(honest.heard))
                assert len({one.client for one in answers}) == len(answers)
            assert len(honest.heard) == ROUNDS
        finally:
            over.set()
            calls[-1].cancel()  # it waits for messages that do not come
            liar.join(HANG_S)
            assert not liar.is_alive()
        until(lambda: service._arriving == 0, "no room is held")
    assert not [record for record in caplog.records if record.exc_info]
