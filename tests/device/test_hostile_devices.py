"""Admitted devices and strangers who send anything at all to the endpoint of light devices: each is
refused in words, nothing fails, and an honest device is counted and charged meanwhile."""

from __future__ import annotations

import json
import logging
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedrec_client.device import Device, Limit
from fedrec_client.device.service import Service
from tests.cases import slow_but
from tests.device.worlds import World, listening, opened
from tests.device.worlds import closed as closed
from tests.device.worlds import world as world
from tests.waiting import HANG_S

TIMES = 150
ROUNDS = ("0", "1", "-1", "0" * 5000, "9" * 30, "9" * 5000, "\u0661", "1e3", "", "0.0", "%30")
RUNS = ("..", "%2e%2e", "a%2fb", "%00", "%ff%fe", "a" * 5000, "%e2%80%ae", ".", "%0d%0a", "other")
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
SECRETS = (
    "Bearer " + "s" * 64,
    "Bearer",
    "",
    "Basic x",
    "Bearer \xff" * 40,
    "Bearer " + "\x80" * 64,
)


def request(rng: random.Random, run: str, honest: bytes) -> bytes:
    """One request, of which some parts are right."""
    name = rng.choice((run, *RUNS))
    path = rng.choice(
        (
            "/v1/round",
            "/v1/users",
            f"/v1/content/{rng.choice(('0' * 64, name, '..%2fround', 'F' * 64))}",
            f"/v1/reports/{name}/{rng.choice(ROUNDS)}",
            f"/v1/reports/{run}/0",
            f"/{name}",
            "/v1/../v1/round",
            "//v1/round",
        )
    )
    damaged = bytearray(honest)
    for _ in range(rng.choice((0, 1, 8))):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    body = rng.choice(
        (b"", b"\x00" * 16, bytes(damaged), honest * 3, honest[:-1], rng.randbytes(64))
    )
    said = rng.choice((len(body), len(body), 0))
    return sent(rng.choice(METHODS), path, body, said, rng.choice(SECRETS))


def sent(method: str, path: str, body: bytes, said: int, secret: str) -> bytes:
    headers = [f"{method} {path} HTTP/1.1", "host: a", "connection: close"]
    headers += [f"content-length: {said}", f"authorization: {secret}"]
    return "\r\n".join([*headers, "", ""]).encode("latin-1", "replace") + body


def asked(site: str, content: bytes) -> bytes:
    """The line of status that comes back; b"" where the connection was ended instead."""
    there = urlsplit(site)
    with socket.create_connection((there.hostname, there.port), timeout=HANG_S) as line:
        try:
            line.sendall(content)
            return line.makefile("rb").readline()
        except (ConnectionResetError, BrokenPipeError):
            return b""


@pytest.mark.parametrize("seed", slow_but([0], range(4)))
def test_no_request_of_a_liar_fails_the_endpoint_or_counts_or_charges_anything(
    seed: int, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    held = opened(world, tmp_path, 0)
    limit = Limit(world.prepared.plan.guarantee.epsilon, world.prepared.plan.guarantee.delta)
    honest = b""
    report = type(held.endpoint).report

    def kept(self: object, run: str, round: int, batch: bytes, secret: str) -> dict[str, int]:
        nonlocal honest
        honest = batch
        return report(held.endpoint, run, round, batch, secret)

    liar = Device(tmp_path / "liar", world.history(1), limit=limit, service=held.endpoint, user="l")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(held.endpoint), "report", kept)
        assert liar.take_part()
    before = held.aggregator.status(world.terms.run, 0).reported
    with listening(held.intake) as site, caplog.at_level(logging.WARNING):
        walked = [
            sent("POST", f"/v1/reports/{world.terms.run}/{round}", honest, len(honest), SECRETS[0])
            for round in ROUNDS
        ]
        drawn = [request(rng, world.terms.run, honest) for _ in range(TIMES)]
        told = [asked(site, one) for one in (*walked, *drawn)]
        assert not [line for line in told if line.startswith(b"HTTP/1.1 5")], told
        me = Device(
            tmp_path / "me", world.history(3), limit=limit, service=Service(site), user="me"
        )
        assert me.take_part()
        assert json.loads(held.intake.source.told())
    assert len({line for line in told if line}) > 3  # liars got far enough to be refused in ways
    assert not [line for line in caplog.records if line.exc_info]
    status = held.aggregator.status(world.terms.run, 0)
    assert status.reported == before + 1
    assert not held.aggregator.ledger.spends().charges
    me.ledger.close()
    liar.ledger.close()
