"""The HTTP routes as one ASGI application.

The query's route bypasses all frameworks' reading and writing, which take longer than the ranking.
The OpenAPI document is made by `http_schema` when somebody first asks for it: FastAPI would hold 11
MB for as long as the process runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from re import fullmatch
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fedrec.errors import RefusedError
from fedrec.serving.ranking import Query
from fedrec.transport.connection_limits import rest
from fedrec_server.serving.batcher import coefficients_of
from fedrec_server.serving.context import PIECE_BYTES, ServingContext
from fedrec_server.serving.refusals import (
    HTTP_STATUS,
    RETRY_AFTER_S,
    Code,
    malformed,
    refused,
    too_large,
    too_slow,
)
from fedrec_server.serving.schemas import VERSION, Models, Served, question
from fedrec_server.serving.store import ServedModel, newest_hint

PAGE = FilePath(__file__).parent / "page"
QUERY_PATH = "/v1/recommend"

_JSON = b"application/json"
_PROBLEM = "application/problem+json"
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class HttpApi:
    """All requests over one serving."""

    def __init__(self, serving: ServingContext, *, page: bool) -> None:
        self._serving = serving
        self._limits = serving.settings.limits
        self._app: ASGIApp = application(serving, page=page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            with self._serving.peers.enter(scope["client"][0] if scope["client"] else ""):
                if scope["path"] == QUERY_PATH and scope["method"] == "POST":
                    await self._query(scope, receive, send)
                else:
                    async with asyncio.timeout(self._limits.download_s):
                        await self._app(scope, receive, send)
        except _GoneError:
            return
        except TimeoutError:  # of a download: it is cut, which the length in its head tells
            raise ConnectionResetError from None
        except RefusedError as failure:
            await _problem(self._serving, failure)(scope, receive, send)

    async def _query(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = None
        try:
            body = await self._body(scope, receive)
            content = await self._answered(body)
        except _GoneError:
            raise
        except Exception as failure:
            answer = _problem(self._serving, failure, whole=body is not None)
            if answer.status_code == HTTP_STATUS[Code.BUSY]:
                # else callers that do not wait would take the time in which others are answered
                rest(scope, RETRY_AFTER_S[Code.BUSY])
            await answer(scope, receive, send)
            return
        head = [(b"content-type", _JSON), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": content})

    async def _answered(self, body: bytes) -> bytes:
        arrived_s = time.perf_counter()
        serving = self._serving
        serving.require_open()
        serving.endpoint.require_place()
        asked = question(body)
        model = serving.store.get(asked.version)
        query = Query(
            coefficients_of(asked.coefficients), min(asked.k, 2**62), _bits(model, asked.categories)
        )
        serving.endpoint.check(model, query)
        best = await serving.endpoint.answer(model, query)
        serving.counts.answered("http", time.perf_counter() - arrived_s)
        # a list of finite numbers is written in Python as in JSON
        items = f'"items": {best.items.tolist()}, "scores": {best.scores.tolist()}'
        return f'{{"version": "{asked.version}", {items}}}'.encode()

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._limits.body_bytes
        parts = list[bytes]()
        size = 0
        more = True
        if _announced(scope) > most:
            raise too_large(most)
        try:
            async with asyncio.timeout(self._limits.request_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    parts.append(message["body"])
                    size = size + len(message["body"])
                    more = message["more_body"]
                    if size > most:
                        raise too_large(most)
        except TimeoutError:
            raise too_slow() from None
        return parts[0] if len(parts) == 1 else b"".join(parts)


def application(serving: ServingContext, *, page: bool) -> Starlette:
    """Every route; the query itself never comes here."""
    routes: list[BaseRoute] = [
        Route(QUERY_PATH, _not_here, methods=["POST"]),
        *_models(serving),
        *_operations(serving),
        *(page_routes() if page else ()),
    ]
    app = Starlette(routes=routes)
    app.add_exception_handler(HTTPException, _not_found(serving))
    app.add_exception_handler(RefusedError, lambda _, failure: _problem(serving, failure))
    return app


async def _not_here(_: Request) -> Response:
    raise AssertionError("answered before it comes here")


def _models(serving: ServingContext) -> list[BaseRoute]:
    async def models(_: Request) -> Response:
        served = [
            _served(model, retiring, serving.verified.get(model.version, ""))
            for model, retiring in serving.store.all()
        ]
        told = Models(newest=serving.store.newest.version, models=served)
        return Response(told.model_dump_json(), media_type="application/json")

    async def bundle(request: Request) -> Response:
        version = request.path_params["version"]
        if not fullmatch(VERSION, version):
            return _problem(serving, malformed("not a version"), 422)
        serving.require_open()
        model = serving.store.get(version)
        head = {"etag": f'"{model.sha256}"', "cache-control": "public, max-age=31536000, immutable"}
        if head["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=head)
        head["content-length"] = str(model.size)
        return StreamingResponse(
            _pieces(serving, model), media_type="application/octet-stream", headers=head
        )

    return [Route("/v1/models", models), Route("/v1/models/{version}/bundle", bundle)]


def _operations(serving: ServingContext) -> list[BaseRoute]:
    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        return JSONResponse(
            {"status": "ready" if serving.ready else "draining"}, 200 if serving.ready else 503
        )

    async def schema(_: Request) -> Response:
        from fedrec_server.serving.openapi import document  # brings FastAPI

        return JSONResponse(document())

    paths = {
        "/health/live": live,
        "/health/ready": ready,
        "/openapi.json": schema,
    }
    return [Route(path, answer) for path, answer in paths.items()]


def page_routes() -> list[BaseRoute]:
    """The pages: of questions to a model, and of trainings."""

    async def index(_: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    async def training(_: Request) -> Response:
        return FileResponse(PAGE / "training.html", headers=_PAGE_HEADERS)

    return [
        Route("/", index),
        Route("/training", training),
        Mount("/page", _PageFiles(directory=PAGE)),
    ]


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_PAGE_HEADERS)
        return response


class _GoneError(Exception):
    """The caller hung up."""


def _served(model: ServedModel, retiring: bool, verified: str) -> Served:
    return Served(
        version=model.version,
        about=model.ranked.about,
        coefficients=model.coefficients,
        items=len(model.ranked.items),
        bundle_bytes=model.size,
        sha256=model.sha256,
        retiring=retiring,
        verified=verified,
    )


async def _pieces(serving: ServingContext, model: ServedModel) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    with serving.peers.enter_download():
        for start in range(0, model.size, PIECE_BYTES):
            data = await loop.run_in_executor(None, model.piece, start, PIECE_BYTES)
            serving.counts.sent(len(data))
            yield data


def _bits(model: ServedModel, names: list[str]) -> int:
    try:
        return sum({1 << model.categories[name] for name in names})
    except KeyError:
        raise refused(
            Code.UNKNOWN_CATEGORY,
            "a category that this version does not have",
            "/v1/models lists its categories.",
        ) from None


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            # of bytes: decimal digits of ASCII alone
            return int(value) if value.isdigit() and len(value) < 20 else 2**63
    return 0


def _problem(
    serving: ServingContext, failure: Exception, status: int | None = None, *, whole: bool = False
) -> Response:
    """whole: the request was read to its end, and its connection may carry another one."""
    refusal = serving.refusal(failure, "http")
    code = Code(refusal.code)
    content = {"code": refusal.code, "cause": refusal.cause, "remedy": refusal.remedy}
    if newest := newest_hint(serving.store, refusal):
        content["newest"] = newest
    headers = dict[str, str]()
    # a body that was not read to its end must not be taken for the next request
    if code in {Code.TOO_LARGE, Code.TOO_SLOW, Code.DRAINING} or (code is Code.BUSY and not whole):
        headers["connection"] = "close"
    if code in RETRY_AFTER_S:
        headers["retry-after"] = str(RETRY_AFTER_S[code])
    return JSONResponse(content, status or HTTP_STATUS[code], headers=headers, media_type=_PROBLEM)


def _not_found(serving: ServingContext) -> Any:
    async def told(_: Request, failure: HTTPException) -> Response:
        other = failure.status_code == 405
        cause = "this path takes another method" if other else "there is nothing at this path"
        nothing = refused(Code.NOT_FOUND, cause, "/openapi.json lists what there is.")
        return _problem(serving, nothing, failure.status_code)

    return told
