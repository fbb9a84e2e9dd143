"""The server's way to the one aggregator, or to three: stubs, what was seen of their ledgers, and
what their limits leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import RefusedError, SettingsError, UnreachableError
from fedrec.federation.protocol import Budget, ReleaseEndpoint, follow
from fedrec.operations import logs
from fedrec.operations.certificates import PLACES
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_settings import AggregatorAccess
from fedrec.privacy.calibration import Plan
from fedrec.settings_tables.training import PrivacySettings
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, Retry
from fedrec.transport.channel import Access
from fedrec_server.settings import ServerSettings
from fedrec_server.watching import SeenLedger, WatchedEndpoint

log = logging.getLogger(__name__)


class FollowedEndpoint(RemoteReleaseEndpoint):
    """A `ReleaseEndpoint` whose ledger is looked at before a round is opened, and after its release
    was fetched. Raises RefusedError (`STALE_LEDGER`) where the ledger does not hold what was seen.
    """

    def __init__(self, access: Access, memory: SeenLedger, retry: Retry) -> None:
        super().__init__(access, retry=retry)
        self.memory = memory

    def enrolled(self) -> int:
        """Implements `ReleaseEndpoint.enrolled`; the ledger first."""
        follow(self.growth, self.memory)
        return super().enrolled()

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseEndpoint.open_run`; the ledger first."""
        follow(self.growth, self.memory)
        super().open_run(run, plan)

    def release(self, run: str, round: int) -> bytes:
        """Implements `ReleaseEndpoint.release`; what was charged for it is seen then."""
        content = super().release(run, round)
        follow(self.growth, self.memory)
        return content


@dataclass(frozen=True)
class Aggregation:
    """An endpoint, what is left of the budget, and what aggregators sign of a run, in the order of
    their places; nothing without an aggregator."""

    endpoint: ReleaseEndpoint | None = None
    budget: Callable[[], Budget] | None = None
    remotes: Sequence[RemoteReleaseEndpoint] = ()

    def statements(self, run: str, rounds: int) -> list[Mapping[str, Any]]:
        """What `certificates.writing.certify` takes; of each of three its outputs too."""
        told = list[Mapping[str, Any]]()
        try:
            for remote in self.remotes:
                said = remote.statement(run)
                share = len(self.remotes) > 1
                outputs = [remote.release(run, k) for k in range(rounds if share else 0)]
                told.append({**asdict(said), "outputs": outputs})
        except (RefusedError, UnreachableError) as failure:
            logs.say_failure(log, "no-statement", failure, run=run)
            return []
        return told


def aggregation_of(
    privacy: PrivacySettings,
    settings: ServerSettings,
    metrics: Metrics,
    retry: Retry,
    stack: ExitStack,
) -> Aggregation:
    """Everything of the aggregators until `stack` closes.

    Raises SettingsError where the scenario is of three aggregators and the settings are of one, or
    the other way round.
    """
    named = "three-party" if settings.aggregators else "trusted"
    if privacy.aggregation != named:
        cause = (
            f'privacy.aggregation = "{privacy.aggregation}", but the server\'s settings '
            f'name aggregators for "{named}"'
        )
        raise SettingsError(
            cause,
            "Give them one table aggregator, or three tables aggregators, as in docs/deploy.md.",
        )
    if settings.aggregators:
        three = [
            stack.enter_context(FollowedEndpoint(access(one), seen, retry))
            for one, seen in zip(settings.aggregators, _of_three(settings), strict=True)
        ]
        return Aggregation(
            WatchedEndpoint(ThreeEndpoints(three), metrics),
            lambda: min((one.budget() for one in three), key=lambda left: left.left_epsilon),
            three,
        )
    if settings.aggregator is None:
        return Aggregation()
    remote = stack.enter_context(
        FollowedEndpoint(access(settings.aggregator), memory(settings), retry)
    )
    return Aggregation(WatchedEndpoint(remote, metrics), remote.budget, [remote])


def memory(settings: ServerSettings) -> SeenLedger:
    """What was seen of the aggregator's ledger, by this server."""
    return SeenLedger(Path(settings.seen_ledger or Path(settings.state) / "aggregator-ledger.json"))


def memories(settings: ServerSettings) -> tuple[SeenLedger, ...]:
    """Memories of the ledger of every aggregator that this server knows."""
    return _of_three(settings) if settings.aggregators else (memory(settings),)


def access(table: AggregatorAccess) -> Access:
    """An aggregator's table as what its stubs take. Raises SettingsError."""
    return Access(**(table.model_dump() | {"name": "server"}))


def _of_three(settings: ServerSettings) -> tuple[SeenLedger, ...]:
    """A file for each, beside where one aggregator's would be."""
    one = memory(settings).path
    return tuple(SeenLedger(one.with_name(f"{one.stem}-{place}{one.suffix}")) for place in PLACES)
