"""Optional packages: the extra of fedrec that installs each, and the error where one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from fedrec.errors import SettingsError

EXTRAS: Mapping[str, Sequence[str]] = {
    "serve": (
        "fastapi",
        "google.protobuf",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httptools",
        "httpx",
        "prometheus_client",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
    "deploy": ("flwr",),
    "news": ("torch",),
    "plot": ("matplotlib",),
    "faiss": ("faiss",),
    "store": ("fsspec",),
    "cluster": ("ray",),
    "postgres": ("psycopg",),
    "telemetry": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "ray": ("ray",),
    "lenskit": ("lenskit",),
    "mlflow": ("mlflow",),
    "dpsgd": ("opacus",),
    "plm": ("transformers",),
    "bench": ("implicit",),
}
"""Modules by the extra that installs them; `deploy` and `ray` install those of `serve` as well."""

_INCLUDED = {
    "deploy": ("serve",),
    "cluster": ("store",),
    "ray": ("serve", "deploy"),
    "dpsgd": ("news",),
    "plm": ("news",),
    "bench": ("news", "dpsgd"),
}


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
