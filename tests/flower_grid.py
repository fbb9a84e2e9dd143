"""Flower's `Grid` over nodes in this process, for tests of what speaks to Flower.

It needs a private interface of Flower: `Message` reads its task's identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedrec.federation.round_messages import KINDS
from fedrec_client.flower import answered
from fedrec_client.requests import Answering, Requests

App = Callable[[Message, Context], Message]
"""What a `ClientApp` is to a node."""

RUN_ID = 1
"""Flower keeps a process's run in one place (`TaskIdentity`, which `Message` reads): all grids of a
process share it."""


def client_app(requests: Requests) -> ClientApp:
    """The app that answers for this client."""
    installed = ClientApp()
    for kind in KINDS:
        installed.query(kind)(lambda message, _context: answered(requests, message))
    return installed


class InProcessGrid(Grid):
    """Nodes in this process, called one after the other in the order of the messages.

    A node that raises answers with Flower's error "ClientApp raised an exception", as over a
    SuperLink; a node that is not there answers "node unavailable". Messages are copied on the way,
    so that no node sees what another did to its own.

    What runs over a SuperLink runs here unchanged: our own ServerApp and ClientApp, and Flower's
    strategies (`FedAdam(...).start(grid=...)`). A node keeps its `Context` between messages, and
    may host any number of users.
    """

    def __init__(self, apps: Mapping[int, App]) -> None:
        if SUPERLINK_NODE_ID in apps:
            raise ValueError(f"node {SUPERLINK_NODE_ID} is the server itself, found an app for it")
        self._apps = dict(apps)
        self._contexts = {
            node: Context(RUN_ID, node, {"partition-id": place}, RecordDict(), {})
            for place, node in enumerate(apps)
        }
        self._replies = dict[str, Message]()
        self._sent = 0
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = RUN_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def set_run(self, run: Run) -> None:
        """Only the one run there is. Raises ValueError on another."""
        if run.run_id != RUN_ID:
            raise ValueError(f"an in-process grid has run {RUN_ID}, found {run.run_id}")

    @property
    def run(self) -> Run:
        """The run that every message here belongs to."""
        return Run.create_empty(RUN_ID)

    def context(self, node: int) -> Context:
        """What a node keeps between messages."""
        return self._contexts[node]

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Deprecated by Flower, still part of its interface: `Message(...)` does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes: they are always there."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver each message and keep its reply. Returns the ids to pull the replies with."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that were not pulled before."""
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies, in order; nodes are called here and now, so there is nothing to wait for."""
        return [
            reply for message in messages for reply in self.pull_messages([self._deliver(message)])
        ]

    def _deliver(self, message: Message) -> str:
        self._sent += 1
        name = _named(message, f"message-{self._sent}")
        reply = self._called(message)
        _named(reply, f"reply-{self._sent}")
        self._replies[name] = reply
        return name

    def _called(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self._apps:
            return Message(
                Error(ErrorCode.NODE_UNAVAILABLE, f"there is no node {node}"), reply_to=message
            )
        try:
            # arrays' bytes cannot change and are not copied
            return self._apps[node](deepcopy(message), self._contexts[node])
        except Exception as failure:
            # whatever an app raises is that node's failure, never the round's
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, type(failure).__name__),
                reply_to=message,
            )


def _named(message: Message, name: str) -> str:
    # as Flower's own in-memory grid does: there is no setter
    message.metadata.__dict__["_message_id"] = name
    return name


FIRST_NODE = 2
"""Flower's number 1 is the server."""


def grid(participants: Sequence[Answering]) -> InProcessGrid:
    """One node for each client."""
    return InProcessGrid(
        {
            node: client_app(Requests(each))
            for node, each in enumerate(participants, start=FIRST_NODE)
        }
    )
