import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.server.utils.validator import validate_message
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory

from fedrec_client.executor import (
    Executor,
    RuntimeApi,
    Task,
    unpacked_bytes,
)
from fedrec_client.flower import client_app
from tests.waiting import until

SECRET = b"a secret of this test"
NODE = 2


class Node:
    """A SuperNode's state and its real runtime API on loopback, without a SuperLink: the test hands
    messages in itself."""

    def __init__(self) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: NodeState = factory.state()
        self.state.set_node_id(NODE)
        server = uvicorn.Config(
            create_app(factory, SECRET),
            host="127.0.0.1",
            port=0,
            log_level="error",
            lifespan="off",
            ws="none",
        )
        self._server = uvicorn.Server(server)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        until(lambda: self._server.started)
        self.address = f"127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def post(
        self,
        message: Message,
        *,
        kind: TaskType = TaskType.CLIENT_APP,
        bundle: bytes = b"not even a zip",
    ) -> str:
        """As `start_client_internal` does with what a SuperLink sent."""
        run = Run.create_empty(message.metadata.run_id)
        run.fab_hash = self.state.store_fab(Fab("", bundle, {}))
        self.state.store_run(run)
        self.state.set_run_series_context(
            run.series_id, Context(run.run_id, NODE, {}, RecordDict(), {})
        )
        name = message.object_id
        message.metadata.__dict__["_message_id"] = name
        self.state.create_task(kind, run.run_id, run.fab_hash)
        self.state.object_store.preregister(run.run_id, get_object_tree(message))
        self.state.store_message(message)
        for part, content in get_all_nested_objects(message).items():
            self.state.object_store.put(part, content.deflate())
        return name

    def reply(self) -> Message:
        (found,) = self.state.get_messages_legacy(is_reply=True)
        return found

    def content(self, reply: Message) -> Message:
        names = [reply.metadata.message_id]
        contents = dict[str, bytes]()
        tree = self.state.object_store.get_object_tree(names[0])

        def collect(node: Any) -> None:
            contents[node.object_id] = self.state.object_store.get(node.object_id) or b""
            for child in node.children:
                collect(child)

        collect(tree)
        found = inflate_object_from_contents(names[0], contents)
        assert isinstance(found, Message)
        return found


@pytest.fixture
def node() -> Iterator[Node]:
    running = Node()
    yield running
    running.close()


@pytest.fixture
def runtime(node: Node) -> Iterator[RuntimeApi]:
    api = RuntimeApi(node.address, SECRET)
    yield api
    api.close()


def executor(participant: Any, node: Node, **limits: Any) -> Executor:
    return Executor(client_app(participant), lambda: node.address, SECRET, **limits)


