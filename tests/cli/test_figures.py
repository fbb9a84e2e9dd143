"""`fedrec figures`: the charts of every kind of page as SVG and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from fedrec.auditing.command import Audit
from fedrec.auditing.finding import Finding
from fedrec.cli.main import guarded
from fedrec.privacy.guarantee import Guarantee
from fedrec.report import comparison, dots, page
from fedrec.report.content import BucketBars
from fedrec.report.figures import charts_of
from fedrec.report.svg import LIGHT, SLOTS, chosen
from tests.simulations.test_report import example

SAME = {"data": "d", "scenario": "s"}
PRIVATE = {**SAME, "delta": 1e-5, "unit": "user (add/remove)", "noise": "seeded", "private": True}
NONE = {**SAME, "epsilon": math.inf, "delta": None, "unit": None, "noise": None, "private": False}


def _compared() -> pl.DataFrame:
    ours = [
        {"run": f"r{seed}", "method": "default", "epsilon": e, **PRIVATE, "rmse": 0.9 + seed / 100}
        for e in (1.0, 5.0)
        for seed in (1, 3)
    ]
    return pl.DataFrame(
        [*ours, {"run": "r1", "method": "item mean", **NONE, "rmse": 1.0}], infer_schema_length=None
    )


def _audit() -> str:
    claim = Guarantee(5.0, 1e-5, "user", "add/remove")
    found = [
        Finding(name, "default", claim, at, by, 0.999)
        for name, at, by in (("ratio", 3.8, "gaussian"), ("nothing", math.nan, "none"))
    ]
    return Audit(tuple(found)).page("planted")  # type: ignore[arg-type]


PAGES = {
    "report": (
        lambda: page.render(example()),
        {"curve", "lists-curve", "buckets-0", "convergence"},
    ),
    "comparison": (lambda: comparison.page(_compared(), "rmse"), {"comparison"}),
    "seeds": (lambda: comparison.page(comparison.over_runs(_compared()), "rmse"), {"comparison"}),
    "audit": (_audit, {"claims"}),
}


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
def test_every_chart_of_a_page_is_written_in_every_format(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, names = PAGES[kind]
    (tmp_path / "report.html").write_text(made(), encoding="utf-8")
    assert guarded(["figures", str(tmp_path), "--json"]) == 0
    files = [Path(name) for name in json.loads(capsys.readouterr().out)]
    assert {file.name for file in files} == {
        f"{name}.{ending}" for name in names for ending in ("svg", "csv")
    }
    for file in files:
        assert file.parent == tmp_path / "figures"
        if file.suffix == ".svg":
            ElementTree.fromstring(file.read_bytes())
            assert "var(" not in file.read_text(), "converters know no CSS variables"
        if file.suffix == ".csv":
            assert len(_rows(file.read_text())) > 1


def test_numbers_of_runs_that_differ_in_their_seed_have_the_interval_that_the_table_shows(
    tmp_path: Path,
) -> None:
    for frame in (_compared(), comparison.over_runs(_compared())):
        path = tmp_path / "page.html"
        path.write_text(comparison.page(frame, "rmse"), encoding="utf-8")
        (chart,) = charts_of(path)
        half = comparison.over_runs(_compared())["rmse_half"][0]
        assert _rows(chart.numbers)[1:] == [
            ["default", "1.0", "0.92", str(half)],
            ["default", "5.0", "0.92", str(half)],
            ["item mean", "", "1.0", ""],
        ]


def test_a_method_has_one_colour_in_every_chart_and_the_page_has_that_colour() -> None:
    assert (
        chosen(["x", "default"])["default"]
        == chosen(["default", "x", "y"])["default"]
        == (1, False)
    )
    css = page.stylesheet()
    assert all(f"--c{n}: {colour};" in css for n, colour in enumerate(LIGHT, 1))
    slots = chosen([*SLOTS, "a", "b"])
    assert all(slots[name][0] == SLOTS[name] for name in SLOTS)
    bars = dots.bucket_dots(
        BucketBars("RMSE", {"non-private ALS": (1.0,), "default": (0.5,)}), name="b"
    )
    assert 'class="dot f2"' in bars
    assert 'class="dot f1"' in bars


def test_what_has_no_chart_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").write_text("<html></html>")
    assert guarded(["figures", str(tmp_path)]) == 6
    assert guarded(["figures", str(tmp_path / "none.html")]) == 6
    assert not (tmp_path / "figures").exists()
