"""Refusals of a client, as a server hears of them: a stable code, and words that no user's data has
any part in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fedrec.errors import (
    DataError,
    FedRecError,
    MalformedRowError,
    PrivacyError,
    RefusedError,
    SettingsError,
    UnreachableError,
)
from fedrec.federation.protocol import Refusal
from fedrec.operations import logs

T = TypeVar("T")

UNREACHABLE = "unreachable"
FAILED = "failed"
UNSUITED = "unsuited"
"""Codes of answers besides `Refusal`: the aggregator did not answer; the client's own disk or
ledger failed; the run is about another kind of data, or another scale."""

LONGEST_CAUSE = 500
"""Characters: a cause may quote a name that the server made up."""


def public_words(failure: FedRecError) -> tuple[str, str]:
    """A stable code and words that no user's data has any part in: what the server may hear of a
    failure."""
    match failure:
        case RefusedError():
            return failure.code, failure.cause
        case UnreachableError():
            return UNREACHABLE, "the aggregator did not answer"
        case PrivacyError():
            return Refusal.WRONG_PLAN, failure.cause
        case SettingsError():
            return Refusal.MALFORMED, failure.cause
        case MalformedRowError():
            return UNSUITED, "a file of this client is malformed"  # its words quote the file
        case DataError():
            return UNSUITED, failure.cause
        case _:
            return FAILED, "the client's ledger or state folder cannot be used"


def from_the_aggregator(
    failure: UnreachableError | RefusedError, what: str
) -> UnreachableError | RefusedError:
    """The aggregator's words are for this client; the server gets its code."""
    if isinstance(failure, UnreachableError):
        return failure
    return RefusedError(
        failure.code, f"the aggregator {what}", f"{failure.cause}. {failure.remedy}"
    )


def guarded(
    log: logging.Logger, mutex: threading.Lock, attempt: Callable[[], T], **where: Any
) -> tuple[T | None, str, str]:
    """What an attempt returns; or None, and what the server hears in its place: a code and words
    that no user's data has any part in, whatever happened here. where: for the log."""
    try:
        with mutex:
            return attempt(), "", ""
    except FedRecError as failure:  # ours: its words hold no value of a user
        code, cause = public_words(failure)
        why = {"cause": failure.cause, "remedy": failure.remedy}
        logs.say(log, "refused", level=logging.WARNING, **where, code=code, **why)
        return None, code, cause[:LONGEST_CAUSE]
    except Exception as failure:  # a defect or a full disk; its words could hold anything
        logs.say_failure(log, "failed", failure, **where)
        return None, FAILED, "the client failed; its log says where"
