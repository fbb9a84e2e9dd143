"""What a request can carry, over the descriptors and the OpenAPI document themselves."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving import http_api

NUMBERS_OF_A_QUERY = FieldDescriptor.TYPE_FLOAT
ONE_NUMBER = {FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_UINT32}


def requests() -> list[Descriptor]:
    return [
        method.input_type
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def test_a_query_has_coefficients_k_version_and_categories_and_nothing_else() -> None:
    assert {field.name for field in pb.RecommendRequest.DESCRIPTOR.fields} == {
        "version",
        "coefficients",
        "k",
        "categories",
    }
    assert {field.name for field in pb.GetModelRequest.DESCRIPTOR.fields} == {"version"}


def test_no_message_of_a_client_has_a_field_that_could_name_items_or_carry_text() -> None:
    for message in requests():
        for field in message.fields:
            if field.is_repeated:
                assert (field.name, field.type) == ("coefficients", NUMBERS_OF_A_QUERY)
            else:
                assert field.type in ONE_NUMBER, field.full_name
        assert not message.nested_types
        assert not message.is_extendable


def test_no_call_takes_a_stream_of_requests() -> None:
    assert not any(
        m.client_streaming
        for service in pb.DESCRIPTOR.services_by_name.values()
        for m in service.methods
    )


KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KNOWN = {
    "$ref",
    "anyOf",
    "type",
    "pattern",
    "minimum",
    "maximum",
    "maxItems",
    "items",
    "properties",
    "required",
    "additionalProperties",
}
WORDS = {"title", "description", "default", "const", "enum", "exclusiveMinimum", "exclusiveMaximum"}


def allows(schema: dict[str, Any], content: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema 2020-12 that our documents use; what it does not know fails the
    test."""
    assert set(schema) <= KNOWN | WORDS, schema
    if "$ref" in schema:
        return allows(
            root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], content, root
        )
    if "anyOf" in schema:
        return any(allows(one, content, root) for one in schema["anyOf"])
    if "type" in schema and (
        not isinstance(content, KINDS[schema["type"]])
        or (isinstance(content, bool) and schema["type"] != "boolean")
    ):
        return False
    if isinstance(content, str):
        return bool(re.search(schema.get("pattern", ""), content))
    if isinstance(content, list):
        return len(content) <= schema.get("maxItems", 10**9) and all(
            allows(schema.get("items", {}), one, root) for one in content
        )
    if isinstance(content, dict):
        named = schema.get("properties", {})
        other = schema.get("additionalProperties", True)
        extra = {name: value for name, value in content.items() if name not in named}
        return (
            set(schema.get("required", ())) <= set(content)
            and all(
                allows(named[name], value, root) for name, value in content.items() if name in named
            )
            and (other is not False or not extra)
        )
    return not isinstance(content, int | float) or content >= schema.get("minimum", content)


@pytest.fixture
def document(start: Any) -> tuple[dict[str, Any], httpx2.Client, str]:
    running = start()
    return running.http.get("/openapi.json").json(), running.http, running.told.newest


def test_the_http_query_has_the_same_fields_and_no_others(
    document: tuple[dict[str, Any], httpx2.Client, str],
) -> None:
    described, _, _ = document
    assert described["openapi"].startswith("3.1")
    with_body = {
        path: way
        for path, ways in described["paths"].items()
        for way, told in ways.items()
        if "requestBody" in told
    }
    assert with_body == {"/v1/recommend": "post"}
    schema = described["components"]["schemas"]["Question"]
    assert set(schema["properties"]) == {"version", "coefficients", "k", "categories"}
    assert schema["additionalProperties"] is False
    assert schema["properties"]["coefficients"]["items"] == {"type": "number"}
    parameters = {
        p["name"]
        for ways in described["paths"].values()
        for told in ways.values()
        for p in told.get("parameters", [])
    }
    assert parameters == {"version", "if-none-match"}


def test_what_the_schema_allows_is_answered_as_the_schema_says(
    document: tuple[dict[str, Any], httpx2.Client, str],
) -> None:
    described, http, version = document
    told = described["paths"]["/v1/recommend"]["post"]

    asked: dict[str, Any] = {
        "version": version,
        "coefficients": [0.5, 1, -2.0, 0, 0, 1e-3],
        "k": 3,
        "categories": ["war"],
    }
    takes = told["requestBody"]["content"]["application/json"]["schema"]
    wrong = [
        {**asked, "items": [1, 2]},
        {**asked, "k": "3"},
        {**asked, "k": 0},
        {**asked, "version": "x"},
        {"k": 3},
        [],
        "text",
    ]
    wrong += [
        {**asked, "coefficients": ["1"]},
        {**asked, "coefficients": {}},
        {**asked, "categories": "war"},
        {**asked, "k": True},
    ]
    for content, right in [
        (asked, True),
        ({**asked, "categories": []}, True),
        *((content, False) for content in wrong),
    ]:
        response = http.post("/v1/recommend", content=json.dumps(content))
        assert allows(takes, content, described) == right, content
        assert response.is_success == right, (content, response.text)
        schema = told["responses"][str(response.status_code)]["content"]["application/json"][
            "schema"
        ]
        assert allows(schema, response.json(), described), response.text


def test_every_described_route_answers(document: tuple[dict[str, Any], httpx2.Client, str]) -> None:
    described, http, version = document
    for path, ways in described["paths"].items():
        if "get" in ways:
            response = http.get(path.replace("{version}", version))
            assert response.status_code == 200, path
            assert (
                response.headers["content-type"].split(";")[0]
                in ways["get"]["responses"]["200"]["content"]
            ), path


def test_the_document_describes_every_route_and_no_other(start: Any) -> None:
    running = start()
    described = running.http.get("/openapi.json").json()["paths"]
    for path, ways in described.items():
        for way in ("get", "post", "put", "delete"):
            told = running.http.request(
                way, path.replace("{version}", running.told.newest)
            ).status_code
            assert (told == 405) == (way not in ways), (way, path, told)
    source = (Path(http_api.__file__)).read_text()
    assert set(re.findall(r'"(/(?:v1|health)[^" ]*)"', source)) == set(described)
