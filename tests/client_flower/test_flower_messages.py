import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedrec.errors import DataError, PrivacyError, RefusedError, UnreachableError
from fedrec.federation.coding import deflated, encode, rounded_rows
from fedrec_client.flower import app, client_app
from fedrec_client.last_arrays import HeldArrays
from tests.client_flower.conftest import as_sent

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


def test_arrays_arrive_with_their_types_shapes_and_bytes_scalars_too(
    participant: Any, post: Any
) -> None:
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
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (2,), **header}
    )
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
@pytest.mark.parametrize("kind", ["query.ask", "query.tell"])
def test_a_hostile_array_is_refused_before_it_is_allocated(
    participant: Any, post: Any, kind: str, case: str
) -> None:
    message = (
        post.ask(V=np.zeros(2))
        if kind == "query.ask"
        else post.message(kind, RecordDict({"fedrec": ConfigRecord({"ask": b"{}"})}))
    )
    message.content["public"] = ArrayRecord({"V": HOSTILE[case]})
    answer = post.through(client_app(participant), message)
    assert answer.refusal == "malformed"
    assert "array 'V'" in answer.cause
    assert not participant.invitations


def test_one_small_array_under_many_names_counts_as_often_as_it_is_named(
    participant: Any, post: Any
) -> None:
    message = post.ask(V=np.zeros(2))
    message.content["public"] = ArrayRecord(
        {f"V{number}": Array(np.zeros(1000)) for number in range(20)}
    )
    assert (
        post.through(client_app(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )


def test_an_array_that_is_not_the_announced_one_is_refused(participant: Any, post: Any) -> None:
    message = post.ask(V=np.zeros(2))
    message.content["public"] = ArrayRecord({"V": as_sent(encode(np.ones(2)))})
    assert post.through(client_app(participant), message).refusal == "wrong-question"
    assert not participant.invitations


def test_terms_that_unpack_to_more_than_a_quarter_of_what_a_question_may_hold_are_refused(
    participant: Any, post: Any
) -> None:
    message = post.message(
        "query.join", RecordDict({"fedrec": ConfigRecord({"terms": deflated(b" " * 10**6)})})
    )
    assert (
        post.through(client_app(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )
    assert (
        post.through(client_app(participant, max_public_bytes=10**7), message).refusal
        == "malformed"
    )
    assert not participant.terms


# --- what a device has already ---

BEFORE = {"V": rounded_rows(np.random.default_rng(1).normal(size=(50, 4))), "mean": np.array(0.5)}
NOW = {"V": rounded_rows(np.random.default_rng(2).normal(size=(50, 4))), "mean": np.array(0.5)}


def test_what_the_question_before_held_is_not_sent_again(participant: Any, post: Any) -> None:
    app = client_app(participant)
    first = post.ask(**BEFORE)
    second = post.ask(earlier=BEFORE, **NOW)
    assert second.content["public"]["mean"].data == b""
    assert [post.through(app, message).accepted for message in (first, second)] == [1, 1]
    arrived = participant.invitations[1].question.public
    assert all(arrived[name].tobytes() == array.tobytes() for name, array in NOW.items())


def test_a_device_that_missed_a_round_says_so_and_answers_when_it_gets_everything(
    participant: Any, post: Any
) -> None:
    app = client_app(participant)
    assert post.through(app, post.ask(earlier=BEFORE, **NOW)).refusal == "arrays-unknown"
    assert not participant.invitations
    assert post.through(app, post.ask(**NOW)).accepted == 1
    # asked again, it has them all
    assert post.through(app, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_a_device_that_starts_again_has_what_it_had(
    participant: Any, post: Any, tmp_path: Path
) -> None:
    kept = tmp_path / "public.safetensors"
    assert (
        post.through(client_app(participant, held=HeldArrays(kept)), post.ask(**BEFORE)).accepted
        == 1
    )
    assert (
        post.through(
            client_app(participant, held=HeldArrays(kept)), post.ask(earlier=BEFORE, **NOW)
        ).accepted
        == 1
    )
    assert (
        post.through(
            client_app(participant, held=HeldArrays(kept)), post.ask(earlier=BEFORE, **NOW)
        ).accepted
        == 1
    )
    kept.write_bytes(b"damaged")
    assert (
        post.through(
            client_app(participant, held=HeldArrays(kept)), post.ask(earlier=NOW, **BEFORE)
        ).refusal
        == "arrays-unknown"
    )


def test_a_step_that_writes_into_its_arrays_changes_nothing_that_is_kept(
    participant: Any, post: Any
) -> None:
    app = client_app(participant)
    assert post.through(app, post.ask(**BEFORE)).accepted == 1
    participant.invitations[0].question.public["V"][:] = 9.0
    assert post.through(app, post.ask(earlier=BEFORE, **BEFORE)).accepted == 1
    participant.invitations[1].question.public["V"][:] = 9.0
    assert post.through(app, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_a_question_that_is_refused_leaves_what_was_kept(participant: Any, post: Any) -> None:
    app = client_app(participant)
    broken = post.ask(**NOW)
    assert post.through(app, post.ask(**BEFORE)).accepted == 1
    broken.content["public"] = ArrayRecord(
        {"V": as_sent(encode(NOW["V"] + 1)), "mean": as_sent(encode(NOW["mean"]))}
    )
    assert post.through(app, broken).refusal == "wrong-question"
    assert post.through(app, post.ask(earlier=BEFORE, **NOW)).accepted == 1


def test_arrays_larger_than_the_limit_are_refused_by_what_is_announced(
    participant: Any, post: Any
) -> None:
    message = post.ask(V=np.zeros((10_000, 2)))
    assert len(message.content["public"]["V"].data) < 200
    assert (
        post.through(client_app(participant, max_public_bytes=100_000), message).refusal
        == "too-large"
    )


MALFORMED = {
    "nothing": RecordDict(),
    "another record": RecordDict({"fedrec": ArrayRecord()}),
    "text for bytes": RecordDict(
        {"fedrec": ConfigRecord({"terms": "{}", "header": "{}", "plan": "{}"})}
    ),
    "no json": RecordDict(
        {"fedrec": ConfigRecord({"terms": b"\xff", "header": b"\xff", "plan": b"\xff"})}
    ),
    "deep json": RecordDict(
        {
            "fedrec": ConfigRecord(
                {"terms": b"[" * 9999, "header": b"[" * 9999, "plan": b"[" * 99999}
            )
        }
    ),
    "other keys": RecordDict(
        {"fedrec": ConfigRecord({"terms": b'{"a": 1}', "header": b'{"a": 1}', "plan": b'{"a": 1}'})}
    ),
    "a list": RecordDict(
        {"fedrec": ConfigRecord({"terms": b"[]", "header": b"[]", "plan": b"[]"})}
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("kind", ["query.join", "query.ask"])
def test_what_cannot_be_read_is_an_answer_with_a_refusal_and_no_crash(
    participant: Any, post: Any, kind: str, case: str
) -> None:
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
    assert SECRET not in "".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records
    )


def test_the_app_that_a_bundle_names_answers_nothing(post: Any) -> None:
    with pytest.raises(ValueError, match="No query function"):
        post.through(app, post.join())
