import io
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict

from fedrec.errors import DataError, PrivacyError, RefusedError, UnreachableError
from fedrec.federation.coding import deflated, encode, rounded_rows
from fedrec.federation.round_messages import FIELD, PROTOCOL, RoundMessage, said
from fedrec_client.held_arrays import HeldArrays
from fedrec_client.requests import Requests
from fedrec_server.flower import record_of
from tests.flower_grid import client_app

SECRET = "user 17 rated item 42 with 5"

ARRAYS = {
    "scalar": np.float64(3.25),
    "counts": np.arange(6, dtype=np.int64).reshape(2, 3),
    "small": np.array([0.1, 0.2], dtype=np.float32),
    "empty": np.zeros((0, 4)),
    "columns_first": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(20, dtype=np.int32)[::3],
}


def test_terms_arrive_as_they_were_sent(participant: Any, post: Any) -> None:
    answer = post.through(Requests(participant), post.join())
    assert participant.terms == [post.terms]
    assert (answer.client, answer.users, answer.refusal) == ("library", 2, "")


def test_arrays_arrive_with_their_types_shapes_and_bytes_scalars_too(
    participant: Any, post: Any
) -> None:
    answer = post.through(Requests(participant), post.ask(**ARRAYS))
    assert (answer.accepted, dict(answer.rejected)) == (1, {"busy": 1})
    (invitation,) = participant.invitations
    for name, sent in ARRAYS.items():
        arrived = invitation.question.public[name]
        assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape), name
        assert np.array_equal(arrived, sent), name
        assert arrived.flags.writeable
        assert arrived.flags.aligned


