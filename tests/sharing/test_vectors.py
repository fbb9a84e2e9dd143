"""tests/sharing/vectors.json, by second code: Python's integers, hashlib, and AES in electronic
codebook mode, nothing of fedrec."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.reports import block
from fedrec.sharing.layout import CheckedRow, Equation, layout
from fedrec.sharing.servers import ShareSums, accepted, coin_term, opening, projection, total
from fedrec.sharing.shares import Committed, batch_digest, commitment, share, ticket

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
MODULUS = 2**64
ITEMS = 3
FOLDS = 2
WIDTH = 2
ROWS = 40


def stream(key: bytes, count: int) -> list[int]:
    """Words of AES-256 in counter mode from zero, little endian."""
    blocks = b"".join(i.to_bytes(16, "big") for i in range(-(-count // 2)))
    found = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    return [int.from_bytes(found[8 * i : 8 * i + 8], "little") for i in range(count)]


def masks(i: int, context: bytes, count: int) -> list[int]:
    """Of aggregator i: of its own key less of the following one's."""
    keys = (bytes.fromhex(VECTORS["keys"][n]) for n in (i, (i + 1) % 3))
    own, following = (
        stream(hmac.digest(key, b"fedrec/zero/" + context, "sha256"), count) for key in keys
    )
    return [a - b for a, b in zip(own, following, strict=True)]


def split(row: list[int], seeds: list[str]) -> list[list[int]]:
    """Three shares."""
    a, b = (stream(bytes.fromhex(seed), len(row)) for seed in seeds)
    return [a, b, [(x - one - two) % MODULUS for x, one, two in zip(row, a, b, strict=True)]]


def shares_of(number: int) -> list[list[int]]:
    """By user."""
    return [
        split(row, user["seeds"])[number]
        for row, user in zip(VECTORS["rows"], VECTORS["users"], strict=True)
    ]


def test_explicit_shares_and_outputs_follow_from_the_protocols_text() -> None:
    assert [user["explicit"] for user in VECTORS["users"]] == shares_of(2)
    for i, output in enumerate(VECTORS["outputs"]):
        own = shares_of(i)
        following = shares_of((i + 1) % 3)
        found = list[int]()
        for j in range(ITEMS):
            for k in range(WIDTH):
                at = ITEMS + j % FOLDS * WIDTH + k
                found.append(
                    sum(
                        x[j] * (x[at] + y[at]) + y[j] * x[at]
                        for x, y in zip(own, following, strict=True)
                    )
                )
        hidden = masks(i, bytes.fromhex(VECTORS["ticket"]) + b"/output/0", len(found))
        assert output == [(t + a) % MODULUS for t, a in zip(found, hidden, strict=True)]
    sums = [
        sum(row[j] * row[ITEMS + j % FOLDS * WIDTH + k] for row in VECTORS["rows"])
        for j in range(ITEMS)
        for k in range(WIDTH)
    ]
    assert sums == VECTORS["sums"]
    assert [sum(parts) % MODULUS for parts in zip(*VECTORS["outputs"], strict=True)] == [
        s % MODULUS for s in sums
    ]


def test_tickets_and_hashes_follow_from_the_protocols_text() -> None:
    parts = [
        VECTORS["run"].encode(),
        str(VECTORS["round"]).encode(),
        bytes.fromhex(VECTORS["question"]),
    ]
    parts += [name.encode() for name in VECTORS["aggregators"]] + [
        bytes.fromhex(nonce) for nonce in VECTORS["nonces"]
    ]
    stated = hashlib.sha256(
        b"fedrec/ticket" + b"".join(len(p).to_bytes(4, "little") + p for p in parts)
    ).digest()
    assert stated.hex() == VECTORS["ticket"]
    listed = b""
    for user in VECTORS["users"]:
        contents = [
            *map(bytes.fromhex, user["seeds"]),
            b"".join(x.to_bytes(8, "little") for x in user["explicit"]),
        ]
        blinds = (b"", b"", bytes.fromhex(user["blind"]))
        report = bytes.fromhex(user["report"])
        hashes = [
            hashlib.sha256(
                b"fedrec/share" + stated + report + bytes([n]) + blind + content
            ).hexdigest()
            for n, (blind, content) in enumerate(zip(blinds, contents, strict=True))
        ]
        assert hashes == user["hashes"]
        listed += report + bytes.fromhex(user["user"]) + b"".join(map(bytes.fromhex, hashes))
    assert hashlib.sha256(b"fedrec/batch" + stated + listed).hexdigest() == VECTORS["batch"]


