"""Errors, as a tree; every leaf knows its cause, its remedy and the exit code of a command.

    FedRecError                 1
      SettingsError             2   a scenario key or a flag is not what it must be
        UnknownArgumentError    2   a function has no such argument; also a TypeError
        UnknownNameError        2   an object has no such name; also an AttributeError
      DataError                 3   a file is missing, empty, malformed or inconsistent
        MalformedRowError       3   ... at a known file and line
        LeakageError            4   a split shows training what it must predict
      PrivacyError              5   a guarantee would be passed, mixed or left uncalibrated
        UnitMismatchError       5   guarantees of different units or neighbours were combined
        BudgetExceededError     5   a ledger or a limit refuses
      RunError                  6   a run folder cannot be used, continued or read
      ProtocolError             7   another party could not be reached, or broke the protocol
        RefusedError            7   ... refused, with one of the codes of
                                `federation.protocol.Refusal`
        UnreachableError        7   ... did not answer in time; the same request may be sent again

A bad argument to a function raises ValueError with the value in its message; these are for people.

Optional packages: the extra of fedrec that installs each, and the error where one is missing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXTRAS: Mapping[str, Sequence[str]] = {
    "serve": (
        "fastapi",
        "google.protobuf",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httptools",
        "httpx2",
        "prometheus_client",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
    "deploy": (),
    "flower": ("flwr",),
    "news": ("torch",),
    "store": ("fsspec",),
    "cluster": ("ray",),
    "postgres": ("psycopg",),
    "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": ("ray",),
    "lenskit": ("lenskit",),
    "plm": ("transformers",),
}
"""Modules by the extra that installs them; `deploy`, `flower` and `ray` install those of `serve`
as well."""
_INCLUDED = {
    "deploy": ("serve",),
    "flower": ("serve",),
    "cluster": ("store",),
    "ray": ("serve", "flower"),
    "plm": ("news",),
}


class FedRecError(Exception):
    """One line of cause, one line of remedy.

    Args:
        cause: What happened, in one line.
        remedy: What to do, in one line.

    >>> import fedrec
    >>> try:
    ...     fedrec.ItemBias(epsilon=-1).scenario()
    ... except fedrec.FedRecError as failure:
    ...     print(failure.exit_code, type(failure).__name__)
    2 SettingsError
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.add_note(f"remedy: {remedy}")  # a traceback in a notebook shows it below the cause

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it crosses from a worker process with both its lines."""
        return type(self), (self.cause, self.remedy)


class SettingsError(FedRecError):
    """A scenario key or a flag is not what it must be.

    >>> import fedrec
    >>> try:
    ...     fedrec.MatrixFactorization(settings={"model.dimensions": 8}).scenario()
    ... except fedrec.SettingsError as failure:
    ...     print(failure)
    MatrixFactorization: there is no key model.dimensions, found 8
    """

    exit_code = 2


class UnknownArgumentError(SettingsError, TypeError):
    """A function has no such argument; the remedy says what to write."""


class UnknownNameError(SettingsError, AttributeError):
    """An object has no such name; the remedy says what to write."""


class DataError(FedRecError):
    """A file is missing, empty, malformed or inconsistent.

    >>> import fedrec
    >>> try:
    ...     fedrec.Dataset.from_frame({"user": [1, 2]})
    ... except fedrec.DataError as failure:
    ...     print(failure)
    the frame has no column 'item'
    """

    exit_code = 3


class MalformedRowError(DataError):
    """A row that cannot be read: names the file, the line, what was expected and what was found."""

    def __init__(
        self,
        path: Path,
        line: int,
        expected: str,
        found: str,
        remedy: str = "Correct the line, or drop it.",
    ) -> None:
        super().__init__(f"{path}, line {line}: expected {expected}, found {found!r}", remedy)
        self.path = path
        self.line = line
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its own parts."""
        return type(self), (self.path, self.line, self.expected, self.found, self.remedy)


class LeakageError(DataError):
    """A split shows training what it must predict."""

    exit_code = 4


class PrivacyError(FedRecError):
    """A guarantee would be passed, mixed or left uncalibrated.

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> try:
    ...     fedrec.Popularity(delta=0.5).fit(data)
    ... except fedrec.PrivacyError as failure:
    ...     print(failure)
    delta 0.5 promises nothing among 300 users: it is not below 1/sqrt(300) = 0.058
    """

    exit_code = 5


