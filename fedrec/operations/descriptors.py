"""Limit of files and connections that this process may have open at once."""

from __future__ import annotations

import sys
from contextlib import suppress

from fedrec.errors import RunError

LEAST = 64
"""gRPC aborts a process that may open fewer than 24, whatever it was about to say."""
MOST = 65_536
"""More connections than a party serves, and few enough for what walks over all that are allowed."""


def raise_limit() -> None:
    """To what the system allows this process, and at most to `MOST`. Services begin with 1,024, for
    programs that call `select`: too few for a thousand connections, and nothing here calls it.

    Raises RunError where the system allows fewer than `LEAST`."""
    if sys.platform == "win32":
        return
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if most == resource.RLIM_INFINITY else min(MOST, most)
    if wanted < LEAST:
        raise RunError(
            f"this process may open {wanted} files, and a party needs {LEAST}",
            "Allow more: ulimit -n 1024, or LimitNOFILE= of the unit.",
        )
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
