"""Terms and questions over a grid whose nodes lose, repeat, delay and garble whatever the test
says."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedrec.federation.coding import coded, decoded, inflated
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Answer, Invitation, Terms
from fedrec.federation.reports import block
from fedrec.federation.round_messages import said
from fedrec.federation.wire import pack_answer, read_header, read_invitation, read_terms
from fedrec.operations.metrics import Metrics
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from fedrec_server.watched_clients import WatchedClients

TERMS = Terms("run", "{}", "ratings", (1.0, 5.0), ("a", "b", "c"))
PLAN = calibrate(Guarantee(5.0, 1e-5), {"first": 1.0})
SPEC = ReleaseSpec("first", (block("x", "linear", rows=3, width=2),))

Node = Callable[[Message], Message | Exception | None]


def saying(answer: Answer) -> Node:
    return lambda message: Message(
        RecordDict({"fedrec": ConfigRecord(dict(said(answer=pack_answer(answer))))}),
        reply_to=message,
    )


def replying(content: RecordDict) -> Node:
    return lambda message: Message(content, reply_to=message)


def failing(code: int) -> Node:
    return lambda message: Message(Error(code, "words of a node"), reply_to=message)


def silent(_message: Message) -> None:
    return None


@dataclass
class FakeGrid(Grid):
    """Nodes by number.

    A node's reply is there at once, or never (None), or raises when it is pulled. Time passes in
    sleeps."""

    nodes: dict[int, Node]
    now_s: float = 0.0
    at: dict[float, Callable[[], None]] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    refuses: set[int] = field(default_factory=set)
    untaken: int = 0
    pulled: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for when in [when for when in self.at if when <= self.now_s]:
            self.at.pop(when)()

    def broadcast(
        self, timeout_s: float = 30.0, owner: Callable[[str], str] | None = None, **more: Any
    ) -> ClientBroadcast:
        post = OwnedPost(self, told=owner) if owner else GridPost(self)
        return ClientBroadcast(post, timeout_s, sleep=self.sleep, clock=lambda: self.now_s, **more)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = list[str]()
        if self.untaken:
            self.untaken -= 1
            raise ObjectPushError("part", 1, "session")
        for message in messages:
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            names.append(
                "" if message.metadata.dst_node_id in self.refuses else f"message-{len(self.sent)}"
            )
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulled.append(list(message_ids))
        replies = list[Message]()
        for name in self.pulled[-1]:
            message = self.sent[int(name.removeprefix("message-")) - 1]
            reply = self.nodes[message.metadata.dst_node_id](message)
            if isinstance(reply, Exception):
                raise reply
            replies += [reply] if reply else []
        return replies

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *_arguments: Any, **_more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


@dataclass
class OwnedPost(GridPost):
    """A post that knows whose its nodes are."""

    owned: bool = True
    told: Callable[[str], str] = str

    def owner(self, node: str) -> str:
        return self.told(node)


A = Answer("a", 2, accepted=2)
B = Answer("b", 3, accepted=1, rejected={"busy": 2})


def test_every_node_is_told_the_terms_and_all_answers_come_back() -> None:
    grid = FakeGrid({7: saying(A), 8: saying(B)})
    assert list(grid.broadcast().join(TERMS)) == [A, B]
    assert [
        (message.metadata.dst_node_id, message.metadata.message_type) for message in grid.sent
    ] == [
        (7, "query.join"),
        (8, "query.join"),
    ]
    terms = grid.sent[0].content["fedrec"]["terms"]
    assert isinstance(terms, bytes)
    assert read_terms(inflated(terms, max_bytes=1_000)) == TERMS


def test_messages_that_a_busy_superlink_does_not_take_are_unreachable_clients() -> None:
    grid = FakeGrid({7: saying(A)}, untaken=1)
    broadcast = grid.broadcast(timeout_s=300.0)
    (answer,) = broadcast.join(TERMS)
    assert (answer.users, answer.cause) == (0, "its message was not taken")
    assert broadcast.join(TERMS) == [A]


def test_open_messages_are_asked_after_together_and_less_and_less_often() -> None:
    nodes: dict[int, Node] = dict.fromkeys(range(1, 901), silent)
    grid = FakeGrid({**nodes, 1_000: saying(A)})
    answers = grid.broadcast(timeout_s=100.0, again_s=1_000.0).join(TERMS)
    assert len(answers) == 901
    assert [len(names) for names in grid.pulled[:5]] == [200] * 4 + [101]
    assert [len(names) for names in grid.pulled[5:10]] == [200] * 4 + [100]
    assert len(grid.pulled) < 5 * (100 / 0.1) / 5  # a fifth of asking every tenth of a second


def test_some_clients_can_be_asked_alone_and_the_others_hear_nothing(grid_of_two: FakeGrid) -> None:
    broadcast = grid_of_two.broadcast()
    broadcast.join(TERMS)
    grid_of_two.nodes[7] = silent  # who is not asked is not waited for
    before = len(grid_of_two.sent)
    invitation = Invitation("run", PLAN, Question(0, "step", {}, (SPEC,)))
    assert broadcast.ask_some(invitation, {"b"}) == [B]
    assert [message.metadata.dst_node_id for message in grid_of_two.sent[before:]] == [8]
    assert grid_of_two.now_s < 1.0


def test_whoever_was_asked_and_has_not_answered_is_named_while_it_is_waited_for(
    grid_of_two: FakeGrid,
) -> None:
    metrics = Metrics("server", "1")
    broadcast = grid_of_two.broadcast()
    watched = WatchedClients(broadcast, metrics, unanswered=lambda: broadcast.unanswered)
    watched.join(TERMS)
    assert not metrics.state.unanswered()
    grid_of_two.nodes[7] = silent
    missing = list[set[str]]()
    for at_s in (3.0, 20.0):
        grid_of_two.at[at_s] = lambda: missing.append(set(metrics.state.unanswered()))
    watched.join(TERMS)
    assert missing == [{"a"}, {"a"}]
    grid_of_two.nodes[7] = saying(A)
    watched.join(TERMS)
    assert not metrics.state.unanswered()


def test_a_reply_to_a_message_that_was_not_asked_after_is_nobodys(grid_of_two: FakeGrid) -> None:
    stray = Message(
        RecordDict({"fedrec": ConfigRecord(dict(said(answer=pack_answer(A))))}),
        reply_to=_sent("message-99"),
    )
    grid_of_two.nodes[7] = lambda _: stray
    answers = grid_of_two.broadcast(timeout_s=5.0).join(TERMS)
    assert sorted((answer.client, answer.refusal) for answer in answers) == [
        ("b", ""),
        ("node-7", "unreachable"),
    ]


def _sent(name: str) -> Message:
    message = Message(RecordDict(), 7, "query.join")
    message.metadata.__dict__["_message_id"] = name
    return message


@pytest.fixture
def grid_of_two() -> FakeGrid:
    return FakeGrid({7: saying(A), 8: saying(B)})


def test_a_question_arrives_as_it_left_arrays_of_any_shape_and_type_too() -> None:
    public = {
        "V": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "scale": np.array(2.5),
        "n": np.array([1, 2], np.int32),
        "e": np.zeros((0, 4), np.float32),
    }
    invitation = Invitation("run", PLAN, Question(3, "step", public, (SPEC,)))
    grid = FakeGrid({7: saying(A)})
    grid.broadcast().ask(invitation)
    content = grid.sent[0].content
    record = content["fedrec"]
    arrays = content["public"]
    assert isinstance(arrays, ArrayRecord)
    header = record["header"]
    plan = record["plan"]
    assert isinstance(header, bytes)
    assert isinstance(plan, bytes)
    payloads = {name: array.data for name, array in arrays.items()}
    found = read_invitation(
        header, plan, decoded(read_header(header).arrays(), payloads, {}, max_bytes=1_000)
    )
    assert (found.run, found.plan, found.question.releases) == ("run", PLAN, (SPEC,))
    for name, array in public.items():
        there = found.question.public[name]
        assert (there.dtype, there.shape, there.tobytes()) == (
            array.dtype,
            array.shape,
            np.asarray(array, order="C").tobytes(),
        )


LACKING = Answer("b", 0, refusal="arrays-unknown", cause="it missed a round")


def test_a_node_that_lacks_the_question_before_gets_all_arrays_at_once_and_the_others_nothing_more() -> None:  # fmt: skip
    before = {"V": np.eye(3)}
    now = {"V": np.eye(3), "n": np.ones(2)}
    invitation = Invitation("run", PLAN, Question(3, "step", now, (SPEC,)), coded(now, before))
    said = iter([LACKING, B])
    grid = FakeGrid({7: saying(A), 8: lambda message: saying(next(said))(message)})
    assert list(grid.broadcast().ask(invitation)) == [A, B]
    sent = [
        (m.metadata.dst_node_id, {name: array.data for name, array in m.content["public"].items()})
        for m in grid.sent
    ]  # type: ignore[union-attr]
    assert sent == [(7, coded(now, before)), (8, coded(now, before)), (8, coded(now, {}))]
    assert sent[0][1]["V"] == b""
    assert grid.now_s < 1.0


def test_a_node_that_always_lacks_something_is_sent_all_of_it_once_and_costs_its_own_answer() -> None:  # fmt: skip
    invitation = Invitation("run", PLAN, Question(3, "step", {"V": np.eye(3)}, (SPEC,)))
    grid = FakeGrid({7: saying(A), 8: saying(LACKING)})
    assert list(grid.broadcast().ask(invitation)) == [A, LACKING]
    assert [message.metadata.dst_node_id for message in grid.sent] == [7, 8, 8]


def test_without_nodes_there_are_no_answers_and_nothing_is_waited_for() -> None:
    grid = FakeGrid({})
    assert list(grid.broadcast().join(TERMS)) == []
    assert grid.now_s == 0.0


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
def test_an_error_of_a_node_is_an_unreachable_client_in_our_words(code: int) -> None:
    (answer,) = FakeGrid({7: failing(code)}).broadcast().join(TERMS)
    assert (answer.client, answer.users, answer.refusal) == ("node-7", 0, "unreachable")
    assert "words of a node" not in answer.cause


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedrec": MetricRecord({"answer": 1.0})}),
        RecordDict({"fedrec": ConfigRecord({"answer": "text"})}),
        RecordDict({"fedrec": ConfigRecord({"other": b"{}"})}),
        RecordDict({"fedrec": ConfigRecord({"answer": b"not json"})}),
        RecordDict(
            {
                "fedrec": ConfigRecord(
                    dict(said(answer=pack_answer(A).replace(b'"users":2', b'"users":-2')))
                )
            }
        ),
        RecordDict({"fedrec": ConfigRecord(dict(said(answer=b" " * 2**17 + pack_answer(A))))}),
    ],
)
def test_a_garbled_reply_costs_its_own_node_the_answer_and_no_other(content: RecordDict) -> None:
    garbled, fine = FakeGrid({7: replying(content), 8: saying(B)}).broadcast().join(TERMS)
    assert (garbled.client, garbled.refusal, garbled.users) == ("node-7", "malformed", 0)
    assert fine == B


def test_a_reply_that_cannot_even_be_unpacked_costs_its_own_node_the_answer() -> None:
    garbled, fine = (
        FakeGrid({7: lambda _message: ValueError("bytes of a node"), 8: saying(B)})
        .broadcast()
        .join(TERMS)
    )
    assert (garbled.client, garbled.refusal) == ("node-7", "malformed")
    assert "bytes of a node" not in garbled.cause
    assert fine == B


def test_a_superlink_that_is_lost_ends_the_waiting() -> None:
    with pytest.raises(httpx.ConnectError):
        FakeGrid({7: lambda _message: httpx.ConnectError("gone")}).broadcast().join(TERMS)


def test_a_message_that_the_superlink_does_not_take_is_an_unreachable_client() -> None:
    refused, fine = FakeGrid({7: saying(A), 8: saying(B)}, refuses={7}).broadcast().join(TERMS)
    assert (refused.client, refused.refusal) == ("node-7", "unreachable")
    assert fine == B


def test_a_silent_node_is_given_up_at_the_deadline_by_the_name_it_was_heard_as() -> None:
    grid = FakeGrid({7: saying(A), 8: saying(B)})
    broadcast = grid.broadcast(timeout_s=30.0)
    broadcast.join(TERMS)
    grid.nodes[8] = silent
    fine, lost = broadcast.join(TERMS)
    assert fine == A
    assert (lost.client, lost.refusal) == ("b", "unreachable")
    assert 30.0 <= grid.now_s < 31.0


def test_a_silent_node_is_asked_again_after_ever_longer_pauses() -> None:
    grid = FakeGrid({7: silent})
    grid.at[150.0] = lambda: grid.nodes.update({7: saying(A)})
    assert list(grid.broadcast(timeout_s=600.0, again_s=60.0).join(TERMS)) == [A]
    assert len(grid.sent) == 2


def test_a_node_that_appears_while_others_are_waited_for_is_asked_too() -> None:
    grid = FakeGrid({7: silent})
    grid.at[2.0] = lambda: grid.nodes.update({8: saying(B)})
    grid.at[5.0] = lambda: grid.nodes.update({7: saying(A)})
    assert sorted(answer.client for answer in grid.broadcast().join(TERMS)) == ["a", "b"]


def test_a_client_that_came_back_as_another_node_is_not_waited_for_at_its_old_one() -> None:
    grid = FakeGrid({7: saying(A), 8: saying(B)})
    broadcast = grid.broadcast(timeout_s=600.0)
    broadcast.join(TERMS)
    grid.nodes[8] = silent
    grid.at[grid.now_s + 5.0] = lambda: grid.nodes.update({9: saying(B)})
    assert list(broadcast.join(TERMS)) == [A, B]
    assert grid.now_s < 10.0


def test_the_first_answer_of_a_node_counts() -> None:
    answers = [A, B]
    grid = FakeGrid({7: lambda message: saying(answers.pop(0))(message)})
    assert list(grid.broadcast().join(TERMS)) == [A]


def test_an_answer_in_another_clients_name_is_refused_and_counts_for_nobody_else() -> None:
    liar = saying(Answer("hospital", users=6_000))
    grid = FakeGrid({1: liar, 2: saying(Answer("hospital", users=2))})
    answers = grid.broadcast(owner={"1": "library", "2": "hospital"}.__getitem__).join(TERMS)
    assert [(answer.client, answer.users, answer.refusal) for answer in answers] == [
        ("library", 0, "forbidden"),
        ("hospital", 2, ""),
    ]


@pytest.mark.parametrize(
    "owner", [None, {"1": "hospital", "2": "library", "3": "library"}.__getitem__]
)
def test_a_silent_client_stretches_one_wave_and_no_more_until_it_has_answered(owner: Any) -> None:
    grid = FakeGrid({1: saying(Answer("hospital", users=2)), 2: silent})
    broadcast = grid.broadcast(600.0, owner=owner)
    broadcast.join(TERMS)
    assert grid.now_s == pytest.approx(600.0, abs=1.0)
    sent = len(grid.sent)
    for _ in range(20):
        before = grid.now_s
        answers = broadcast.join(TERMS)
        assert grid.now_s - before < 1.0
        assert [answer.refusal for answer in answers] == ["", "unreachable"]
    # its last message lies there still
    assert sum(message.metadata.dst_node_id == 2 for message in grid.sent[sent:]) == 0
    grid.nodes[2] = saying(Answer("library", users=3))  # it answers that one, late
    assert {answer.client for answer in broadcast.join(TERMS)} == {"hospital", "library"}
    if owner:
        grid.nodes[2] = silent
        broadcast.join(TERMS)
        # another node of the client that was silent: asked, not waited for
        grid.nodes = {1: grid.nodes[1], 3: silent}
        before = grid.now_s
        broadcast.join(TERMS)
        assert grid.now_s - before < 1.0
        assert grid.sent[-1].metadata.dst_node_id == 3