def npy(content: bytes, **header: object) -> bytes:
    """An .npy file with a header of our choice."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (2,), **header}
    )
    return stream.getvalue() + content


HOSTILE = {
    "a header that claims a terabyte": npy(b"\0" * 16, shape=(2**37,)),
    "a header that overflows": npy(b"", shape=(2**62, 2**62)),
    "negative lengths": npy(b"\0" * 16, shape=(-1, -2)),
    "pickled objects": npy(b"\0" * 16, descr="|O"),
    "records": npy(b"\0" * 16, descr=[("a", "<f8")]),
    "text": npy(b"\0" * 16, descr="<U2"),
    "no header": b"\x93NUMPY",
    "nothing": b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_array_is_refused_before_it_is_allocated(
    participant: Any, post: Any, case: str
) -> None:
    message = RoundMessage(said(ask=b"{}"), {"V": HOSTILE[case]}, "tell")
    answer = post.through(Requests(participant), message)
    assert answer.refusal == "malformed"
    assert "array 'V'" in answer.cause
    assert not participant.invitations


def test_one_small_array_under_many_names_counts_as_often_as_it_is_named(
    participant: Any, post: Any
) -> None:
    data = bytes(8_000)
    message = replace(post.ask(V=np.zeros(2)), arrays={f"V{number}": data for number in range(20)})
    assert (
        post.through(Requests(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )


def test_an_array_that_is_not_the_announced_one_is_refused(participant: Any, post: Any) -> None:
    message = replace(post.ask(V=np.zeros(2)), arrays={"V": encode(np.ones(2))})
    assert post.through(Requests(participant), message).refusal == "wrong-question"
    assert not participant.invitations


def test_terms_that_unpack_to_more_than_a_quarter_of_what_a_question_may_hold_are_refused(
    participant: Any, post: Any
) -> None:
    message = RoundMessage(said(terms=deflated(b" " * 10**6)), kind="join")
    assert (
        post.through(Requests(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )
    assert (
        post.through(Requests(participant, max_public_bytes=10**7), message).refusal == "malformed"
    )
    assert not participant.terms


# --- what a device has already ---

BEFORE = {"V": rounded_rows(np.random.default_rng(1).normal(size=(50, 4))), "mean": np.array(0.5)}
NOW = {"V": rounded_rows(np.random.default_rng(2).normal(size=(50, 4))), "mean": np.array(0.5)}


def test_what_the_question_before_held_is_not_sent_again(participant: Any, post: Any) -> None:
    requests = Requests(participant)
    first = post.ask(**BEFORE)
    second = post.ask(earlier=BEFORE, **NOW)
    assert second.arrays["mean"] == b""
    assert [post.through(requests, message).accepted for message in (first, second)] == [1, 1]
    arrived = participant.invitations[1].question.public
    assert all(arrived[name].tobytes() == array.tobytes() for name, array in NOW.items())


def test_a_device_that_missed_a_round_says_so_and_answers_when_it_gets_everything(
    participant: Any, post: Any
) -> None:
    requests = Requests(participant)
    assert post.through(requests, post.ask(earlier=BEFORE, **NOW)).refusal == "arrays-unknown"
    assert not participant.invitations
    assert post.through(requests, post.ask(**NOW)).accepted == 1
    # asked again, it has them all
    assert post.through(requests, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_a_device_that_starts_again_has_what_it_had(
    participant: Any, post: Any, tmp_path: Path
) -> None:
    kept = tmp_path / "public.safetensors"
    assert (
        post.through(Requests(participant, held=HeldArrays(kept)), post.ask(**BEFORE)).accepted == 1
    )
    assert (
        post.through(
            Requests(participant, held=HeldArrays(kept)), post.ask(earlier=BEFORE, **NOW)
        ).accepted
        == 1
    )
    assert (
        post.through(
            Requests(participant, held=HeldArrays(kept)), post.ask(earlier=BEFORE, **NOW)
        ).accepted
        == 1
    )
    kept.write_bytes(b"damaged")
    assert (
        post.through(
            Requests(participant, held=HeldArrays(kept)), post.ask(earlier=NOW, **BEFORE)
        ).refusal
        == "arrays-unknown"
    )


def test_a_step_that_writes_into_its_arrays_changes_nothing_that_is_kept(
    participant: Any, post: Any
) -> None:
    requests = Requests(participant)
    assert post.through(requests, post.ask(**BEFORE)).accepted == 1
    participant.invitations[0].question.public["V"][:] = 9.0
    assert post.through(requests, post.ask(earlier=BEFORE, **BEFORE)).accepted == 1
    participant.invitations[1].question.public["V"][:] = 9.0
    assert post.through(requests, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_a_question_that_is_refused_leaves_what_was_kept(participant: Any, post: Any) -> None:
    requests = Requests(participant)
    assert post.through(requests, post.ask(**BEFORE)).accepted == 1
    arrays = {"V": encode(NOW["V"] + 1), "mean": encode(NOW["mean"])}
    broken = replace(post.ask(**NOW), arrays=arrays)
    assert post.through(requests, broken).refusal == "wrong-question"
    assert post.through(requests, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_arrays_larger_than_the_limit_are_refused_by_what_is_announced(
    participant: Any, post: Any
) -> None:
    message = post.ask(V=np.zeros((10_000, 2)))
    assert len(message.arrays["V"]) < 200
    assert (
        post.through(Requests(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )


MALFORMED = {
    "nothing": {},
    "text for bytes": {"terms": "{}", "header": "{}", "plan": "{}"},
    "no json": dict.fromkeys(("terms", "header", "plan"), b"\xff"),
    "deep json": {"terms": b"[" * 9999, "header": b"[" * 9999, "plan": b"[" * 99999},
    "other keys": dict.fromkeys(("terms", "header", "plan"), b'{"a": 1}'),
    "a list": dict.fromkeys(("terms", "header", "plan"), b"[]"),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("kind", ["join", "ask", "else"])
def test_what_cannot_be_read_is_an_answer_with_a_refusal_and_no_crash(
    participant: Any, post: Any, kind: str, case: str
) -> None:
    answer = post.through(Requests(participant), RoundMessage(said(**MALFORMED[case]), kind=kind))
    assert answer.refusal in {"malformed", "wrong-plan"}
    assert answer.client == "library"
    assert not participant.terms
    assert not participant.invitations


def test_another_plan_than_the_questions_is_refused(participant: Any, post: Any) -> None:
    message = post.ask(V=np.zeros(2))
    plan = json.loads(message.said["plan"])
    plan["guarantee"]["epsilon"] = 0.5
    message = replace(message, said={**message.said, "plan": json.dumps(plan).encode()})
    assert post.through(Requests(participant), message).refusal == "wrong-plan"
    assert not participant.invitations


FAULTS = [
    (ValueError(SECRET), "failed"),
    (DataError(SECRET, SECRET), "failed"),
    (RefusedError("budget", SECRET, SECRET), "budget"),
    (UnreachableError(SECRET, SECRET), "unreachable"),
    (PrivacyError(SECRET, SECRET), "failed"),
]


@pytest.mark.parametrize(("fault", "code"), FAULTS)
def test_the_words_of_a_fault_reach_neither_the_server_nor_the_log(
    participant: Any, post: Any, caplog: pytest.LogCaptureFixture, fault: Exception, code: str
) -> None:
    participant.fault = fault
    with caplog.at_level(logging.DEBUG):
        answer = post.through(Requests(participant), post.ask(V=np.zeros(2)))
    assert answer.refusal == code
    assert SECRET not in answer.cause
    assert SECRET not in "".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records
    )


# --- over Flower ---


def through_flower(participant: Any, kind: str, content: RecordDict) -> Message:
    message = Message(content, metadata=Metadata(7, "message", 1, 2, "", "", 1e9, 3600.0, kind))  # type: ignore[call-overload]
    return client_app(Requests(participant))(message, Context(7, 2, {}, RecordDict(), {}))


def test_a_message_of_flower_is_the_same_message(participant: Any, post: Any) -> None:
    content = record_of(post.ask(**ARRAYS))
    reply = through_flower(participant, "query.ask", content)
    assert post.answer(RoundMessage(dict(reply.content["fedrec"]))).accepted == 1
    (invitation,) = participant.invitations
    assert {name: array.tobytes() for name, array in invitation.question.public.items()} == {
        name: np.asarray(array, order="C").tobytes() for name, array in ARRAYS.items()
    }
    assert reply.metadata.reply_to_message_id == "message"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedrec": ArrayRecord()}),
        RecordDict({"fedrec": ConfigRecord({FIELD: PROTOCOL, "terms": "text"})}),
        RecordDict({"fedrec": ConfigRecord({FIELD: PROTOCOL}), "public": ConfigRecord()}),
    ],
)
def test_a_message_of_flower_that_is_none_is_refused(
    participant: Any, post: Any, content: RecordDict
) -> None:
    reply = through_flower(participant, "query.join", content)
    assert post.answer(RoundMessage(dict(reply.content["fedrec"]))).refusal == "malformed"
    assert not participant.terms
