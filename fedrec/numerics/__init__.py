"""Compiled numerics: inner loops, solves and draws over rows, and how many threads share them."""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from typing import Any, TypeVar

from fedrec.storage import posix_locks

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PATIENCE_S = 60.0
_PAUSE_S = 0.02
"""No function takes a minute to compile; a pause is short beside the tenths of a second that most
take."""


def compiled(*, inner: bool = False, **options: Any) -> Callable[[_Function], _Function]:
    """`numba.njit` that frees the interpreter's lock and is kept on disk. Of processes that need a
    function at the same time, one compiles it and the others load it.

    inner: only compiled code calls it; its ways in from Python and C, about a seventh of what
    compiling takes, are left out.
    """
    if inner:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    return lambda function: _Compiled(function, options)  # type: ignore[return-value]


class _Compiled:
    """A function that numba is loaded for when it is first called, or met by compiled code: many
    processes import one and never call it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        update_wrapper(self, function)

    @cached_property
    def _made(self) -> Any:
        from numba import njit
        from numba.core.compiler_lock import global_compiler_lock

        function = self._function
        made: Any = njit(nogil=True, cache=True, **self._options)(function)
        if made is not function:  # as where NUMBA_DISABLE_JIT is set
            compile_one = made.compile
            folder = Path(made.stats.cache_path)
            name = f"{function.__module__}.{function.__qualname__}"

            def load_or_compile(signature: Any) -> Any:
                # numba's own lock first: a thread that compiles asks for functions within functions
                with global_compiler_lock, _alone(folder, name):
                    return compile_one(signature)

            made.compile = load_or_compile
        return made

    @property
    def _numba_type_(self) -> Any:
        """What numba asks a value for that compiled code names."""
        return self._made._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self._made(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Hold the name among all processes that keep compiled functions in this folder; without it
    after a minute, as of a process that was stopped, and where no file can be locked."""
    posix = posix_locks()
    file = _lock_file(folder) if posix else None
    place = zlib.crc32(name.encode())
    end_s = time.monotonic() + _PATIENCE_S
    while file is not None and time.monotonic() < end_s:
        try:
            posix.lockf(file, posix.LOCK_EX | posix.LOCK_NB, 1, place)
            break
        except BlockingIOError:
            time.sleep(_PAUSE_S)  # a lock of the system has no time limit: it is tried again
        except OSError:
            break
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                posix.lockf(file, posix.LOCK_UN, 1, place)


@cache
def _lock_file(folder: Path) -> int | None:
    """Open for good: closing it would end every lock of this process."""
    try:
        return os.open(folder / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
