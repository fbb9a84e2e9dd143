"""Verification of ledgers: each by itself, and beside what others have seen of the aggregator's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.cli.ledgers import account
from fedrec.cli.ledgers.inventory import chain_of, of_client, shown
from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec.federation.protocol import LedgerHead
from fedrec.operations.settings_files import kind_of
from fedrec.storage import read_json
from fedrec_aggregator.chain import Chain, RoundReleased
from fedrec_aggregator.postgres_ledger import held_in
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import load as load_client


@dataclass(frozen=True)
class LedgerFinding:
    """One thing that was looked at: `wrong` is empty where it is in order, else says what is not,
    and `remedy` what helps."""

    party: str
    what: str
    wrong: str = ""
    remedy: str = ""
    exit_code: int = 0


def verified(paths: Sequence[Path]) -> tuple[LedgerFinding, ...]:
    """Every ledger by itself, and, where the aggregator's is among them, what the others have seen
    of it."""
    return tuple(_verified(paths))


def _verified(paths: Sequence[Path]) -> Iterator[LedgerFinding]:
    # the aggregator's first: the others are set beside it
    aggregators = [path for path in paths if kind_of(path) == "aggregator"]
    held: Chain | None = None
    for path in aggregators:
        yield from _of_an_aggregator(load_aggregator(path))
        held = _whole_chain(load_aggregator(path))
    for path in paths:
        if path not in aggregators:
            yield from _VERIFIED[kind_of(path)](path)
            if held is not None:
                yield _followed(path, held)


def _of_an_aggregator(settings: AggregatorSettings) -> Iterator[LedgerFinding]:
    yield _examined("aggregator", "its chain is whole", lambda: chain_of(settings))
    yield from _releases(settings)


def _whole_chain(settings: AggregatorSettings) -> Chain | None:
    try:
        return Chain(chain_of(settings)[0])
    except FedRecError:
        return None


def _of_a_client(path: Path) -> Iterator[LedgerFinding]:
    client = load_client(path)
    party = f"client {client.name}"
    yield _examined(party, "its chain is whole", lambda: of_client(client))
    yield _examined(party, "its head file knows no more", lambda: _heads(client))


def _of_serving(path: Path) -> Iterator[LedgerFinding]:
    raise SettingsError(f"{path} is of serving, which keeps no ledger", "Leave it out.")


_VERIFIED: Mapping[str, Callable[[Path], Iterable[LedgerFinding]]] = {
    "client": _of_a_client,
    "server": lambda path: (),
    "serving": _of_serving,
}
"""What is looked at in the ledger of a party by itself, by its kind."""


def _examined(party: str, what: str, look: Callable[[], object]) -> LedgerFinding:
    try:
        look()
    except FedRecError as failure:
        return LedgerFinding(party, what, failure.cause, failure.remedy, failure.exit_code)
    return LedgerFinding(party, what)


def _releases(settings: AggregatorSettings) -> Iterator[LedgerFinding]:
    """Files that are there must be what was released; those that are not may have been removed
    (`ReleaseLedger.removable`)."""
    what = "release files are what was released"
    wrong = list[str]()
    try:
        links, _ = chain_of(settings)
        stored = held_in(settings.postgres.conninfo).releases if settings.postgres else None
    except FedRecError:
        return
    for link in links:
        if isinstance(entry := link.entry, RoundReleased):
            path = settings.state / "releases" / entry.run / f"round-{entry.round:03d}.safetensors"
            if stored is not None:
                found = stored.get((entry.run, entry.round))
            else:
                found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            if found not in {None, entry.release_sha256}:
                wrong.append(f"{path.parent.name}/{path.name}")
    remedy = (
        "Put the files of the newest backup back: a release must be the same however often it is "
        "asked for."
    )
    yield (
        LedgerFinding("aggregator", what, f"not as recorded: {', '.join(wrong)}", remedy, 6)
        if wrong
        else LedgerFinding("aggregator", what)
    )


def _heads(settings: ClientSettings) -> None:
    """Raises RunError where the small file beside the ledger says that there was more."""
    path = account.ledger_path(settings)
    heads = [entry.head for entry in account.of_client(settings).entries]
    beside = path.with_suffix(".head.json")
    if not beside.exists() and not heads:
        return
    kept = read_json(beside)
    if int(kept["number"]) > len(heads) or (
        kept["number"] and heads[int(kept["number"]) - 1] != kept["head"]
    ):
        cause = f"{path} is older than {beside.name} beside it, or one of the two was replaced"
        raise RunError(
            cause,
            (
                "Put back the newest pair (`fedrec restore`). If it is lost, what was spent is "
                "not known."
            ),
        )


def _followed(path: Path, held: Chain) -> LedgerFinding:
    """Whether the aggregator's ledger still holds what a client or the server has seen of it."""
    ledger = shown(path)
    seen = ledger.seen or LedgerHead()
    what = "the aggregator's ledger holds what it has seen of it"
    if held.growth(seen, most=0) is not None:
        return LedgerFinding(ledger.party, what)
    there = len(held.links)
    wrong = (
        f"it has seen {seen.number} entries of the aggregator's ledger, which has {there} and "
        "does not hold those"
    )
    return LedgerFinding(
        ledger.party,
        what,
        wrong,
        "The aggregator's ledger was put back: restore its newest backup.",
        7,
    )
