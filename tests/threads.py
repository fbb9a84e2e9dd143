"""Servers in threads of the test's own process, for as long as a context lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from tests.waiting import HANG_S

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(run: Callable[..., object], *arguments: Any, **named: Any) -> Iterator[Any]:
    """A process's main in a thread, `run(..., ready=, stop=)`: what it tells `ready`. Raises what it
    ends with."""
    told = Queue[Any]()
    stop = threading.Event()

    def work() -> None:
        try:
            run(*arguments, ready=told.put, stop=stop, **named)
        except BaseException as failure:
            told.put(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        first = told.get(timeout=HANG_S)
        if isinstance(first, BaseException):
            raise first
        yield first
    finally:
        stop.set()
        thread.join(HANG_S)
        assert not thread.is_alive()
    if not told.empty():
        raise told.get()


@contextmanager
def web(answer: Answer) -> Iterator[str]:
    """An HTTP server that answers what the test wants: its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            answer(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(HANG_S)


def saying(content: bytes, status: int = 200) -> Answer:
    """An answer of this content."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer
