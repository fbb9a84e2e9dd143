"""tests/sharing/vectors.json, by second code: Python's integers, hashlib, and AES in electronic codebook mode, nothing of fedrec."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.reports import block
from fedrec.sharing.commitments import Committed, batch_digest, commitment, ticket
from fedrec.sharing.layout import layout
from fedrec.sharing.servers import ShareSums, total
from fedrec.sharing.shares import share

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
MODULUS, ITEMS, FOLDS, WIDTH = 2**64, 3, 2, 2


def stream(key: bytes, count: int) -> list[int]:
    """Words of AES-256 in counter mode from zero, little endian."""
    blocks = b"".join(i.to_bytes(16, "big") for i in range(-(-count // 2)))
    found = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    return [int.from_bytes(found[8 * i : 8 * i + 8], "little") for i in range(count)]


def mask(key: str, count: int) -> list[int]:
    context = bytes.fromhex(VECTORS["ticket"]) + b"/output/0"
    return stream(hmac.digest(bytes.fromhex(key), b"fedrec/zero/" + context, "sha256"), count)


def shares_of(number: int) -> list[list[int]]:
    """By user."""
    rows = VECTORS["rows"]
    expanded = [[stream(bytes.fromhex(seed), len(row)) for seed in user["seeds"]] for user, row in zip(VECTORS["users"], rows, strict=True)]
    if number < 2:
        return [user[number] for user in expanded]
    return [[(x - a - b) % MODULUS for x, a, b in zip(row, *user, strict=True)] for row, user in zip(rows, expanded, strict=True)]


def test_explicit_shares_and_outputs_follow_from_the_protocols_text() -> None:
    assert [user["explicit"] for user in VECTORS["users"]] == shares_of(2)
    for i, output in enumerate(VECTORS["outputs"]):
        own, following, found = shares_of(i), shares_of((i + 1) % 3), list[int]()
        for j in range(ITEMS):
            for k in range(WIDTH):
                at = ITEMS + j % FOLDS * WIDTH + k
                found.append(sum(x[j] * (x[at] + y[at]) + y[j] * x[at] for x, y in zip(own, following, strict=True)))
        masks = mask(VECTORS["keys"][i], len(found)), mask(VECTORS["keys"][(i + 1) % 3], len(found))
        assert output == [(t + a - b) % MODULUS for t, a, b in zip(found, *masks, strict=True)]
    sums = [sum(row[j] * row[ITEMS + j % FOLDS * WIDTH + k] for row in VECTORS["rows"]) for j in range(ITEMS) for k in range(WIDTH)]
    assert sums == VECTORS["sums"]
    assert [sum(parts) % MODULUS for parts in zip(*VECTORS["outputs"], strict=True)] == [s % MODULUS for s in sums]


def test_tickets_and_hashes_follow_from_the_protocols_text() -> None:
    parts = [VECTORS["run"].encode(), str(VECTORS["round"]).encode(), bytes.fromhex(VECTORS["question"])]
    parts += [name.encode() for name in VECTORS["aggregators"]] + [bytes.fromhex(nonce) for nonce in VECTORS["nonces"]]
    stated = hashlib.sha256(b"fedrec/ticket" + b"".join(len(p).to_bytes(4, "little") + p for p in parts)).digest()
    assert stated.hex() == VECTORS["ticket"]
    listed = b""
    for user in VECTORS["users"]:
        contents = [*map(bytes.fromhex, user["seeds"]), b"".join(x.to_bytes(8, "little") for x in user["explicit"])]
        blinds, report = (b"", b"", bytes.fromhex(user["blind"])), bytes.fromhex(user["report"])
        hashes = [
            hashlib.sha256(b"fedrec/share" + stated + report + bytes([n]) + blind + content).hexdigest()
            for n, (blind, content) in enumerate(zip(blinds, contents, strict=True))
        ]
        assert hashes == user["hashes"]
        listed += report + bytes.fromhex(user["user"]) + b"".join(map(bytes.fromhex, hashes))
    assert hashlib.sha256(b"fedrec/batch" + stated + listed).hexdigest() == VECTORS["batch"]


def test_the_package_says_the_same() -> None:
    rows, users = np.array(VECTORS["rows"], np.int64).view(np.uint64), VECTORS["users"]
    seeds = np.frombuffer(b"".join(bytes.fromhex(seed) for user in users for seed in user["seeds"]), np.uint8).reshape(-1, 2, 32)
    sent = share(rows, seeds)
    shape = layout(Question(0, "s", {}, (ReleaseSpec("s", (block("s", "linear", rows=ITEMS, width=WIDTH, folds=FOLDS),)),)))
    stated = ticket("run", 0, bytes.fromhex(VECTORS["question"]), [n.encode() for n in VECTORS["aggregators"]], _bytes("nonces"))
    assert stated.hex() == VECTORS["ticket"]
    outputs, keys = [], _bytes("keys")
    for i in range(3):
        sums = ShareSums(shape)
        sums.add(*sent.held_by(i))
        outputs.append(sums.output([np.zeros((ITEMS, WIDTH), np.int64)], (keys[i], keys[(i + 1) % 3]), stated))
        assert outputs[-1][0].ravel().tolist() == VECTORS["outputs"][i]
    assert total(outputs)[0].ravel().tolist() == VECTORS["sums"]
    listed = [Committed(bytes.fromhex(u["report"]), bytes.fromhex(u["user"]), tuple(map(bytes.fromhex, u["hashes"]))) for u in users]  # type: ignore[arg-type]
    assert batch_digest(stated, listed).hex() == VECTORS["batch"]
    content = sent.explicit[0].astype("<u8").tobytes()
    assert commitment(stated, listed[0].report, 2, bytes.fromhex(users[0]["blind"]), content) == listed[0].hashes[2]


def _bytes(name: str) -> list[bytes]:
    return [bytes.fromhex(value) for value in VECTORS[name]]
