"""Charts as files of their own, as SVG and CSV."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from xml.etree import ElementTree

import polars as pl

from fedrec.report import comparison, dots, page
from fedrec.report.content import BucketBars
from fedrec.report.figures import Chart
from fedrec.report.svg import LIGHT, SLOTS, chosen

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


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_a_chart_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "compare.svg"
    comparison.write(_compared(), "rmse", path)
    ElementTree.fromstring(path.read_bytes())
    assert "var(" not in path.read_text(), "converters know no CSS variables"
    assert (tmp_path / "compare.svg").read_text().count("<svg ") == 1


def test_numbers_of_runs_that_differ_in_their_seed_have_the_interval_that_the_table_shows() -> None:
    for frame in (_compared(), comparison.over_runs(_compared())):
        drawn = comparison.line_chart(frame, "rmse")
        assert drawn is not None
        chart = Chart.of(drawn, "comparison")
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
