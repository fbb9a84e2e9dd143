"""ClientApp of the Flower app: a node answers for the client whose settings file it was given.

On a SuperNode, `--node-config 'settings="/etc/fedrec/client.toml"'` names that file. In Flower's
simulation the ServerApp writes one for every partition, and a note that lists them. Any process may
get any node's next message, so the client is opened for each message and keeps its state in its
folder.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from fedrec.errors import SettingsError
from fedrec.federation.round_messages import KINDS
from fedrec.storage import read_json
from fedrec_simulations.runtimes.processes import answer_once

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
    return answer_once(_settings(context), message)


for _kind in KINDS:
    app.query(_kind)(_answer)
