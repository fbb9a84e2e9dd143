import io
import json
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedrec.errors import DataError, PrivacyError, RefusedError, UnreachableError
from fedrec_client.flower import app, client_app

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
    answer = post.through(client_app(participant), post.join())
    assert participant.terms == [post.terms]
    assert (answer.client, answer.users, answer.refusal) == ("library", 2, "")


def test_arrays_arrive_with_their_types_shapes_and_bytes_scalars_too(participant: Any, post: Any) -> None:
    answer = post.through(client_app(participant), post.ask(**ARRAYS))
    assert (answer.accepted, dict(answer.rejected)) == (1, {"busy": 1})
    (invitation,) = participant.invitations
    for name, sent in ARRAYS.items():
        arrived = invitation.question.public[name]
        assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape), name
        assert np.array_equal(arrived, sent), name
        assert arrived.flags.writeable
        assert arrived.flags.aligned


def npy(content: bytes, **header: object) -> Array:
    """An .npy file with a header of our choice."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (2,), **header})
    return Array("float64", (2,), "numpy.ndarray", stream.getvalue() + content)


HOSTILE = {
    "a header that claims a terabyte": npy(b"\0" * 16, shape=(2**37,)),
    "a header that overflows": npy(b"", shape=(2**62, 2**62)),
    "negative lengths": npy(b"\0" * 16, shape=(-1, -2)),
    "pickled objects": npy(b"\0" * 16, descr="|O"),
    "records": npy(b"\0" * 16, descr=[("a", "<f8")]),
    "text": npy(b"\0" * 16, descr="<U2"),
    "no header": Array("float64", (2,), "numpy.ndarray", b"\x93NUMPY"),
    "nothing": Array("float64", (2,), "numpy.ndarray", b""),
    "another library's bytes": Array("float64", (2,), "torch.pickle", b"\0" * 16),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_array_is_refused_before_it_is_allocated(participant: Any, post: Any, case: str) -> None:
    message = post.ask(V=np.zeros(2))
    message.content["public"] = ArrayRecord({"V": HOSTILE[case]})
    answer = post.through(client_app(participant), message)
    assert answer.refusal == "malformed"
    assert not participant.invitations


def test_one_small_array_under_many_names_counts_as_often_as_it_is_named(participant: Any, post: Any) -> None:
    message = post.ask(V=np.zeros(2))
    message.content["public"] = ArrayRecord({f"V{number}": Array(np.zeros(1000)) for number in range(20)})
    assert post.through(client_app(participant, max_public_bytes=100_000), message).refusal == "too-large"


def test_an_array_that_is_not_the_announced_one_is_refused(participant: Any, post: Any) -> None:
    message = post.ask(V=np.zeros(2))
    message.content["public"] = ArrayRecord({"V": Array(np.ones(2))})
    assert post.through(client_app(participant), message).refusal == "wrong-question"
    assert not participant.invitations


MALFORMED = {
    "nothing": RecordDict(),
    "another record": RecordDict({"fedrec": ArrayRecord()}),
    "text for bytes": RecordDict({"fedrec": ConfigRecord({"terms": "{}", "header": "{}", "plan": "{}"})}),
    "no json": RecordDict({"fedrec": ConfigRecord({"terms": b"\xff", "header": b"\xff", "plan": b"\xff"})}),
    "deep json": RecordDict({"fedrec": ConfigRecord({"terms": b"[" * 9999, "header": b"[" * 9999, "plan": b"[" * 99999})}),
    "other keys": RecordDict({"fedrec": ConfigRecord({"terms": b'{"a": 1}', "header": b'{"a": 1}', "plan": b'{"a": 1}'})}),
    "a list": RecordDict({"fedrec": ConfigRecord({"terms": b"[]", "header": b"[]", "plan": b"[]"})}),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("kind", ["query.join", "query.ask"])
def test_what_cannot_be_read_is_an_answer_with_a_refusal_and_no_crash(participant: Any, post: Any, kind: str, case: str) -> None:
    answer = post.through(client_app(participant), post.message(kind, MALFORMED[case]))
    assert answer.refusal in {"malformed", "wrong-plan"}
    assert answer.client == "library"
    assert not participant.terms
    assert not participant.invitations


def test_another_plan_than_the_questions_is_refused(participant: Any, post: Any) -> None:
    message = post.ask(V=np.zeros(2))
    record = message.content["fedrec"]
    plan = json.loads(record["plan"])
    plan["guarantee"]["epsilon"] = 0.5
    record["plan"] = json.dumps(plan).encode()
    assert post.through(client_app(participant), message).refusal == "wrong-plan"
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
        answer = post.through(client_app(participant), post.ask(V=np.zeros(2)))
    assert answer.refusal == code
    assert SECRET not in answer.cause
    assert SECRET not in "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


def test_the_app_that_a_bundle_names_answers_nothing(post: Any) -> None:
    with pytest.raises(ValueError, match="No query function"):
        post.through(app, post.join())
