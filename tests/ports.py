"""Ports for programs that tests start."""

import socket


def free_port(host: str) -> int:
    """A port that was free a moment ago, for a program that does not take 0.

    Whoever loses the race for it must try again."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