class UnitMismatchError(PrivacyError):
    """Guarantees of different units or neighbours were combined."""


class BudgetExceededError(PrivacyError):
    """A ledger or a limit refuses."""


class RunError(FedRecError):
    """A run folder cannot be used, continued or read.

    >>> import fedrec
    >>> try:
    ...     fedrec.ItemBias().guarantee
    ... except fedrec.RunError as failure:
    ...     print(failure)
    this ItemBias is not trained
    """

    exit_code = 6


class ProtocolError(FedRecError):
    """Another party could not be reached, or broke the protocol."""

    exit_code = 7


class RefusedError(ProtocolError):
    """Another party refused; `code` is stable and the same over every transport."""

    def __init__(self, code: str, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its code."""
        return type(self), (self.code, self.cause, self.remedy)


class UnreachableError(ProtocolError):
    """Another party did not answer in time; the same request may be sent again."""


_WEIGHTS = frozenset(
    {
        *("weight", "weights", "sample_weight", "sample_weights", "plays", "play_counts", "counts"),
        *("decay", "time_decay", "half_life"),
    }
)


class DataWarning(UserWarning):
    """Data that can be used, and is probably not what was meant; `warnings.simplefilter` decides
    what becomes of it.

    >>> import fedrec
    >>> issubclass(fedrec.UnknownIdsWarning, fedrec.DataWarning)
    True
    """


class UnknownIdsWarning(DataWarning):
    """Part of the given ids are not in the model.

    >>> import fedrec, warnings
    >>> model = fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.planted(kind="clicks"))
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     lists = model.recommend(history=["3", "no such item"], k=1)
    >>> print(said[0].message)
    1 of the 2 ids of the history are not in the model: it has no 'no such item', and ids such as \
'1'; they are left out
    """


class UnusedColumnsWarning(DataWarning):
    """A column that looks like a rating, a thumb or a count is not used.

    >>> import fedrec, warnings
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     data = fedrec.Dataset.from_frame({"user": [1, 2], "item": [7, 8], "thumb": [0, 1]})
    >>> print(str(said[0].message).partition(":")[0])
    the column 'thumb' is not used, and every row counts as a click
    """


class GenericListWarning(DataWarning):
    """A list is everybody's: the history is empty, or noise hides the clicks of a private answer
    that is about to be paid for."""


def of_weights(word: str) -> str:
    """The remedy where somebody names weights of clicks, which no source and no recipe has; empty
    for other words. word: a key, a flag or a column's role."""
    last = word.rpartition(".")[2].strip("-").replace("-", "_")
    return (
        "A click counts once: weights by plays made lists no better. Say from how many plays on a "
        "row is a click: data.click_threshold (--clicks-from), with the column as data.columns."
        "rating (--rating). How clicks age is learned from their times. "
        if last in _WEIGHTS
        else ""
    )


def warn(said: DataWarning) -> None:
    """Warn at the line of the caller of fedrec, not at one of ours."""
    frame = inspect.currentframe()
    depth = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fedrec."):
        frame = frame.f_back
        depth += 1
    warnings.warn(said, stacklevel=depth)


def extra_of(module: str) -> str | None:
    """The extra that installs a module or the package that it lies in; None for a module that no
    extra installs."""
    top = module.partition(".")[0]
    return next(
        (
            extra
            for extra, modules in EXTRAS.items()
            if any(name.partition(".")[0] == top for name in modules)
        ),
        None,
    )


def install(extra: str) -> str:
    """The remedy: the command that installs an extra."""
    return f"Install it: pip install 'fedrec[{extra}]'."


def require(extra: str, what: str) -> None:
    """Raises SettingsError where a module of an extra, or of an extra that it includes, is not
    installed. what: what needs it."""
    wanted = [module for name in (*_INCLUDED.get(extra, ()), extra) for module in EXTRAS[name]]
    # there is no uvloop for Windows
    missing = next((module for module in wanted if module != "uvloop" and not _found(module)), None)
    if missing is not None:
        raise SettingsError(
            f"{what} needs the package {missing}, which is not installed", install(extra)
        )


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module would lie in is missing
        return False
