"""One person's way through a run: the question is checked, the ledger charged, one bounded report
posted."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedrec.errors import RefusedError
from fedrec.federation.protocol import TOKEN_BYTES, Refusal
from fedrec.federation.report_batches import (
    MAX_DEVICE_BYTES,
    MAX_EVENTS_PER_USER,
    batch_bytes,
)
from fedrec.storage import PRIVATE, json_bytes, write_bytes
from fedrec_client.device.ledger import DeviceLedger
from fedrec_client.device.questions import (
    DevicePromise,
    Header,
    RunTerms,
    count,
    read_header,
    read_plan,
    read_terms,
    refused,
)
from fedrec_client.device.steps import STEPS, Rated, packed, require_sound, silence


@dataclass(frozen=True)
class History:
    """What the person rated.

    Args:
        items: Ids as the catalogue names them.
        values: A rating for each.
    """

    items: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Limit:
    """What the person allows in all runs together, per user, add/remove.

    Args:
        epsilon: Of all reports together.
        delta: The probability with which the guarantee may fail.
    """

    epsilon: float
    delta: float


class DeviceEndpoint(Protocol):
    """What a device asks: `service.Service`, or one in this process."""

    def round(self) -> dict[str, Any]:
        """Where training is."""

    def content(self, sha256: str) -> bytes:
        """Bytes of that digest."""

    def enroll(self, token: bytes, secret: str) -> None:
        """Make the person known."""

    def report(self, run: str, round: int, batch: bytes, secret: str) -> dict[str, int]:
        """Refused by code."""

    def forget(self, token: bytes, secret: str) -> dict[str, Any]:
        """What is stated of a person who leaves."""


class Device:
    """One person's device.

    Args:
        folder: Of the ledger and its secret.
        history: What the person rated; it stays here.
        limit: What the person allows.
        service: The aggregator's endpoint for devices.
        user: The person's name on the device, from which the pseudonym is made.
        seen: A file outside of `folder` that keeps the ledger's newest head: a folder that is put
            back, by one round too, is refused then.

    Attributes:
        unknown: How many of the person's items the catalogue of the latest round lacks. A device
            reports all the same: a refusal would tell what the person has.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        *,
        limit: Limit,
        service: DeviceEndpoint,
        user: str = "me",
        seen: Path | None = None,
    ) -> None:
        self.ledger = DeviceLedger(folder, epsilon=limit.epsilon, delta=limit.delta, seen=seen)
        self.unknown = 0
        self._folder = folder
        self._history = history
        secret = self.ledger.secret
        self.token = hmac.digest(secret, b"fedrec/1/user/" + user.encode(), "sha256")[:TOKEN_BYTES]
        self._service = service
        self._bearer = hmac.digest(secret, b"fedrec/1/bearer", "sha256").hex()
        self._enrolled: str | None = None
        self._terms: RunTerms | None = None

    def take_part(self) -> bool:
        """Answer the round that is open, if any; again is the same report, counted once.

        Returns:
            Whether there was a question to answer.

        Raises:
            RefusedError: The question, the plan or the report is not taken.
            BudgetExceededError: The limit would be passed.
            UnreachableError: The aggregator does not answer.
        """
        if self.ledger.departed:
            return False
        told = self._service.round()
        if not told.get("question"):
            self._enroll("")
            return False
        quorum = told.get("quorum", 0)
        try:
            count(quorum)
        except TypeError:
            raise refused(
                Refusal.MALFORMED, f"a quorum is a number of users, found {quorum!r}"
            ) from None
        header = read_header(self._service.content(told["question"]))
        promise = read_plan(self._service.content(header.plan), header.plan)
        if unplanned := [
            release.name for release in header.releases if release.name not in promise.mus
        ]:
            raise refused(Refusal.WRONG_PLAN, f"the plan has no release {unplanned[0]!r}")
        terms = self._read_terms(told["terms"], header)
        batch = self.answered(
            header, terms, quorum, charge=lambda: self._charge(header, promise, terms)
        )
        self._enroll(header.run)
        rejected = self._service.report(header.run, header.round, batch, self._bearer)
        if Refusal.NOT_ENROLLED.value in rejected:  # the aggregator was replaced
            self._enrolled = None
            self._enroll(header.run)
            rejected = self._service.report(header.run, header.round, batch, self._bearer)
        left = {
            code: count
            for code, count in rejected.items()
            if code not in {Refusal.REPLAYED.value, Refusal.ALREADY_REPORTED.value}
        }
        if left:
            raise RefusedError(
                next(iter(left)), "the report was not counted", "The same report may be sent again."
            )
        return True

    def forget(self) -> dict[str, Any]:
        """Leave for good: nothing is reported from here on, and the ledger stays; again is the
        same.

        Returns:
            What the aggregator states, kept in the folder too: `statement`, `signature` and
            `certificate`, as `fedrec forget --check` reads them.

        Raises:
            RefusedError: The aggregator never knew the person.
            UnreachableError: It does not answer; nothing is reported all the same.
        """
        self.ledger.depart()
        told = self._service.forget(self.token, self._bearer)
        path = self._folder / f"{self.token.hex()}.json"
        write_bytes(path, json_bytes({"statements": [told]}), mode=PRIVATE)
        return told

    def _enroll(self, run: str) -> None:
        """Once for each run, and before the first: a server counts on those who are known when a
        run begins."""
        if self._enrolled != run:
            self._service.enroll(self.token, self._bearer)
            self._enrolled = run

    def answered(
        self, header: Header, terms: RunTerms, quorum: int, *, charge: Any = lambda: None
    ) -> bytes:
        """The batch that answers the question.

        Args:
            header: Of the question.
            terms: Of its run.
            quorum: How many people must report.
            charge: Called once the question is checked, before anything private is read.

        Returns:
            One person's report, in the format of batches.

        Raises:
            RefusedError: The question is not taken.
        """
        if header.step not in STEPS:
            raise refused(
                Refusal.MALFORMED,
                f"{header.step!r} is no step that this device knows",
                "Install a newer version.",
            )
        _require_rows(header, len(terms.items))
        self.unknown = len(set(self._history.items) - set(terms.items))
        question = header.question(
            {name: self._service.content(sha256) for name, (_, _, sha256) in header.arrays.items()}
        )
        charge()
        mine = _translated(self._history, terms)
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused below, by its value
                items, parts = STEPS[header.step](question, mine)
            require_sound(items, parts, question.releases)
        except Exception:
            # whatever a hostile array brings about must not show in whether a report comes: it is
            # empty then
            items = mine.items[:0]
            parts = silence(question.blocks)
        purpose = f"fedrec/1/report/{header.run}/{header.round}/{header.digest}/".encode()
        report_id = hmac.digest(self.ledger.secret, purpose + self.token, "sha256")[:TOKEN_BYTES]
        return packed(_named(header.digest, quorum), report_id, self.token, items, parts)

    def _charge(self, header: Header, promise: DevicePromise, terms: RunTerms) -> None:
        self.ledger.charge(
            header.run,
            header.round,
            header.digest,
            promise,
            [release.name for release in header.releases],
            terms=terms.digest,
        )

    def _read_terms(self, sha256: str, header: Header) -> RunTerms:
        """Terms of the run; the ledger pins their digest with the first round that it charges."""
        if self._terms is None or self._terms.digest != sha256:
            terms = read_terms(self._service.content(sha256))
            if terms.digest != sha256:
                raise refused(Refusal.WRONG_QUESTION, "other terms came than were asked for")
            self._terms = terms
        if self._terms.run != header.run:
            raise refused(Refusal.WRONG_QUESTION, "the terms are of another run than the question")
        return self._terms


