"""Schemas of requests and answers over HTTP: the types that the OpenAPI document is made from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedrec.federation.round_messages import PROTOCOL
from fedrec.serving.bundle import MOST_CATEGORIES, About
from fedrec_server.serving.refusals import Code, malformed, refused

VERSION = r"^[0-9a-f]{16}$"


class Question(BaseModel):
    """A query: a few noised numbers and public choices.

    There is no field that could carry an item, a history or a user's vector."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    version: str = Field(
        pattern=VERSION,
        description=(
            "first 16 digits of the SHA-256 of the bundle that the coefficients were made with"
        ),
    )
    coefficients: list[float] = Field(
        description="as many as /v1/models says; noised, decoded, centred and scaled on the device"
    )
    k: int = Field(description="how many items are wanted", json_schema_extra={"minimum": 1})
    categories: list[str] = Field(
        [],
        max_length=MOST_CATEGORIES,
        description="only items in one of these public categories; empty: all",
    )


class Answer(BaseModel):
    """Rows of the bundle, best first, and their scores."""

    version: str
    items: list[int]
    scores: list[float]


class Problem(BaseModel):
    """Why a request was turned away. `code` is stable."""

    code: str
    cause: str
    remedy: str
    newest: str | None = Field(None, description="with wrong-version: the version to ask for")


class Served(BaseModel):
    """A version that answers."""

    version: str
    about: About
    coefficients: int = Field(description="numbers of a query")
    items: int = Field(description="size of the catalogue")
    bundle_bytes: int
    sha256: str
    retiring: bool = Field(description="it was replaced, and will stop answering")
    verified: str = Field(
        "",
        description="whether it follows from a certificate, as this server says; empty until then",
    )


class Models(BaseModel):
    """Every version that answers, the newest first."""

    newest: str
    protocol: int = Field(PROTOCOL, description="version of the messages that this server speaks")
    models: list[Served]


class Health(BaseModel):
    """What a probe is told."""

    status: Literal["live", "ready", "draining"]


_question = TypeAdapter(Question)


def question(body: bytes) -> Question:
    """Read a query.

    Raises RefusedError (`MALFORMED`), which names the field and not what stood in it."""
    try:
        return _question.validate_json(body)
    except ValidationError as failure:
        errors = failure.errors(include_url=False, include_context=False, include_input=False)
        kinds = {error["type"] for error in errors}
        first = errors[0]
        if {"extra_forbidden", "missing"} <= kinds:  # a history, as other servers take one
            raise refused(
                Code.MALFORMED,
                "a query holds version, coefficients and k alone: no history is sent to this "
                "server, the device makes noised coefficients of it",
                "Ask by `fedrec recommend --server URL --history FILE`, or from the page.",
            ) from None
        known = (
            first["loc"][:1]
            if first["loc"][:1] and first["loc"][0] in Question.model_fields
            else ()
        )
        place = f"{known[0]}: " if known else ""
        raise malformed(f"{place}{first['type'].replace('_', ' ')}") from None