@pytest.mark.parametrize("hours", [-1, 0, 1, 240])
def test_a_clients_clock_has_no_part_in_whether_its_reply_is_in_time(
    hours: int, participant: Any, post: Any, node: Node, runtime: RuntimeApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    request = post.join()
    request.metadata.__dict__["_created_at"] = datetime.now(UTC).timestamp()
    request.metadata.ttl = 600.0
    node.post(request)
    with monkeypatch.context() as clock:
        shown = datetime.now(UTC) + timedelta(hours=hours)
        clock.setattr("flwr.app.message.message.now", lambda: shown)
        assert executor(participant, node).step(runtime)
    reply = node.content(node.reply())
    reply.metadata.__dict__["_message_id"] = reply.object_id
    assert validate_message(reply, is_reply_message=True) == []
    assert reply.metadata.created_at + reply.metadata.ttl == pytest.approx(
        request.metadata.created_at + 600.0
    )


def test_a_task_is_answered_by_the_installed_app_and_its_bundle_is_not_opened(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    asked = node.post(post.join(), bundle=b"this is no zip file: opening it would raise")
    assert executor(participant, node).step(runtime)
    reply = node.reply()
    assert reply.metadata.reply_to_message_id == asked
    assert post.answer(node.content(reply)).users == 2
    assert participant.terms == [post.terms]
    assert node.state.get_tasks()[0].status.status == "finished"


def test_arrays_of_many_chunks_arrive(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    # 16 MB that cannot be written shorter: four chunks of five
    V = np.random.default_rng(1).random((500_000, 4))
    node.post(post.ask(V=V))
    assert executor(participant, node).step(runtime)
    assert post.answer(node.content(node.reply())).accepted == 1
    assert np.array_equal(participant.invitations[0].question.public["V"], V)


def test_without_a_task_nothing_happens(participant: Any, node: Node, runtime: RuntimeApi) -> None:
    assert not executor(participant, node).step(runtime)


def test_who_does_not_know_the_secret_gets_no_task(participant: Any, post: Any, node: Node) -> None:
    node.post(post.join())
    stranger = RuntimeApi(node.address, b"guessed")
    assert stranger.acquire() is None
    stranger.close()
    assert node.state.get_tasks()[0].status.status == "pending"


def test_a_message_larger_than_the_limit_is_an_error_reply_and_is_forgotten(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    asked = node.post(post.ask(V=np.random.default_rng(1).random(10_000)))
    assert executor(participant, node, max_message_bytes=50_000).step(runtime)
    assert node.reply().has_error()
    assert not participant.invitations
    assert node.state.object_store.get(asked) is None


def test_small_chunks_named_often_are_not_unpacked(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    message = post.ask(V=np.random.default_rng(1).random(100))
    array = message.content["public"]["V"]
    chunk = array.slice_array()[0]
    array.__dict__["_chunks"] = [chunk] * 10_000
    assert (
        unpacked_bytes(
            {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        )
        > 2_000_000
    )
    node.post(message)
    assert executor(participant, node, max_message_bytes=1_000_000).step(runtime)
    assert node.reply().has_error()
    assert not participant.invitations


def test_an_agents_task_is_refused_so_that_the_node_does_not_wait_for_ever(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    node.post(post.join(), kind=TaskType.AGENT_APP)
    assert executor(participant, node).step(runtime)
    assert node.reply().has_error()
    assert not participant.terms


def test_a_message_of_another_type_is_an_error_reply_in_our_words(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    node.post(post.message("train", RecordDict()))
    assert executor(participant, node).step(runtime)
    assert node.reply().error.reason == "the client cannot read this message"


def test_a_task_that_cannot_even_be_begun_does_not_end_the_client(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.post(post.join())
    with monkeypatch.context() as broken:
        broken.setattr(Task, "begin", lambda _task: int("not what was promised"))
        assert not executor(participant, node).step(runtime)
    assert not executor(participant, node).step(runtime)
    assert not participant.terms


def test_a_node_that_goes_away_in_the_middle_of_a_task_is_survived(
    participant: Any, post: Any
) -> None:
    first = Node()
    second = Node()
    address = [first.address]

    class Leaving:
        name = "library"

        def join(self, terms: Any) -> Any:
            if address[0] == first.address:
                first.close()
                address[0] = second.address
            return participant.join(terms)

    first.post(post.join())
    second.post(post.join())
    stop = threading.Event()
    running = Executor(client_app(Leaving()), lambda: address[0], SECRET, poll_s=0.01)  # type: ignore[arg-type]
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    until(lambda: second.state.get_tasks()[0].status.status == "finished")
    stop.set()
    thread.join()
    assert len(participant.terms) == 2
    assert post.answer(second.content(second.reply())).users == 2
    second.close()


def test_a_long_answer_is_kept_alive_by_heartbeats(
    participant: Any, post: Any, node: Node, runtime: RuntimeApi
) -> None:
    beats = []
    acknowledged = node.state.acknowledge_task_heartbeat
    node.state.acknowledge_task_heartbeat = lambda task: beats.append(task) or acknowledged(task)  # type: ignore[method-assign]

    class Slow:
        name = "library"

        def join(self, terms: Any) -> Any:
            until(lambda: len(beats) >= 2)
            return participant.join(terms)

    node.post(post.join())
    assert Executor(client_app(Slow()), lambda: node.address, SECRET, heartbeat_s=0.01).step(
        runtime
    )  # type: ignore[arg-type]
    assert post.answer(node.content(node.reply())).users == 2
