"""Both protocols give the answer that sorting every score gives, and turn away what is wrong at no cost
and with a stable code."""

import json
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fedrec.serving import bundle
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving.refusals import HTTP_STATUS, Code
from tests.serving_server.conftest import reference
from tests.waiting import HANG_S

RIGHT = [0.5, -1.0, 2.0, 0.0, 1e-3, -3.0]


@pytest.fixture
def running(start: Any) -> Any:
    return start()


@pytest.fixture
def catalogue(running: Any, tmp_path: Path) -> Any:
    return bundle.read_ranked(tmp_path / "serving.safetensors")


@pytest.mark.parametrize(
    ("k", "names"), [(1, ()), (7, ()), (1_000, ()), (40, ("war",)), (3, ("crime", "war"))]
)
def test_both_doors_name_the_best_items(
    running: Any, catalogue: Any, k: int, names: tuple[str, ...]
) -> None:
    mask = sum(1 << catalogue.about.categories.index(name) for name in names)
    expected = reference(catalogue, RIGHT, k, mask)
    assert running.recommend(catalogue.version, RIGHT, k, mask) == expected
    told = running.post(
        {"version": catalogue.version, "coefficients": RIGHT, "k": k, "categories": list(names)}
    ).json()
    assert (told["version"], told["items"], told["scores"]) == (catalogue.version, *expected)


WRONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("wrong-version", {"version": 1}, {"version": "0" * 15 + "1"}),
    ("wrong-length", {"coefficients": RIGHT[:5]}, {"coefficients": RIGHT[:5]}),
    ("wrong-length", {"coefficients": []}, {"coefficients": []}),
    ("wrong-length", {"coefficients": [*RIGHT, 1.0]}, {"coefficients": [*RIGHT, 1.0]}),
    (
        "not-finite",
        {"coefficients": [np.nan, *RIGHT[1:]]},
        {"coefficients": [float("nan"), *RIGHT[1:]]},
    ),
    ("not-finite", {"coefficients": [-np.inf, *RIGHT[1:]]}, {"coefficients": [1e999, *RIGHT[1:]]}),
    ("not-finite", {"coefficients": [3e38, *RIGHT[1:]]}, {"coefficients": [1e300, *RIGHT[1:]]}),
    ("k-out-of-range", {"k": 0}, {"k": 0}),
    ("k-out-of-range", {"k": 1_001}, {"k": -1}),
    ("k-out-of-range", {"k": 2**32 - 1}, {"k": 10**30}),
    ("unknown-category", {"categories": 8}, {"categories": ["comedy"]}),
    ("unknown-category", {"categories": 2**64 - 1}, {"categories": ["war", ""]}),
]


@pytest.mark.parametrize(("code", "over_grpc", "over_http"), WRONG)
def test_what_is_wrong_is_told_by_the_same_code_at_both_doors(
    running: Any, code: str, over_grpc: Any, over_http: Any
) -> None:
    right = {"version": running.told.newest, "coefficients": RIGHT, "k": 3}
    request = pb.RecommendRequest(
        **({**right, "version": int(running.told.newest, 16)} | over_grpc)
    )
    with pytest.raises(grpc.RpcError) as failure:
        running.raw("Recommend", request.SerializeToString())
    trailing = dict(failure.value.trailing_metadata())
    expected = {"wrong-version": grpc.StatusCode.FAILED_PRECONDITION}.get(
        code, grpc.StatusCode.INVALID_ARGUMENT
    )
    assert (trailing["fedrec-code"], failure.value.code()) == (code, expected)
    response = running.post(right | over_http)
    assert (response.json()["code"], response.status_code) == (
        code,
        409 if code == "wrong-version" else 422,
    )
    if code == "wrong-version":
        assert trailing["fedrec-newest"] == response.json()["newest"] == running.told.newest


MALFORMED = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 60_000,
    b"null",
    b'{"version": 3}',
    b'{"k": 1, "items": [3]}',
    b'"' + b"x" * 1_000,
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_body_that_cannot_be_read_is_malformed_and_not_repeated(
    running: Any, body: bytes
) -> None:
    response = running.post(body)
    assert (response.status_code, response.json()["code"]) == (400, "malformed")
    assert len(response.content) < 300


