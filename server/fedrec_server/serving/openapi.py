"""The OpenAPI document of all routes, made by FastAPI from the types that the routes read and
write.

The functions here are described and never called: `http_api` answers. A test holds the two side by
side.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Response
from fastapi.responses import StreamingResponse

from fedrec import __version__
from fedrec_server.serving.refusals import HTTP_STATUS
from fedrec_server.serving.schemas import VERSION, Answer, Health, Models, Problem, Question

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in sorted(set(HTTP_STATUS.values()) - {404})
}
_BUNDLE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "A safetensors file."},
    304: {"description": "The caller has it."},
    **{status: {"model": Problem} for status in (409, 422, 429)},
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    app = FastAPI(
        title="fedrec serving",
        version=__version__,
        summary=(
            "Recommendations for queries that carry a few noised coefficients and nothing else "
            "of a person."
        ),
    )
    app.post("/v1/recommend", responses=_PROBLEMS)(recommend)
    app.get("/v1/models")(models)
    app.get("/v1/models/{version}/bundle", response_class=StreamingResponse, responses=_BUNDLE)(
        bundle
    )
    app.get("/health/live")(live)
    app.get("/health/ready", responses={503: {"model": Health}})(ready)
    return app.openapi()


async def recommend(query: Question) -> Answer:
    """The k best items for the coefficients of one query."""
    raise NotImplementedError


async def models() -> Models:
    """Every version that answers, the newest first."""
    raise NotImplementedError


async def bundle(
    version: Annotated[str, Path(pattern=VERSION)], if_none_match: Annotated[str, Header()] = ""
) -> Response:
    """The public bundle that queries are made with; its SHA-256 is in the ETag, and the version its
    first 16 digits."""
    raise NotImplementedError


async def live() -> Health:
    """The process runs."""
    raise NotImplementedError


async def ready() -> Health:
    """Whether to send queries here."""
    raise NotImplementedError