def test_checks_follow_from_the_protocols_text() -> None:
    """The second of two users has 2^32 in a coefficient."""
    checks = VECTORS["checks"]
    batch = bytes.fromhex(VECTORS["ticket"]) + bytes.fromhex(VECTORS["batch"])
    terms = [
        hmac.digest(bytes.fromhex(key), b"fedrec/coin/" + batch, "sha256")
        for key in VECTORS["keys"]
    ]
    assert [term.hex() for term in terms] == checks["coin"]
    numbers = checks["projected"]
    rows = checks["rows"]
    equations = checks["equations"]
    words = stream(
        hashlib.sha256(b"fedrec/coin" + b"".join(terms)).digest(), -(-2 * numbers * ROWS // 64)
    )
    bits = [
        byte >> (7 - k) & 1
        for word in words
        for byte in word.to_bytes(8, "little")
        for k in range(8)
    ]
    C = [
        [bits[j * ROWS + r] - bits[(numbers + j) * ROWS + r] for r in range(ROWS)]
        for j in range(numbers)
    ]
    width = len(equations) + ROWS
    split_rows = [split(row, seeds) for row, seeds in zip(rows, checks["seeds"], strict=True)]
    for i in range(3):
        hidden = iter(masks(i, batch + b"/open/0", len(rows) * width))
        found = list[list[int]]()
        for shares in split_rows:
            own = shares[i]
            following = shares[(i + 1) % 3]
            told = list[int]()
            for equation in equations:
                ranges = [*equation["terms"], [*equation["slack"], 1]]
                weighted = [
                    (j, weight) for first, last, weight in ranges for j in range(first, last)
                ]
                told.append(
                    sum(weight * own[j] * (own[j] + 2 * following[j]) for j, weight in weighted)
                    - (i == 0) * equation["square"]
                )
            told += [
                own[numbers + r] + sum(own[j] * C[j][r] for j in range(numbers))
                for r in range(ROWS)
            ]
            found.append([(term + next(hidden)) % MODULUS for term in told])
        assert found == checks["openings"][i]
    opened = [
        [sum(parts) % MODULUS for parts in zip(*one, strict=True)]
        for one in zip(*checks["openings"], strict=True)
    ]
    small = [
        [min(y, MODULUS - y) <= checks["limit"] for y in one[len(equations) :]] for one in opened
    ]
    assert [
        not any(one[: len(equations)]) and all(fine)
        for one, fine in zip(opened, small, strict=True)
    ] == checks["accepted"]
    assert opened[0][: len(equations)] == [0] * len(equations)


def test_the_package_says_the_same_of_checks() -> None:
    checks = VECTORS["checks"]
    keys = _bytes("keys")
    batch = bytes.fromhex(VECTORS["batch"])
    equations = tuple(
        Equation(
            tuple((slice(a, b), weight) for a, b, weight in one["terms"]),
            slice(*one["slack"]),
            one["square"],
        )
        for one in checks["equations"]
    )
    numbers = checks["projected"]
    stated = bytes.fromhex(VECTORS["ticket"])
    checked = CheckedRow(
        equations, slice(0, numbers), slice(numbers, numbers + ROWS), checks["limit"]
    )
    seeds = np.frombuffer(
        b"".join(bytes.fromhex(seed) for user in checks["seeds"] for seed in user), np.uint8
    ).reshape(-1, 2, 32)
    sent = share(np.array(checks["rows"], np.int64).view(np.uint64), seeds)
    C = projection([coin_term(key, stated, batch) for key in keys], numbers)
    opened = [
        opening(
            *sent.held_by(i),
            checked,
            C,
            i,
            (keys[i], keys[(i + 1) % 3]),
            stated + batch + b"/open/0",
        )
        for i in range(3)
    ]
    assert [one.tolist() for one in opened] == checks["openings"]
    assert accepted(opened, checked).tolist() == checks["accepted"] == [True, False]


def test_the_package_says_the_same() -> None:
    rows = np.array(VECTORS["rows"], np.int64).view(np.uint64)
    users = VECTORS["users"]
    seeds = np.frombuffer(
        b"".join(bytes.fromhex(seed) for user in users for seed in user["seeds"]), np.uint8
    ).reshape(-1, 2, 32)
    sent = share(rows, seeds)
    shape = layout(
        Question(
            0,
            "s",
            {},
            (ReleaseSpec("s", (block("s", "linear", rows=ITEMS, width=WIDTH, folds=FOLDS),)),),
        )
    )
    stated = ticket(
        "run",
        0,
        bytes.fromhex(VECTORS["question"]),
        [n.encode() for n in VECTORS["aggregators"]],
        _bytes("nonces"),
    )
    assert stated.hex() == VECTORS["ticket"]
    outputs = []
    keys = _bytes("keys")
    for i in range(3):
        sums = ShareSums(shape)
        sums.add(*sent.held_by(i))
        outputs.append(
            sums.output([np.zeros((ITEMS, WIDTH), np.int64)], (keys[i], keys[(i + 1) % 3]), stated)
        )
        assert outputs[-1][0].ravel().tolist() == VECTORS["outputs"][i]
    assert total(outputs)[0].ravel().tolist() == VECTORS["sums"]
    listed = [
        Committed(
            bytes.fromhex(u["report"]),
            bytes.fromhex(u["user"]),
            tuple(map(bytes.fromhex, u["hashes"])),
        )
        for u in users
    ]  # type: ignore[arg-type]
    assert batch_digest(stated, listed).hex() == VECTORS["batch"]
    content = sent.explicit[0].astype("<u8").tobytes()
    assert (
        commitment(stated, listed[0].report, 2, bytes.fromhex(users[0]["blind"]), content)
        == listed[0].hashes[2]
    )


def _bytes(name: str) -> list[bytes]:
    return [bytes.fromhex(value) for value in VECTORS[name]]