def _translated(history: History, terms: RunTerms) -> Rated:
    """By the run's item numbers and on the scale [-2, 2]; items that the catalogue does not have
    are left out."""
    place = {item: j for j, item in enumerate(terms.items)}
    low, high = terms.value_range
    known = sorted(
        {
            place[item]: value
            for item, value in zip(history.items, history.values, strict=True)
            if item in place
        }.items()
    )
    values = np.array([value for _, value in known], np.float32)
    inside = (values >= low) & (values <= high)
    items = np.array([item for item, _ in known], np.int32)[inside]
    x = (np.asarray(values[inside], np.float64) - (low + high) / 2) * (4 / (high - low))
    return Rated(items, x, len(place))


def _require_rows(header: Header, items: int) -> None:
    """Arrays have one number, or a row for each item, or list items; blocks have one row or a row
    for each of either, and fit what an aggregator takes however many items the person has."""
    listed = header.arrays["items"][1][0] if "items" in header.arrays else 1
    if len({spec.rows for release in header.releases for spec in release.blocks} - {1}) > 1:
        raise refused(Refusal.MALFORMED, "blocks have different numbers of rows")
    for name, (_, shape, _) in header.arrays.items():
        if name != "items" and shape and shape[0] != items:
            raise refused(
                Refusal.MALFORMED,
                f"public array {name!r} of shape {shape} does not fit {items} items",
            )
    for release in header.releases:
        for spec in release.blocks:
            if spec.rows not in {1, items, listed}:
                raise refused(
                    Refusal.MALFORMED,
                    f"block {spec.name!r} has {spec.rows} rows, the catalogue {items} items",
                )
    blocks = [spec for release in header.releases for spec in release.blocks]
    if batch_bytes(blocks, users=1, events=min(items, MAX_EVENTS_PER_USER)) > MAX_DEVICE_BYTES:
        raise refused(Refusal.TOO_LARGE, f"a report could have more than {MAX_DEVICE_BYTES} bytes")


def _named(digest: str, quorum: int) -> bytes:
    """Digest that reports name, as `federation.wire.report_digest` makes it."""
    named = bytes.fromhex(digest)
    return (
        hashlib.sha256(b"fedrec/quorum" + named + quorum.to_bytes(8, "big")).digest()
        if quorum
        else named
    )
