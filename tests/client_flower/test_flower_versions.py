"""Versions of the messages: who is too far away hears it, takes no part, and holds up
nobody."""

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedrec.federation.protocol import Refusal
from fedrec.federation.round_messages import FIELD, PROTOCOL
from fedrec_client.requests import Requests
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from tests.client_flower.conftest import TERMS, Recorder
from tests.flower_grid import InProcessGrid, client_app


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (None, False),
        (PROTOCOL - 2, False),
        (PROTOCOL - 1, True),
        (PROTOCOL, True),
        (PROTOCOL + 1, True),
        (PROTOCOL + 2, False),
        (str(PROTOCOL), True),
        ("x", False),
    ],
)
def test_a_client_answers_a_server_of_an_adjacent_version_only(
    said: object, heard: bool, participant: Recorder, post: Any
) -> None:
    message = post.join()
    kept = {name: value for name, value in message.said.items() if name != FIELD}
    message = replace(message, said=kept if said is None else {**kept, FIELD: said})
    answer = post.through(Requests(participant), message)  # type: ignore[arg-type]
    assert (answer.refusal == "") == heard == bool(participant.terms)
    assert heard or (answer.refusal == Refusal.WRONG_PROTOCOL and "the server" in answer.cause)


def test_a_client_of_a_far_version_is_refused_by_name_and_the_others_stay() -> None:
    near = Recorder("near")
    far = Recorder("far")

    def of_version_9(message: Message, context: Context) -> Message:
        reply = client_app(Requests(far))(message, context)  # type: ignore[arg-type]
        said = reply.content["fedrec"]
        assert isinstance(said, ConfigRecord)
        assert said[FIELD] == PROTOCOL
        said[FIELD] = 9
        return Message(RecordDict({"fedrec": said}), reply_to=message)

    grid = InProcessGrid({2: client_app(Requests(near)), 3: of_version_9})  # type: ignore[arg-type]
    clients = ClientBroadcast(GridPost(grid), 60.0)
    answers = {answer.client: answer for answer in clients.join(TERMS)}
    assert (answers["near"].users, answers["near"].refusal) == (2, "")
    assert (answers["far"].users, answers["far"].refusal) == (0, Refusal.WRONG_PROTOCOL)
    assert "Upgrade fedrec here" in answers["far"].cause
