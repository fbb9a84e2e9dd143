"""Packages of extras that are not installed: what fails for want of one is skipped, and says so.
With FEDREC_EVERY_EXTRA set, such a skip is a failure: `make extras`.

Tests are written for an environment that has them all; those on another Python or without Flower
run what can be run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from importlib.util import find_spec

import pytest

OPTIONAL = (
    *("torch", "transformers", "flwr", "httpx", "httpx2", "ray", "fsspec", "psycopg", "lenskit"),
    *("opentelemetry", "opacus", "implicit", "faiss", "pandas", "sklearn", "griffelib"),
    *("grpc_tools", "nbclient", "ipykernel", "playwright", "yaml", "kubernetes_validate"),
    *("websockets", "fedrec_research"),
)
MISSING = [name for name in OPTIONAL if find_spec(name) is None]
_WANTED = re.compile(
    rf"(?:No module named '|needs the package |No package metadata was found for )({'|'.join(map(re.escape, MISSING)) or '(?!)'})\b"
)
_FOR_A_PACKAGE = re.compile(r"could not import|not installed|fedrec\[")


def _judged(report: pytest.CollectReport | pytest.TestReport, where: str) -> None:
    if report.failed and (wanted := _WANTED.search(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (where, 0, f"Skipped: {wanted[1]} is not installed")
    if report.skipped and os.environ.get("FEDREC_EVERY_EXTRA"):
        reason = str(report.longrepr)
        if _FOR_A_PACKAGE.search(reason) and "apt-get" not in reason:
            report.outcome = "failed"
            report.longrepr = f"{where} is skipped for a package: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judged(report, collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judged(report, item.nodeid)
    return report
