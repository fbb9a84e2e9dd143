"""Versions of the messages over Flower: who is too far away hears it, takes no part, and holds up
nobody."""

import re
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedrec.errors import SettingsError
from fedrec.federation.protocol import Refusal
from fedrec.federation.versions import FIELD, PROTOCOL
from fedrec.operations.flower_process import (
    FLOWER_BELOW,
    FLOWER_FROM,
    require_tested_flower,
)
from fedrec_client.flower import client_app
from fedrec_server.flower import FlowerBroadcast
from fedrec_simulations.runtimes.in_process import InProcessGrid
from tests.client_flower.conftest import TERMS, Recorder


@pytest.mark.parametrize(
    ("said", "heard"),
    [(None, True), (1, True), (2, True), (3, True), (4, False), ("2", True), ("x", False)],
)
def test_a_client_answers_a_server_of_an_adjacent_version_only(
    said: object, heard: bool, participant: Recorder, post: Any
) -> None:
    message = post.join()
    if said is not None:
        message.content["fedrec"][FIELD] = said
    answer = post.through(client_app(participant), message)  # type: ignore[arg-type]
    assert (answer.refusal == "") == heard == bool(participant.terms)
    assert heard or (answer.refusal == Refusal.WRONG_PROTOCOL and "the server" in answer.cause)


def test_a_client_of_a_far_version_is_refused_by_name_and_the_others_stay() -> None:
    near = Recorder("near")
    far = Recorder("far")

    def of_version_9(message: Message, context: Context) -> Message:
        reply = client_app(far)(message, context)  # type: ignore[arg-type]
        said = reply.content["fedrec"]
        assert isinstance(said, ConfigRecord)
        assert said[FIELD] == PROTOCOL
        said[FIELD] = 9
        return Message(RecordDict({"fedrec": said}), reply_to=message)

    grid = InProcessGrid({2: client_app(near), 3: of_version_9})  # type: ignore[arg-type]
    answers = {answer.client: answer for answer in FlowerBroadcast(grid, 60.0).join(TERMS)}
    assert (answers["near"].users, answers["near"].refusal) == (2, "")
    assert (answers["far"].users, answers["far"].refusal) == (0, Refusal.WRONG_PROTOCOL)
    assert "Upgrade fedrec here" in answers["far"].cause


@pytest.mark.parametrize("release", ["1.40.0", "1.41.1", "1.42.0", "1.42.0.post1"])
def test_a_tested_release_of_flower_is_taken(release: str) -> None:
    require_tested_flower(release)


@pytest.mark.parametrize("release", ["0.42.0", "1.39.2", "1.43.0", "2.41.0"])
def test_another_release_of_flower_is_refused_by_name(release: str) -> None:
    with pytest.raises(SettingsError, match=rf"flwr {re.escape(release)} is installed"):
        require_tested_flower(release)


def test_the_project_asks_for_the_tested_releases_of_flower(pytestconfig: pytest.Config) -> None:
    asked = (pytestconfig.rootpath / "pyproject.toml").read_text()
    tested = ">={}.{},<{}.{}".format(*FLOWER_FROM, *FLOWER_BELOW)
    assert re.findall(r'"flwr(?:\[\w+\])?([^"]+)"', asked) == [tested, tested]
