"""HTTPS to an aggregator: what all people ask for by its digest, and caches may keep; and what one
person posts.

    GET  /v1/round                current round: run, round, digests of terms, plan and question,
                                  quorum; never cached
    GET  /v1/content/SHA256       bytes of that digest: a question's header, an array, a plan,
                                  terms; cached for ever
    POST /v1/users                16 bytes, a pseudonym to enrol
    POST /v1/departures           16 bytes, a pseudonym that leaves; what is stated of it
    POST /v1/reports/RUN/ROUND    a batch of one report

Whoever posts says who it is by a bearer secret of its own, of which the aggregator keeps a hash.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from fedrec.errors import RefusedError, SettingsError, UnreachableError
from fedrec_client.device.questions import count, parsed, text

_TIMEOUT_S = 60.0
_MOST_BYTES = 1 << 30
"""Of an answer: it may be slow on a phone's line, and must not fill a phone's memory."""


@dataclass(frozen=True)
class Service:
    """The aggregator's endpoint for devices, over HTTPS.

    Args:
        address: https://HOST:PORT; http:// of this machine alone.
        authority: A file of certificates; "" for the system's.
    """

    address: str
    authority: str = ""

    def round(self) -> dict[str, Any]:
        """Where training is.

        Returns:
            The open round's header and digests; empty where none is open.

        Raises:
            UnreachableError: The aggregator does not answer.
        """
        told = self._asked("GET", "/v1/round", None, "")
        try:
            round = parsed(told)
            for word in ("question", "terms"):
                text(round.get(word, ""))
            return round
        except (ValueError, TypeError):
            raise UnreachableError(
                f"{self.address} did not tell a round", "Check the address."
            ) from None

    def content(self, sha256: str) -> bytes:
        """Bytes of that digest, checked.

        Args:
            sha256: In hexadecimal digits.

        Returns:
            The bytes.

        Raises:
            UnreachableError: The aggregator does not answer, or has other bytes.
        """
        found = self._asked("GET", f"/v1/content/{sha256}", None, "")
        if hashlib.sha256(found).hexdigest() != sha256:
            raise UnreachableError(
                f"{self.address} sent other bytes than were asked for",
                "Try again; a cache on the way may be broken.",
            )
        return found

    def enroll(self, token: bytes, secret: str) -> None:
        """Make the person known.

        Args:
            token: The person's pseudonym, 16 bytes.
            secret: What later reports are sent with.

        Raises:
            RefusedError: The aggregator does not take the person.
            UnreachableError: It does not answer.
        """
        self._asked("POST", "/v1/users", token, secret)

    def forget(self, token: bytes, secret: str) -> dict[str, Any]:
        """Have the person counted no more.

        Args:
            token: The person's pseudonym.
            secret: What the person enrolled with.

        Returns:
            `statement`, `signature` and `certificate`.

        Raises:
            RefusedError: The aggregator never knew the person.
            UnreachableError: It does not answer.
        """
        told = self._asked("POST", "/v1/departures", token, secret)
        try:
            found = parsed(told)
            return {name: text(found[name]) for name in ("statement", "signature", "certificate")}
        except (ValueError, KeyError, TypeError):
            raise UnreachableError(f"{self.address} stated nothing", "Try again.") from None

    def report(self, run: str, round: int, batch: bytes, secret: str) -> dict[str, int]:
        """Send one report.

        Args:
            run: The training's id.
            round: Its round.
            batch: What `Device.answered` made.
            secret: What the person enrolled with.

        Returns:
            How often the report was refused, by code; empty where it was counted.

        Raises:
            RefusedError: The aggregator does not take reports now.
            UnreachableError: It does not answer.
        """
        told = self._asked("POST", f"/v1/reports/{run}/{round}", batch, secret)
        try:
            rejected = parsed(told)["rejected"]
            return {text(code): count(users) for code, users in rejected.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnreachableError(
                f"{self.address} did not say what it counted",
                "Try again; what was charged is not charged twice.",
            ) from None

    def _asked(self, method: str, path: str, body: bytes | None, secret: str) -> bytes:
        split = urlsplit(self.address)
        if split.scheme not in {"https", "http"} or (
            split.scheme == "http" and split.hostname not in {"127.0.0.1", "localhost"}
        ):
            raise SettingsError(
                f"{self.address} is no address of a service", "Give https://HOST:PORT."
            )
        assert split.hostname is not None
        if split.scheme == "https":
            context = ssl.create_default_context(cafile=self.authority or None)
            line: HTTPConnection = HTTPSConnection(
                split.hostname, split.port, timeout=_TIMEOUT_S, context=context
            )
        else:
            line = HTTPConnection(split.hostname, split.port, timeout=_TIMEOUT_S)
        try:
            line.request(
                method, path, body, {"Authorization": f"Bearer {secret}"} if secret else {}
            )
            answer = line.getresponse()
            content = answer.read(_MOST_BYTES)
        except (OSError, HTTPException) as failure:
            raise UnreachableError(
                f"{self.address} did not answer: {failure}",
                "Try again later; what was charged is not charged twice.",
            ) from None
        finally:
            line.close()
        if answer.status == 200:
            return content
        try:
            told = parsed(content)
            raise RefusedError(str(told["code"]), str(told["cause"]), "Nothing was counted.")
        except (ValueError, KeyError, TypeError):
            raise UnreachableError(
                f"{self.address} answered with status {answer.status}", "Try again later."
            ) from None
