"""ClientApp of the Flower app: a node answers for the client whose settings file it was given.

On a SuperNode, `--node-config 'settings="/etc/fedrec/client.toml"'` names that file. In Flower's
simulation the ServerApp writes one for every partition, and a note that lists them. Any process may
get any node's next message, so the client is opened for each message and keeps its state in its
folder.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from fedrec.errors import SettingsError
from fedrec.federation.round_messages import KINDS
from fedrec.operations import logs
from fedrec.storage import read_json
from fedrec_client import settings as client_settings
from fedrec_client.flower import answered
from fedrec_client.held_arrays import HeldArrays
from fedrec_client.opened import open_participant
from fedrec_client.requests import Requests
from fedrec_client.store import HELD

app = ClientApp()
"""What pyproject.toml names."""


def note_of(run_config: UserConfig, run_id: int) -> Path:
    """The file in which a simulation's ServerApp lists the settings files of its clients."""
    return Path(str(run_config["folder"])).expanduser() / f".flwr-{run_id}.json"


def _settings(context: Context) -> Path:
    node = context.node_config
    if "settings" in node:
        return Path(str(node["settings"]))
    if "partition-id" not in node:
        raise SettingsError(
            "this SuperNode does not say whose client it is",
            "Start it with --node-config 'settings=\"client.toml\"'.",
        )
    listed = read_json(note_of(context.run_config, context.run_id))["clients"]
    return Path(listed[int(node["partition-id"])])


def _answer(message: Message, context: Context) -> Message:
    """The reply of a client that is opened for it and closed again. Raises FedRecError where it
    cannot be opened."""
    chosen = client_settings.load(_settings(context))
    folder = Path(chosen.state)
    with ExitStack() as stack:
        stack.callback(logs.close, logs.configure("client", file=folder / "process.log"))
        participant = open_participant(chosen, folder, stack)
        return answered(Requests(participant, held=HeldArrays(folder / HELD)), message)


for _kind in KINDS:
    app.query(_kind)(_answer)
