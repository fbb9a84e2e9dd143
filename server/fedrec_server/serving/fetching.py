"""A bundle from the server that trains, fetched when it is another one: bounded, checked, and put
where a folder is watched.

What arrives is written beside its place. It is moved there only where its bytes hash to what was
announced, it can be read whole, and it may be served: a broken or lying answer leaves what answers
alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedrec.errors import FedRecError, RunError, SettingsError, UnreachableError
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.serving.bundle import read, sha256_of
from fedrec.storage import writing
from fedrec_server.serving.settings import FetchTable
from fedrec_server.serving.store import found

if TYPE_CHECKING:
    import httpx2

_REMEDY = "Look at the server's log; what is served stays as it is."
_KEPT_REMEDY = "Free disk space, or make the folder writable; what is served stays as it is."
_CONNECT_S = 10.0
_LOOK_S = 0.5
"""To connect, which a server that is there does in less; and between two looks whether this process
is to end."""


@dataclass(frozen=True)
class Source:
    """url: https://host:port of a server's `publish` table. path: where its bundle is kept here.
    demo: experiments too."""

    url: str
    path: Path
    table: FetchTable
    demo: bool = False

    @staticmethod
    def of(url: str, folder: Path, table: FetchTable, *, demo: bool) -> Source:
        """Kept in `folder` under a name of its own.

        Raises SettingsError where a token would be sent in the clear."""
        if urlsplit(url).scheme != "https" and not _loopback(url):
            raise SettingsError(
                f"{url} is not https: others could read the token", "Write https://host:port."
            )
        return Source(
            url.rstrip("/"),
            folder / f"fetched-{hashlib.sha256(url.encode()).hexdigest()[:16]}.safetensors",
            table,
            demo,
        )

    def fetch(self) -> str:
        """SHA-256 of a bundle that is new here and in its place now, "" where it is the same, or
        there is none yet.

        Raises UnreachableError where the server does not answer, RunError where its answer is no
        bundle that may be served, or cannot be kept.
        """
        import httpx2  # here, as below: most servers fetch nothing

        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        with writing(self.path.parent, _KEPT_REMEDY):
            try:
                have = sha256_of(self.path) if self.path.exists() else ""
                sha256 = self._download(beside, have)
                if sha256 and sha256 != have:
                    self._check(beside)
                    os.replace(beside, self.path)
                return "" if sha256 == have else sha256
            except httpx2.HTTPError as failure:
                raise UnreachableError(
                    f"{self.url} does not answer: {type(failure).__name__}", _REMEDY
                ) from None
            finally:
                beside.unlink(missing_ok=True)

    def _download(self, beside: Path, have: str) -> str:
        """The SHA-256 of what lies in `beside` now, or `have` where nothing was sent."""
        import httpx2

        with (
            httpx2.Client(
                verify=self._trust(),
                timeout=httpx2.Timeout(self.table.timeout_s, connect=_CONNECT_S),
                trust_env=False,
            ) as client,
            client.stream("GET", f"{self.url}/v1/bundle", headers=self._headers(have)) as answer,
        ):
            if answer.status_code in (304, 404):
                return have
            if answer.status_code != 200:
                raise RunError(
                    f"{self.url} answers {answer.status_code}",
                    f"Check the token and the address. {_REMEDY}",
                )
            announced = answer.headers.get("ETag", "").strip('"')
            return self._written(answer, beside, announced)

    def _written(self, answer: httpx2.Response, beside: Path, announced: str) -> str:
        found = hashlib.sha256()
        size = 0
        most = self.table.max_bytes
        beside.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            for piece in answer.iter_raw():
                size += len(piece)
                if size > most:
                    raise RunError(
                        f"{self.url} sends more than {most} bytes",
                        f"Raise fetch.max_bytes where that is right. {_REMEDY}",
                    )
                found.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if found.hexdigest() != announced:
            raise RunError(f"{self.url} sent other bytes than it announced", _REMEDY)
        return announced

    def _check(self, beside: Path) -> None:
        """Raises RunError where it is no bundle, or of an experiment that may not be served."""
        if read(beside).about.experiment and not self.demo:
            raise RunError(
                f"{self.url} has a model that was trained with seeded noise",
                "Serve it with --demo, which tells everybody.",
            )

    def _headers(self, have: str) -> Mapping[str, str]:
        try:
            token = Path(self.table.token).read_text().strip()
        except OSError as failure:
            raise RunError(
                f"fetch.token: {self.table.token}: {failure.strerror}", "Name a readable file."
            ) from None
        return {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"} | (
            {"If-None-Match": f'"{have}"'} if have else {}
        )

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self.table.ca) if self.table.ca else None)
        except OSError as failure:
            raise RunError(
                f"fetch.ca: {self.table.ca}: {failure.strerror or failure}",
                "Name a readable PEM file.",
            ) from None


def is_address(text: str) -> bool:
    """Whether a word of the command line is an address to fetch from, and no path."""
    return text.startswith(("https://", "http://"))


async def first_models(
    paths: Sequence[Path],
    sources: Sequence[Source],
    *,
    wait: bool,
    stop: threading.Event,
    log: logging.Logger,
) -> bool:
    """Whether there is a bundle at every path: fetched, or waited for until `stop`.

    Without `wait`, raises what the fetch raised where nothing was fetched before; a path without a
    bundle is found later.
    """
    said = set[str]()
    due_s = 0.0
    loop = asyncio.get_running_loop()
    while True:
        for source in sources if loop.time() >= due_s else ():
            try:
                await loop.run_in_executor(None, source.fetch)
            except FedRecError as failure:
                if not wait and not source.path.exists():
                    raise
                if failure.cause not in said:
                    said.add(failure.cause)
                    _say_not_fetched(log, failure)
            due_s = loop.time() + source.table.every_s
        missing = [path for path in paths if found(path) is None]
        if not missing or not wait:
            return True
        if (words := f"waiting: no model at {missing[0]} yet") not in said:
            said.add(words)
            logs.say(log, words)
        await asyncio.sleep(_LOOK_S)
        if stop.is_set():
            return False


async def fetch_on(source: Source, log: logging.Logger) -> None:
    """Ask again and again; a failure is logged, and leaves what is served alone."""
    loop = asyncio.get_running_loop()
    last = ""
    while True:
        await asyncio.sleep(source.table.every_s)
        try:
            sha256 = await loop.run_in_executor(None, source.fetch)
            last = ""
            if sha256:
                logs.say(log, "fetched", sha256=sha256)
        except FedRecError as failure:
            if failure.cause != last:  # an hour of the same is one line
                last = failure.cause
                _say_not_fetched(log, failure)


def _say_not_fetched(log: logging.Logger, failure: FedRecError) -> None:
    level = logging.WARNING
    logs.say(log, "not-fetched", level=level, cause=failure.cause, remedy=failure.remedy)


def _loopback(url: str) -> bool:
    parts = urlsplit(url)
    try:
        return Address(parts.hostname or "", parts.port or 80).loopback
    except ValueError:
        return False
