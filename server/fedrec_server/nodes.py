"""Owners of Flower's nodes, by client: learned at the proxy, where the node's requests come with
that client's certificate.

Flower knows a node by a number and a key that the SuperNode made for itself; the SuperLink checks
that who asks for a node's messages holds its key. The proxy sees that such a request succeeded, and
whose certificate it came with: from then on the node is that client's, and nobody else's request
about it passes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

MOST_NODES = 8
"""Of one client: a SuperNode that is started again is another node.

More would be messages to nobody."""


@dataclass
class Nodes:
    """Clients by node. Any thread may call."""

    _owner: dict[int, str] = field(default_factory=dict)
    _of: defaultdict[str, OrderedDict[int, None]] = field(
        default_factory=lambda: defaultdict(OrderedDict)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def owner(self, node: int) -> str:
        """The client's name; "" for a node that asked for nothing yet, or was forgotten for newer
        ones."""
        return self._owner.get(node, "")

    def seen(self, node: int, client: str) -> None:
        """The client's certificate came with a request about the node, which the SuperLink took.

        The first client keeps the node."""
        with self._lock:
            if self._owner.setdefault(node, client) != client:
                return
            latest = self._of[client]
            latest[node] = None
            latest.move_to_end(node)
            if len(latest) > MOST_NODES:
                del self._owner[latest.popitem(last=False)[0]]
