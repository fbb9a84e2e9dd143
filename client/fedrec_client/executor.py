"""The pinned executor: runs the installed app on the messages of a SuperNode, and never opens the
bundle that came with them.

A stock SuperNode runs whatever bundle its SuperLink sends, which would let the server run code
where the ratings are. With `--isolation process` it starts nothing itself and waits for an executor
on its runtime API (protobuf over HTTP, loopback, a shared secret). This one lives as long as the
client, takes a task, reads its message, calls our `ClientApp`, hands the reply back, and drops the
bundle unread. flwr keeps that API private, hence the tested releases: `require_tested_flower`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    PullTaskInputResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    PushTaskOutputResponse,
    SendTaskHeartbeatRequest,
    SendTaskHeartbeatResponse,
)
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from fedrec.operations import logs
from fedrec.operations.flower_process import require_tested_flower

_MEDIA_TYPE = "application/protobuf"
_CONTROL_BYTES = 64 * 2**20
"""Most bytes of an answer that is not an object of a message: the largest carries the bundle, which
Flower holds below 10 MB."""

log = logging.getLogger(__name__)


class TaskLostError(Exception):
    """The SuperNode went away, or gave this task up: whatever was asked will be asked again."""


class UnreadableMessageError(Exception):
    """A message that is larger than it may be, or that is none."""


@dataclass
class Executor:
    """Takes tasks from the SuperNode at `address()` ("" while there is none) and answers them with
    `app`. Times in seconds.

    patience_s: for the next part of a message that is on its way; a server that died sends none,
    and asks again when it is back. poll_s, longest_poll_s: between looks for a task, right after
    one and when there was none for long; SuperNodes look every 3 s.
    """

    app: Callable[[Message, Context], Message]
    address: Callable[[], str]
    secret: bytes
    max_message_bytes: int = 2**31
    poll_s: float = 0.1
    longest_poll_s: float = 0.5
    heartbeat_s: float = 15.0
    patience_s: float = 60.0

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set.

        A SuperNode that ends, or begins again at another address, is waited for."""
        require_tested_flower()
        known = ""
        runtime = None
        pause_s = self.poll_s
        try:
            while not stop.wait(pause_s):
                pause_s = min(1.2 * pause_s, max(self.poll_s, self.longest_poll_s))
                if known != (address := self.address()) or runtime is None:
                    if runtime:
                        runtime.close()
                    known = address
                    runtime = RuntimeApi(address, self.secret) if address else None
                if runtime and self.step(runtime):
                    pause_s = self.poll_s
        finally:
            if runtime:
                runtime.close()

    def step(self, runtime: RuntimeApi) -> bool:
        """Answer one message if there is one; whether there was.

        What the SuperNode does wrong is logged and waited out."""
        try:
            task = runtime.acquire()
            if task is None:
                return False
            with _heartbeats(task, self.heartbeat_s):
                self._answer(task)
        except Exception as failure:
            # lost on the way, or nothing this version can read: the task expires, and is asked
            # again
            logs.say_failure(log, "task-lost", failure)
            return False
        return True

    def _answer(self, task: Task) -> None:
        request, tree = task.begin()
        try:
            message = task.message(request, tree, self.max_message_bytes, self.patience_s)
            reply = self._called(task, message)
        except TaskLostError:
            raise
        except Exception as failure:
            # Its words go to the server, so they are ours and not the error's; without a reply the
            # SuperNode would wait for ever.
            logs.say_failure(log, "message-unanswered", failure)
            reply = Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the client cannot read this message"),
                reply_to=request,
            )
        # Flower takes both from this machine's clock, and the SuperLink refuses a reply that has
        # expired by its own: one that is set ahead would answer in vain. A reply is in time for as
        # long as its request is, on the SuperLink's clock alone.
        reply.metadata.__dict__["_created_at"] = request.metadata.created_at
        reply.metadata.ttl = request.metadata.ttl
        task.finish(reply)

    def _called(self, task: Task, message: Message) -> Message:
        if task.kind != TaskType.CLIENT_APP:
            raise UnreadableMessageError(f"a task of kind {task.kind} is not run here")
        context = Context(
            message.metadata.run_id, task.node_id, node_config={}, state=RecordDict(), run_config={}
        )
        return self.app(message, context)


