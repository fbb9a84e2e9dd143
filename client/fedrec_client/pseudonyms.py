"""Names that stand for a user and for a report: without the site's secret they say nothing, and
they are the same every time.

A resent report must be the report that was sent: the aggregator counts a report id once. Both names
are HMAC-SHA256 under the site's secret, cut to 16 bytes: among 2^32 of them two are alike with
probability 2^-65.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from collections.abc import Sequence

import numpy as np

from fedrec.arrays import UInt8s
from fedrec.federation.protocol import TOKEN_BYTES

SECRET_BYTES = 32
SECRET_SCHEMA = "CREATE TABLE IF NOT EXISTS secret (value BLOB NOT NULL);"


def kept_secret(database: sqlite3.Connection) -> bytes:
    """The secret of a ledger, made where there is none yet; its table is `SECRET_SCHEMA`'s."""
    kept = database.execute("SELECT value FROM secret").fetchone()
    if kept is None:
        kept = (os.urandom(SECRET_BYTES),)
        database.execute("INSERT INTO secret VALUES (?)", kept)
    return bytes(kept[0])


def user_tokens(secret: bytes, user_ids: Sequence[str]) -> UInt8s:
    """(num_users, 16) uint8: one pseudonym per user of the site, the same in all runs."""
    return _names(secret, b"fedrec/1/user/", [user.encode() for user in user_ids])


def report_ids(secret: bytes, tokens: UInt8s, *, run: str, round: int, digest: str) -> UInt8s:
    """(num_users, 16) uint8: one id per user, run, round and question."""
    return _names(
        secret,
        f"fedrec/1/report/{run}/{round}/{digest}/".encode(),
        [token.tobytes() for token in tokens],
    )


def _names(secret: bytes, purpose: bytes, whose: Sequence[bytes]) -> UInt8s:
    content = b"".join(hmac.digest(secret, purpose + one, "sha256")[:TOKEN_BYTES] for one in whose)
    return np.frombuffer(content, np.uint8).reshape(len(whose), TOKEN_BYTES)
