"""Replies pulled together from a SuperLink that says what the test says: each is that node's own
affair."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedrec_server.flower import UNREADABLE
from fedrec_server.grid import EachReplyGrid


@dataclass
class SuperLink:
    """What the grid's client calls. A reply leaves it once, its parts when they are there."""

    replies: dict[str, Message] = field(default_factory=dict)
    parts: dict[str, bytes | None] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)

    def reply(self, name: str, node: int, text: str, *, says: str = "") -> list[str]:
        """A node's reply to a message, which says inside that it is one to `says`; the names of its
        parts."""
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        asked = Message(RecordDict(), node, "query.join")
        asked.metadata.__dict__["_message_id"] = says or name
        reply = Message(RecordDict({"r": ConfigRecord({"text": text})}), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = get_all_nested_objects(reply)
        self.parts |= {part: each.deflate() for part, each in parts.items()}
        self.replies[name] = reply
        return list(parts)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802 - Flower calls it
        self.asked.append(list(request.message_ids))
        found = {
            name: self.replies.pop(name) for name in request.message_ids if name in self.replies
        }
        stored = [message_to_proto(remove_content_from_message(reply)) for reply in found.values()]
        for name, each in zip(found, stored, strict=True):
            each.metadata.reply_to_message_id = name
        return PullAppMessagesResponse(
            messages_list=stored,
            message_object_trees=[get_object_tree(each) for each in found.values()],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802 - Flower calls it
        content = self.parts.get(request.object_id)
        found = request.object_id in self.parts
        return PullObjectResponse(
            object_found=found, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802 - Flower calls it
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def grid(superlink: SuperLink, now: list[float]) -> EachReplyGrid:
    made = EachReplyGrid("127.0.0.1:1", token="token", clock=lambda: now[0])
    made._client = superlink  # type: ignore[assignment]
    return made


def texts(replies: Any) -> dict[str, Any]:
    return {
        reply.metadata.reply_to_message_id: reply.error.code
        if reply.has_error()
        else reply.content["r"]["text"]
        for reply in replies
    }


def test_replies_are_pulled_in_one_call_and_a_garbled_one_takes_no_other_with_it(
    superlink: SuperLink, grid: EachReplyGrid
) -> None:
    superlink.reply("a", 7, "first")
    for part in superlink.reply("b", 8, "second"):
        superlink.parts[part] = b"no object"
    superlink.reply("c", 9, "third")
    assert texts(grid.pull_messages(["a", "b", "c", "d"])) == {
        "a": "first",
        "b": UNREADABLE,
        "c": "third",
    }
    assert superlink.asked == [["a", "b", "c", "d"]]
    assert texts(grid.pull_messages(["d"])) == {}


def test_a_reply_whose_parts_are_on_their_way_holds_nobody_up_and_comes_when_they_are_there(
    superlink: SuperLink, grid: EachReplyGrid
) -> None:
    last = superlink.reply("a", 7, "slow")[-1]
    content = superlink.parts[last]
    superlink.parts[last] = None
    superlink.reply("b", 8, "quick")
    assert texts(grid.pull_messages(["a", "b"])) == {"b": "quick"}
    assert texts(grid.pull_messages(["a"])) == {}
    superlink.parts[last] = content
    assert texts(grid.pull_messages(["a"])) == {"a": "slow"}
    assert superlink.asked == [["a", "b"], [], []]
    assert len(superlink.confirmed) == 2


def test_a_reply_whose_parts_never_come_is_lost_and_is_not_kept_for_ever(
    superlink: SuperLink, grid: EachReplyGrid, now: list[float]
) -> None:
    for name in ("a", "b"):
        for part in superlink.reply(name, 7, name):
            superlink.parts[part] = None
    assert texts(grid.pull_messages(["a", "b"])) == {}
    superlink.parts.clear()
    assert texts(grid.pull_messages(["a"])) == {"a": ErrorCode.MESSAGE_UNAVAILABLE}
    now[0] += 1_000
    assert texts(grid.pull_messages([])) == {}
    assert not grid._arriving


def test_a_node_that_says_it_answers_anothers_message_answers_its_own(
    superlink: SuperLink, grid: EachReplyGrid
) -> None:
    superlink.reply("mine", 7, "false", says="theirs")
    superlink.reply("theirs", 8, "true")
    assert texts(grid.pull_messages(["mine", "theirs"])) == {"mine": "false", "theirs": "true"}
