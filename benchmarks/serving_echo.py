"""Bare servers that answer every query with the same bytes: uvicorn and grpc.aio in one process,
what the serving server would be without models, checks and limits.

    python -m benchmarks.serving_echo VERSION K      prints both addresses, as `fedrec serve` does
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.serving_load import RECOMMEND


@contextmanager
def echo(version: str, k: int) -> Iterator[tuple[str, str]]:
    """Address over gRPC and URL over HTTP of a process of bare servers."""
    program = [sys.executable, "-m", "benchmarks.serving_echo", version, str(k)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip(), process.stdout.readline().strip()
        finally:
            process.kill()


async def _serve(version: str, k: int) -> None:
    import grpc
    import uvicorn

    from fedrec.transport.serving_api import serving_pb2 as pb

    numbers = [1.25] * k
    reply = pb.RecommendReply(version=int(version, 16), items=range(k), scores=numbers)
    content = reply.SerializeToString()
    body = f'{{"version": "{version}", "items": {list(range(k))}, "scores": {numbers}}}'.encode()
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def recommend(_: bytes, __: Any) -> bytes:
        return content

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    server = grpc.aio.server()
    service, name = RECOMMEND[1:].split("/")
    handlers = {name: grpc.unary_unary_rpc_method_handler(recommend)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"127.0.0.1:{port}\nhttp://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    bare = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
    await uvicorn.Server(bare).serve([listening])


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], int(sys.argv[2])))
