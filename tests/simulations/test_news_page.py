"""The table of docs/news.md holds the figures of kept rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ROWS = {
    "`central-encoder`, `plm-nr`": "central-encoder, plm-nr, epsilon 5",
    "`central-encoder`, `nrms`": "central-encoder, nrms, epsilon 5",
    "`central`": "central, epsilon 5",
    "`additive`": "additive, epsilon 5",
}
SERVED = ("inf", "10.0", "5.0", "1.0")


def cells(line: str) -> list[str]:
    """Of the first line of the page's tables that begins so."""
    found = [
        row for row in (DOCS / "news.md").read_text().splitlines() if row.startswith(f"| {line} |")
    ]
    return [cell.strip() for cell in found[-1].strip("|").split("|")][1:]


@pytest.mark.parametrize(("line", "method"), ROWS.items())
def test_a_line_is_the_mean_of_three_kept_seeds(line: str, method: str) -> None:
    kept = json.loads((DOCS.parent / "research" / "results" / "news-ml1m.json").read_text())[
        "methods"
    ][method]
    *auc, swap, sent = cells(line)
    assert kept["seeds"] == 3
    expected = [100 * kept["served"][epsilon]["auc"]["mean"] for epsilon in SERVED]
    expected.append(100 * kept["history_swap_auc"])
    # half of the last digit that is printed
    assert [float(cell) for cell in (*auc, swap)] == pytest.approx(expected, abs=0.0501)
    assert float(sent.replace(",", "")) == pytest.approx(kept["bytes_up_per_client"], abs=0.5)


def test_untrained_directions_are_those_of_the_same_rows() -> None:
    kept = json.loads((DOCS.parent / "research" / "results" / "news-ml1m.json").read_text())[
        "methods"
    ]
    found = kept["central-encoder, plm-nr, epsilon 5"]["baselines"]
    names = ["", *(f", served at {e}" for e in ("10", "5", "1"))]
    expected = [100 * found[f"untrained public directions{name}"]["auc"]["mean"] for name in names]
    said = [float(cell) for cell in cells("public directions, untrained")[:4]]
    assert said == pytest.approx(expected, abs=0.0501)


def test_the_first_words_say_what_local_is_worth_with_either_noise() -> None:
    kept = json.loads((DOCS.parent / "research" / "results" / "news-ml1m.json").read_text())[
        "methods"
    ]
    found = [kept[f"local, plm-nr, {noise}epsilon 10"] for noise in ("", "laplace, ")]
    assert [each["seeds"] for each in found] == [3, 3]
    gaussian, laplace = (f"{100 * each['served']['inf']['auc']['mean']:.1f}" for each in found)
    page = (DOCS / "news.md").read_text()
    first = " ".join(page.partition("**Which variant to take.**")[2].partition("\n\n")[0].split())
    assert f"an AUC of {gaussian} with Gaussian noise and {laplace} with Laplace's" in first
    names = ("additive, epsilon 5", "central-encoder, plm-nr, epsilon 5")
    ours = [f"{100 * kept[name]['served']['inf']['auc']['mean']:.1f}" for name in names]
    assert f"`additive` ({ours[0]} at" in first
    assert f"`central-encoder` ({ours[1]} at" in first
