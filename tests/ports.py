"""Ports for programs that tests start, and what is read from them."""

import socket


def free_port(host: str) -> int:
    """A port that was free a moment ago, for a program that does not take 0.

    Whoever loses the race for it must try again."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def until_closed(open_line: socket.socket) -> bytes:
    """All that is still sent."""
    content = b""
    while part := open_line.recv(65_536):
        content += part
    return content