def test_what_was_sent_is_never_repeated_in_an_answer_or_a_log(
    running: Any, tmp_path: Path
) -> None:
    secret = 1234567.875
    for content in (
        {"version": "f" * 16, "coefficients": [secret] * 6, "k": 3},
        {"version": running.told.newest, "coefficients": [str(secret)] * 6, "k": 3, str(secret): 1},
        {
            "version": running.told.newest,
            "coefficients": [secret] * 5,
            "k": 3,
            "categories": [str(secret)],
        },
        {"version": running.told.newest, "coefficients": [secret] * 6, "k": 3},
    ):
        assert "1234567" not in running.post(content).text
    assert "1234567" not in running.metrics()
    assert "1234567" not in (tmp_path / "log.jsonl").read_text()


@pytest.mark.parametrize("message", [b"\xff" * 50, b"\x12\x05abc", struct.pack("<B", 0x12)])
def test_a_message_that_cannot_be_read_is_malformed(running: Any, message: bytes) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        running.raw("Recommend", message)
    assert (failure.value.code(), dict(failure.value.trailing_metadata())["fedrec-code"]) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "malformed",
    )


def test_the_bundle_comes_whole_over_both_doors_and_proves_itself(
    running: Any, tmp_path: Path
) -> None:
    content = (tmp_path / "serving.safetensors").read_bytes()
    told = running.http.get("/v1/models").json()["models"][0]
    response = running.http.get(f"/v1/models/{told['version']}/bundle")
    assert response.content == running.model() == running.model(int(told["version"], 16)) == content
    assert (
        response.headers["etag"]
        == f'"{told["sha256"]}"'
        == f'"{bundle.sha256_of(tmp_path / "serving.safetensors")}"'
    )
    assert told["bundle_bytes"] == len(content)
    again = running.http.get(
        f"/v1/models/{told['version']}/bundle", headers={"if-none-match": response.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert running.http.get(f"/v1/models/{'0' * 16}/bundle").json()["code"] == "wrong-version"


def test_a_path_that_is_not_there_is_not_found(running: Any) -> None:
    assert running.http.get("/v1/nothing").json()["code"] == "not-found"
    other = running.http.get("/v1/recommend")
    assert (other.status_code, other.json()["cause"]) == (405, "this path takes another method")
    response = running.http.get("/v1/models/x/bundle")
    assert (response.status_code, response.json()["code"]) == (422, "malformed")


def test_health_and_reflection_are_the_standard_services(running: Any) -> None:
    check = running.channel.unary_unary("/grpc.health.v1.Health/Check")
    for service in ("", "fedrec.serving.v1.Recommender"):
        reply = check(
            health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=HANG_S
        )
        assert (
            health_pb2.HealthCheckResponse.FromString(reply).status
            == health_pb2.HealthCheckResponse.SERVING
        )
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        check(health_pb2.HealthCheckRequest(service="other").SerializeToString(), timeout=HANG_S)
    reflect = running.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
    asked = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="fedrec.serving.v1.Recommender"
    )
    (reply,) = reflect(iter([asked.SerializeToString()]), timeout=HANG_S)
    described = reflection_pb2.ServerReflectionResponse.FromString(
        reply
    ).file_descriptor_response.file_descriptor_proto
    assert pb.DESCRIPTOR.serialized_pb in list(described)


def test_counts_are_there_and_every_code_has_a_status(running: Any) -> None:
    running.recommend(running.told.newest, RIGHT)
    running.post({"version": running.told.newest, "coefficients": [], "k": 1})
    lines = running.metrics().splitlines()
    assert 'fedrec_query_seconds_count{protocol="grpc"} 1.0' in lines
    assert 'fedrec_requests_refused_total{reason="wrong-length"} 1.0' in lines
    assert set(HTTP_STATUS) == set(Code)
    assert running.http.get("/metrics").status_code == 404  # the public port tells strangers none
    assert json.loads(running.http.get("/health/live").text) == {"status": "live"}
