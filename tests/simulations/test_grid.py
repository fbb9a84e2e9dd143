"""Flower's `Grid` in one process carries Flower's own strategies and any ClientApp."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp.strategy import FedAdam
from flwr.supercore.run import Run

from tests.flower_grid import InProcessGrid

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    count = context.state.metric_records.get("seen", MetricRecord({"messages": 0}))["messages"]
    context.state["seen"] = MetricRecord({"messages": int(count) + 1})  # type: ignore[arg-type]
    arrays = [
        array + context.node_id
        for array in message.content.array_records["arrays"].to_numpy_ndarrays()
    ]
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}),
        reply_to=message,
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}), reply_to=message
    )


@app.query("spoil")
def spoil(message: Message, context: Context) -> Message:
    record = message.content.config_records["words"]
    said = record["said"]
    record["said"] = "spoilt"
    return Message(RecordDict({"words": ConfigRecord({"said": said})}), reply_to=message)


@app.query("fail")
def fail(message: Message, context: Context) -> Message:
    raise ValueError("the rating was 5")


def query(kind: str, node: int) -> Message:
    return Message(RecordDict({"words": ConfigRecord({"said": "hello"})}), node, f"query.{kind}")


def test_flower_s_own_fedadam_runs_unchanged_and_nodes_keep_their_context() -> None:
    grid = InProcessGrid(dict.fromkeys((2, 3, 4), app))
    result = FedAdam(eta=0.1).start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=3
    )
    (array,) = result.arrays.to_numpy_ndarrays()
    assert np.all(array > 0.2)  # three steps of about eta towards the nodes' positive numbers
    assert [grid.context(node).state.metric_records["seen"]["messages"] for node in (2, 3, 4)] == [
        3,
        3,
        3,
    ]


def test_a_reply_is_pulled_once_and_belongs_to_its_message() -> None:
    grid = InProcessGrid({2: app, 3: app})
    first, second = grid.push_messages([query("spoil", 2), query("spoil", 3)])
    (reply,) = grid.pull_messages([second])
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (3, second)
    assert list(grid.pull_messages([second])) == []
    assert len(list(grid.pull_messages([first, second]))) == 1


def test_a_node_cannot_change_what_another_is_told() -> None:
    grid = InProcessGrid({2: app, 3: app})
    content = RecordDict({"words": ConfigRecord({"said": "hello"})})
    replies = grid.send_and_receive([Message(content, node, "query.spoil") for node in (2, 3)])
    assert [reply.content.config_records["words"]["said"] for reply in replies] == [
        "hello",
        "hello",
    ]


def test_a_node_that_raises_answers_with_flower_s_error_and_without_its_words() -> None:
    grid = InProcessGrid({2: app, 3: app})
    failed, fine = grid.send_and_receive([query("fail", 2), query("spoil", 3)])
    assert failed.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert failed.error.reason == "ValueError"
    assert fine.has_content()


def test_a_node_that_is_not_there_is_unavailable() -> None:
    grid = InProcessGrid({2: app})
    (reply,) = grid.send_and_receive([query("spoil", 7)])
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE


def test_the_server_s_own_number_is_no_node() -> None:
    with pytest.raises(ValueError, match="the server itself"):
        InProcessGrid({SUPERLINK_NODE_ID: app})


def test_a_grid_belongs_to_one_run() -> None:
    grid = InProcessGrid({2: app})
    grid.set_run(grid.run)
    with pytest.raises(ValueError, match="run 1"):
        grid.set_run(Run.create_empty(9))
