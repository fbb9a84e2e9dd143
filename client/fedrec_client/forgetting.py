"""People of a client who leave: nothing of theirs is reported from the next round on, and the
aggregators' statements of it are kept in the state folder, a file for each.

The client's ledger is written first: whatever fails after it, nothing of this person leaves any
more, and the same command asks for the statement again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fedrec.certificates.statements import Departed, require_departed
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import SignedStatement
from fedrec.ledgers.file_lock import FileLock
from fedrec.storage import PRIVATE, json_bytes, read_json, write_bytes
from fedrec_client.ledger import user_tokens
from fedrec_client.opened import open_participant
from fedrec_client.participant import Participant
from fedrec_client.settings import ClientSettings


def forgotten(
    settings: ClientSettings, users: Sequence[str] | None
) -> dict[Path, tuple[Departed, ...]]:
    """What aggregators state of these users, None for everybody who is there, by the file that
    keeps it.

    Raises SettingsError where clicks are the unit, RunError where the client is running or a
    statement is false, else as `Participant.forget`."""
    if settings.privacy.unit == "click":
        raise SettingsError(
            "no aggregator knows the people of a client whose unit is a click",
            "Take their rows out of its data: a training asks only who is in it when it begins.",
        )
    folder = Path(settings.state)
    remedy = "Stop it first; nothing is lost, and it goes on without them when it is started again."
    # a running client would go on with the people that it read at its start
    with FileLock(folder / "client.lock", "the client is running", remedy), ExitStack() as stack:
        participant = open_participant(settings, folder, stack)
        assert isinstance(participant, Participant)
        found = dict[Path, tuple[Departed, ...]]()
        for user in participant.users.user_ids if users is None else users:
            told = participant.forget(user)
            token = user_tokens(participant.ledger.secret, [user])[0].tobytes()
            path = folder / "departed" / f"{token.hex()}.json"
            found[path] = _stated(settings, told, token)
            content = json_bytes({"statements": [vars(one) for one in told]})
            write_bytes(path, content, mode=PRIVATE)
        return found


def kept(settings: ClientSettings, path: Path) -> tuple[Departed, ...]:
    """What a file of `forgotten` says. Raises RunError where the settings' aggregators did not sign
    it."""
    try:
        told = [SignedStatement(**one) for one in read_json(path)["statements"]]
        token = bytes.fromhex(path.stem)
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} holds no statements", "Give a file of `fedrec forget`.") from None
    return _stated(settings, told, token)


def _stated(
    settings: ClientSettings, told: Sequence[SignedStatement], token: bytes
) -> tuple[Departed, ...]:
    tables = settings.aggregators or (settings.aggregator,)
    if len(told) != len(tables):
        raise RunError(
            f"{len(told)} aggregators stated it, of {len(tables)}", "Run `fedrec forget` again."
        )
    return tuple(
        require_departed(one, token, pin=table.pin if table else "")
        for one, table in zip(told, tables, strict=True)
    )
