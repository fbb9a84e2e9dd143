"""A child that does not outlive its parent: `python -m fedrec.operations.parent_death <parent's
pid> <most bytes> <command> ...`.

After kill -9 of the parent nobody is left to end its children, so the kernel is asked to. The
request belongs to the process that makes it and survives `exec`; hence this small program between
the parent and the command. Where the kernel cannot (it is Linux's), the command simply runs.
Imports nothing but the standard library, to start at once.

The kernel means the thread that started the child: it must live as long as the child shall.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1  # of Linux' sys/prctl.h


def command(program: list[str], *, max_bytes: int = 0) -> list[str]:
    """The command line that runs `program` as a child of this process, in at most `max_bytes` of
    memory of its own; 0: as much as this."""
    return [
        sys.executable,
        "-m",
        "fedrec.operations.parent_death",
        str(os.getpid()),
        str(max_bytes),
        *program,
    ]


def ended(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """The exit status of a child that is asked to end, and made to after `grace_s`."""
    if child.poll() is None:
        child.terminate()
        try:
            return child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def main(arguments: list[str]) -> None:
    """Becomes the command; returns only by ending the process where the parent is gone already."""
    parent = int(arguments[0])
    max_bytes = int(arguments[1])
    program = arguments[2:]
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
    if max_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
