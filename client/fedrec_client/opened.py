"""A client's data, ledger and way to the aggregator, opened as one.

A site's data as it is now: read again when a new run begins, where its files have changed since
they were read.

A run keeps what it began with as long as the process lives; people who joined, left or rated since
are those of the next run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from fedrec.errors import RunError
from fedrec.federation.protocol import ReportEndpoint
from fedrec.operations import logs
from fedrec.operations.party_settings import AggregatorAccess, names_of_three
from fedrec.operations.party_state import Awaited, PartyState, noting
from fedrec.transport.aggregator_client import RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access
from fedrec.transport.three_party_client import RemoteShareEndpoint
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant, SiteUsers
from fedrec_client.settings import (
    NEWS_FORMATS,
    ClientData,
    ClientSettings,
)
from fedrec_client.store import read_users
from fedrec_client.three_way import ThreeWay, names_of

if TYPE_CHECKING:
    from fedrec_client.news import NewsParticipant

log = logging.getLogger(__name__)

Users = TypeVar("Users")


class Renewal(Generic[Users]):
    """Reads `path` by `read`, and again where it changed."""

    def __init__(self, path: Path, read: Callable[[], Users]) -> None:
        self._path = path
        self._read = read
        self._stamp = _stamp(path)

    def __call__(self) -> Users | None:
        """The users where the files have changed, None where they have not.

        Raises RunError, whose words hold nothing of the data, where they cannot be read: the server
        hears that the client failed.
        """
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return None
        try:
            users = self._read()
        except Exception as failure:  # a reader's words quote rows
            cause = "this client's data cannot be read any more"
            remedy = "Correct the files: fedrec doctor says what is wrong."
            logs.say(
                log,
                "data-unreadable",
                level=logging.ERROR,
                error=type(failure).__name__,
                cause=cause,
                remedy=remedy,
            )
            raise RunError(cause, remedy) from None
        self._stamp = stamp
        return users


def _stamp(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Name, inode, size and time of every file."""
    files = (
        sorted(p for p in path.rglob("*") if p.is_file())
        if path.is_dir()
        else [path]
        if path.exists()
        else []
    )
    found = [(str(file), os.stat(file)) for file in files]
    return tuple((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in found)


def open_participant(
    settings: ClientSettings, folder: Path, stack: ExitStack, state: PartyState | None = None
) -> Participant | NewsParticipant:
    """A client's data, ledger and way to the aggregator as one, until `stack` closes. Raises
    FedRecError where one cannot be used.

    state: is told when the aggregator is waited for.
    """
    if settings.privacy.unit == "click":
        return _open_news(settings, folder, stack)
    # first: what is written meanwhile is read again
    renewal = Renewal(Path(settings.data.path), lambda: read_site(settings.data))
    users = read_site(settings.data)
    log = logging.getLogger(__name__)
    retry = Retry(tell=noting(state, Awaited.AGGREGATOR, log)) if state else None
    ledger = ClientLedger(
        folder / "ledger.sqlite", limit=settings.privacy.limit, seen=settings.seen
    )
    stack.callback(ledger.close)
    return Participant(
        settings.name,
        users,
        ledger,
        _endpoint(settings, retry, stack),
        folder,
        users_per_batch=settings.users_per_batch,
        keep_sent=settings.keep_sent,
        allow_not_established=settings.privacy.allow_not_established,
        personal_epsilon=settings.privacy.personal_epsilon,
        renew=renewal,
    )


def _endpoint(
    settings: ClientSettings, retry: Retry | None, stack: ExitStack
) -> ReportEndpoint | ThreeWay:
    """Endpoint of the one aggregator, or of three."""

    def way(one: AggregatorAccess) -> Access:
        return Access(**one.called_by(settings.name))

    if settings.aggregators:
        endpoints = [
            stack.enter_context(RemoteShareEndpoint(way(one), retry=retry))
            for one in settings.aggregators
        ]
        return ThreeWay(endpoints, names_of(names_of_three(settings.aggregators)))
    assert settings.aggregator is not None  # the settings' own check
    return stack.enter_context(RemoteReportEndpoint(way(settings.aggregator), retry=retry))


def read_site(data: ClientData) -> SiteUsers:
    """Ratings, clicks, or news. Raises DataError and SettingsError."""
    if data.format not in NEWS_FORMATS:
        return read_users(data)
    from fedrec_client.readers import read_readers

    return read_readers(data)


def _open_news(settings: ClientSettings, folder: Path, stack: ExitStack) -> NewsParticipant:
    from fedrec_client.click_ledger import ClickLedger
    from fedrec_client.news import NewsParticipant, NewsTrust  # bring torch
    from fedrec_client.readers import read_readers

    renewal = Renewal(Path(settings.data.path), lambda: read_readers(settings.data))
    users = read_readers(settings.data)
    ledger = ClickLedger(
        folder / "clicks.sqlite",
        limit=settings.privacy.limit,
        max_user_epsilon=settings.privacy.max_user_epsilon,
        seen=settings.seen,
    )
    stack.callback(ledger.close)
    trust = NewsTrust(
        settings.privacy.allow_not_established, frozenset(settings.privacy.open_categories)
    )
    return NewsParticipant(
        settings.name,
        users,
        ledger,
        folder,
        trust=trust,
        seed=settings.rehearsal_seed,
        renew=renewal,
    )
