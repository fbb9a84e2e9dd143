"""Flower's `flower-supernode` without what it loads and never uses: `python -m
fedrec_client.supernode_main ...`, its own arguments.

A SuperNode keeps messages in memory (`flwr.supernode.nodestate`), but imports the store on a
database too, and with it sqlalchemy and alembic: 29 of 121 MB. In such modules' places stand ones
whose classes refuse to be made.
Of the releases that `flower_process.require_tested_flower` takes.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

LEFT_OUT = {
    "flwr.supercore.object_store.sql_object_store": "SqlObjectStore",
    # runs bundles, in a process that is never started here
    "flwr.supernode.cli.flwr_clientapp": "flwr_clientapp",
    "flwr.agentapp": "",
    "flwr.client": "",
    "flwr.clientapp": "",
    "flwr.server": "",
    "flwr.serverapp": "",
}
"""Modules of Flower, and what is imported from them."""

_OPTIONAL = ("uvloop", "watchfiles", "websockets", "dotenv")
"""What uvicorn uses where it is installed, and does without where it is not."""


class _LeftOutError(RuntimeError):
    """A SuperNode that wants one of them after all."""


def _refused(*_: object, **__: object) -> None:
    raise _LeftOutError(
        "this SuperNode keeps its messages in memory and runs no bundle: it was started "
        "without what that needs"
    )


def leave_out() -> None:
    """Put empty modules in the place of Flower's. Before flwr is imported."""
    for name, word in LEFT_OUT.items():
        sys.modules[name] = ModuleType(name)
        if word:
            setattr(sys.modules[name], word, type(word, (), {"__init__": _refused}))
    for name in _OPTIONAL:
        sys.modules[name] = None  # type: ignore[assignment]


if __name__ == "__main__":
    leave_out()
    from flwr.supernode.cli import flower_supernode

    # as its own words name it
    sys.argv[0] = re.sub(r"supernode_main\.py$", "flower-supernode", sys.argv[0])
    flower_supernode()