@dataclass
class Task:
    """One message to answer, as the SuperNode keeps it for the holder of `token`."""

    runtime: RuntimeApi
    token: str
    kind: str
    run_id: int = 0
    node_id: int = 0

    def begin(self) -> tuple[Message, ObjectTree]:
        """Start the task: its message without content, and the names of its content.

        The bundle arrives here, and goes no further."""
        started = self._call("pull-task-input", PullTaskInputRequest(), PullTaskInputResponse)
        self.run_id = started.run.run_id
        self.node_id = started.context.node_id
        found = self._call("pull-messages", PullAppMessagesRequest(), PullAppMessagesResponse)
        if len(found.messages_list) != 1 or len(found.message_object_trees) != 1:
            raise TaskLostError(
                f"the SuperNode has {len(found.messages_list)} messages for one task"
            )
        request = message_from_proto(found.messages_list[0])
        tree = found.message_object_trees[0]
        request.metadata.__dict__["_message_id"] = tree.object_id  # what a reply refers to
        return request, tree

    def message(
        self, request: Message, tree: ObjectTree, max_bytes: int, patience_s: float
    ) -> Message:
        """The message with its content.

        Raises UnreadableMessageError before more than `max_bytes` are held."""
        try:
            contents = self._contents(tree, max_bytes, patience_s)
        finally:  # the SuperNode forgets its copy, also of what was not wanted
            confirmed = ConfirmMessageReceivedRequest(
                node=self._node, run_id=self.run_id, message_object_id=tree.object_id
            )
            self._call("confirm-message-received", confirmed, ConfirmMessageReceivedResponse)
        if unpacked_bytes(contents) > max_bytes:
            raise UnreadableMessageError("the message unpacks to more than it may hold")
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message) or not message.has_content():
            raise UnreadableMessageError("the SuperNode's object is no message")
        message.metadata.__dict__["_message_id"] = request.metadata.message_id
        return message

    def finish(self, reply: Message) -> None:
        """Hand in the reply and end the task."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare = message_to_proto(remove_content_from_message(reply))
        pushed = PushAppMessagesRequest(
            messages_list=[bare], message_object_trees=[get_object_tree(reply)]
        )
        wanted = self._call("push-messages", pushed, PushAppMessagesResponse)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted.objects_to_push:
                content = PushObjectRequest(
                    node=self._node,
                    run_id=self.run_id,
                    session_id=wanted.session_id,
                    object_id=name,
                )
                content.object_content = part.deflate()
                self._call("push-object", content, PushObjectResponse)
        self._call(
            "push-task-output",
            PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""),
            PushTaskOutputResponse,
        )

    def heartbeat(self) -> None:
        """Say that the task is being worked on."""
        self._call("send-task-heartbeat", SendTaskHeartbeatRequest(), SendTaskHeartbeatResponse)

    @property
    def _node(self) -> Node:
        return Node(node_id=self.node_id)

    def _contents(self, tree: ObjectTree, max_bytes: int, patience_s: float) -> dict[str, bytes]:
        contents = dict[str, bytes]()
        size = 0
        for name in dict.fromkeys(node.object_id for node in iterate_object_tree(tree)):
            contents[name] = self._object(name, max_bytes - size, time.monotonic() + patience_s)
            size += len(contents[name])
        return contents

    def _object(self, name: str, max_bytes: int, deadline: float) -> bytes:
        """Waits for an object that is on its way: the SuperNode announces a message before it has
        all of it."""
        request = PullObjectRequest(node=self._node, run_id=self.run_id, object_id=name)
        pause_s = 0.02
        while True:
            found = self._call(
                "pull-object", request, PullObjectResponse, max_bytes=max_bytes + _CONTROL_BYTES
            )
            if not found.object_found or time.monotonic() > deadline:
                raise TaskLostError("the SuperNode lost a part of the message")
            if found.object_available:
                if len(found.object_content) > max_bytes:
                    raise UnreadableMessageError("the message is larger than it may be")
                return found.object_content
            time.sleep(pause_s)
            pause_s = min(1.0, 2 * pause_s)

    def _call(
        self, method: str, request: Proto, reply: type[_Reply], *, max_bytes: int = _CONTROL_BYTES
    ) -> _Reply:
        return self.runtime.call(
            method, request, reply, {TASK_TOKEN_HEADER: self.token}, max_bytes=max_bytes
        )


_Reply = TypeVar("_Reply", bound=Proto)


class RuntimeApi:
    """The runtime API of one SuperNode on loopback: one POST of protobuf bytes a call, answers
    bounded before they are kept."""

    def __init__(self, address: str, secret: bytes, *, timeout_s: float = 30.0) -> None:
        # No proxy of the environment: what goes to loopback stays there.
        self._http = httpx.Client(
            base_url=f"http://{address}/v1/runtime/", timeout=timeout_s, trust_env=False
        )
        self._secret = derive_auth_secret(secret)

    def acquire(self) -> Task | None:
        """The oldest task that waits, or None; also None while the SuperNode does not answer.

        Agents' tasks are taken to be refused."""
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP, TaskType.AGENT_APP])
        signed = create_superexec_auth_metadata(
            auth_secret=self._secret, method="/flwr.proto.Runtime/AcquireTask", request=request
        )
        try:
            found = self.call("acquire-task", request, AcquireTaskResponse, signed)
        except TaskLostError:
            return None
        return Task(self, found.token, found.task.type) if found.token else None

    def call(
        self,
        method: str,
        request: Proto,
        reply: type[_Reply],
        headers: Mapping[str, str],
        *,
        max_bytes: int = _CONTROL_BYTES,
    ) -> _Reply:
        """Raises TaskLostError where the answer is none, is not what it should be, or has more than
        `max_bytes` bytes."""
        content = request.SerializeToString(deterministic=True)
        typed = {"content-type": _MEDIA_TYPE, "accept": _MEDIA_TYPE, **headers}
        try:
            with self._http.stream("POST", method, content=content, headers=typed) as response:
                response.raise_for_status()
                return reply.FromString(_bounded(response, max_bytes))
        except httpx.HTTPStatusError as failure:
            raise TaskLostError(f"{method}: status {failure.response.status_code}") from failure
        except (httpx.HTTPError, DecodeError) as failure:
            raise TaskLostError(f"{method}: {type(failure).__name__}") from failure

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def unpacked_bytes(contents: Mapping[str, bytes]) -> int:
    """What a message's arrays hold once unpacked: a few small chunks, named often, make a large
    array."""
    total = 0
    for content in contents.values():
        kind, children, length = get_object_head_values_from_object_content(content)
        if kind == "Array":
            named = json.loads(content[len(content) - length :])["arraychunk_ids"]
            total += sum(len(contents[children[number]]) for number in named)
    return total


def _bounded(response: httpx.Response, max_bytes: int) -> bytes:
    parts = list[bytes]()
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > max_bytes:
            raise TaskLostError(f"an answer of the SuperNode has more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


@contextmanager
def _heartbeats(task: Task, every_s: float) -> Iterator[None]:
    """While the body runs.

    A heartbeat that fails ends them: the task is lost, which its own calls will find out."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            try:
                task.heartbeat()
            except TaskLostError:
                return

    thread = threading.Thread(target=beat, name="task-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
