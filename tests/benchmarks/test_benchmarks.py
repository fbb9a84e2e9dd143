"""Every benchmark runs at its smallest size and gives rows with the columns that its page shows;
what it compares is equal. The page is made of the kept results."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.measuring import compared, fastest
from fedrec.storage import read_json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MS = ("form", "ms", "over_ours")
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "first-touch": (("what", "first_s", "second_s"),),
    "small-processes": (("process", "processor_s", "peak_mb"),),
    "kernels": (
        ("d", *MS, "gflops", "largest_difference"),
        ("d", "systems", *MS),
        ("draws", *MS, "million_a_second"),
    ),
    "als": (("form", "d", "seconds", "over_ours", "largest_difference"),),
    "sgld": (
        ("d", "form", "million_a_second", "wall_time_over_ours", "processor_time_over_ours"),
        ("d", "form", "passes", "seconds", "rmse", "rmse_of_the_truth"),
        ("form", "d", "million_a_second", "million_a_second_and_core"),
    ),
    "encoder": (
        ("product", "form", "ms"),
        ("form", "ms", "over_its_products"),
        ("batch", "s_an_epoch", "over_an_epoch_of_SSP2"),
    ),
    "sums": (("engine", "seconds", "same_sums", "million_events_a_second", "over_ours"),),
    "readers": (
        ("format", "rows", "seconds", "processor_s", "peak_mb"),
        ("format", "fedrec_processor_s", "polars_processor_s", "over_polars"),
    ),
    "scale": (
        ("people", "parts", "mapped_in_a_pass", "core_s_of_all_parts", "peak_mb"),
        ("task", "passes", "parts", "core_s_a_part", "of_which_planting"),
    ),
    "cluster": (("data", "nodes", "seconds", "workers", "happened", "same_model"),),
    "processes": (("runtime", "over_loopback", "s_a_round", "s_to_start", "same_bytes"),),
    "runtimes": (("scenario", "runtime", "same_bytes", "same", "over_loopback"),),
    "intake": (
        ("two_clients_send", "reports", "reports_a_second", "aggregator_µs_a_report"),
        ("d", "numbers_released", "report_s", "release_s", "fetch_s", "aggregator_peak_mb"),
    ),
    "enrolment": (
        ("users", "s_to_fill", "s_to_open", "bytes_a_user"),
        ("users_a_call", "processor_µs", "wall_µs", "processor_µs_without_sync"),
    ),
    "nodes": (
        ("process", "mb", "share_of_a_core", "peak_mb"),
        ("s_before", "s_after", "nodes_that_waited"),
    ),
    "device": (("when", "client", "worker", "together"),),
    "light-devices": (
        ("step", "download_bytes", "report_bytes", "same_bytes", "seconds", "peak_mb"),
        ("devices", "took_part", "counted", "same_release", "devices_a_second"),
    ),
    "sharing": (
        ("clients", "upload_bytes", "client", "expand", "check", "add"),
        ("stage", "users_a_second", "µs_a_user_at_place_1", "most_peak_mb"),
    ),
    "serving": (
        ("items_x_width", "protocol", "callers", "queries_a_second", "p50_ms", "p99_ms"),
        ("items_x_width", "protocol", "callers", "over_faiss_flat", "p50_over_a_pass"),
        ("items_x_width", "questions", "equal_lists"),
        ("items_x_width", "item_vectors", "idle", "peak", "peak_over_item_vectors"),
    ),
    "catalogues": (
        ("items", "batch", "form", "ms_a_query", "over_the_8-bit_pass", "recall"),
        ("items_x_width", "codes_over_vectors", "questions", "equal_lists"),
    ),
    "serving-endurance": (("passed", "swaps", "grown_mb"), ("what", "count"), ("code", "count")),
    "serving-overload": (("times_capacity", "goodput_over_capacity", "refused", "p99_ms"),),
    "torch-modules": (("people", "epsilon", "method", "ndcg@20", "processor_seconds"),),
}
"""Of each table, in their order: some of its columns."""
NEEDS = {
    "kernels": "torch",
    "als": "implicit",
    "encoder": "opacus",
    "cluster": "ray",
    "catalogues": "faiss",
    "serving": "faiss",
}
# what a benchmark measures is tested elsewhere; these are quick, so that each check tries the harness
FIRST = {"als", "sgld", "sums", "light-devices", "enrolment", "catalogues"}
PROCESSES = {"processes", "nodes", "device", "cluster", "small-processes"}


def test_every_benchmark_is_named_here_and_says_what_it_measures() -> None:
    assert list(COLUMNS) == list(results.BENCHMARKS)
    for name in COLUMNS:
        title, rest = results.words_of(name)
        assert title
        assert rest


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.slow,
                *([pytest.mark.processes] if name in PROCESSES else []),
                *([pytest.mark.rare] if name not in FIRST else []),
            ],
        )
        for name in COLUMNS
    ],
)
def test_a_benchmark_gives_rows_with_its_columns_and_what_it_compares_is_equal(name: str) -> None:
    if find_spec(NEEDS.get(name, "fedrec")) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    found: results.Tables = import_module(f"benchmarks.{name.replace('-', '_')}").run(quick=True)
    kept = results.KEPT / f"{name}.json"
    for columns, (caption, rows) in zip(COLUMNS[name], found.items(), strict=True):
        assert rows, caption
        assert {tuple(row) for row in rows} == {tuple(rows[0])}, caption
        assert set(columns) <= set(rows[0]), caption
        for row in rows:
            assert results.table([row])
            same = {key: cell for key, cell in row.items() if key.startswith(("same", "passed"))}
            assert all(same.values()), row
            assert (
                row.get("largest_difference") is None
                or name != "kernels"
                or (row["largest_difference"] < 1e-5)
            )
    if kept.exists():  # a table of the page has the columns of today's
        columns_of = {tuple(rows[0]) for rows in found.values()}
        assert columns_of & {tuple(rows[0]) for rows in read_json(kept)["tables"].values()}
    checks = {
        "als": lambda by: by[0][1]["largest_difference"] < 1e-4,
        "sgld": lambda by: by[1][-1]["rmse"] < by[1][0]["rmse"],
        "intake": lambda by: [row["reports"] for row in by[0]] == [1_024, 128],
        "light-devices": lambda by: by[1][0]["took_part"] == by[1][0]["counted"] == 40,
        "sharing": lambda by: by[0][0]["upload_bytes"] == 8 * (200 + 8 * 9) + 5 * 32 + 3 * 128,
        "serving-endurance": lambda by: by[0][0]["swaps"] >= 4 and len(by[1]) == 8,
        "serving-overload": lambda by: all(
            row["server_lives"] and row["refused"] == row["refused_with_retry_after"]
            for row in by[0]
        ),
    }
    assert name not in checks or checks[name](list(found.values()))  # type: ignore[no-untyped-call]


def test_the_page_is_what_the_kept_results_make_and_names_no_place_of_a_machine() -> None:
    page = (results.PLACE / "README.md").read_text()
    assert page == results.page()
    kept = sorted(results.KEPT.glob("*.json"))
    assert {path.stem for path in kept} <= set(results.BENCHMARKS)
    assert not [path.name for path in kept if '": "/' in path.read_text()]


def test_cells_and_columns_of_a_table() -> None:
    rows: list[results.Row] = [
        {"form": "ours", "over_ours": 1.0, "million": 12_345.6, "same": True, "why": None},
        {"form": "theirs", "over_ours": 0.51234, "million": 12.345, "same": False, "why": "nan"},
    ]
    assert results.table(rows).splitlines() == [
        "| form | over ours | million | same | why |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| ours | 1.00 | 12,346 | yes | – |",
        "| theirs | 0.5123 | 12.3 | no | – |",
    ]


def test_the_stopwatch_keeps_the_fastest_turn_of_each_form() -> None:
    calls: list[str] = []
    forms: dict[str, Any] = {name: lambda name=name: calls.append(name) for name in "ab"}
    took = fastest(forms, turns=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert all(0 <= each.wall_s < 1 for each in took.values())
    assert [row["form"] for row in compared(took, "a", d=3)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(
            "kernels --seconds 3 --quick", "--seconds is not for kernels", marks=pytest.mark.slow
        ),
        ("kernls", "invalid choice"),
        ("", "--list"),
    ],
)
def test_a_wrong_line_is_refused(line: str, said: str) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2
    assert said in done.stderr
