"""docs/figures.md: full results of `fedrec bench paper` that are kept in docs/results/figures, each
with its command, what the paper says, charts, and every number; and PrivateRec's, of the runs that
`fedrec bench news-paper` keeps.

A quick run, or one whose scenario was changed, shows no result and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.report import charts
from fedrec.report.standalone import standalone
from fedrec.storage import read_json, write_bytes
from fedrec_simulations.experiments.papers import privaterec
from fedrec_simulations.experiments.papers.figures import paper
from fedrec_simulations.experiments.papers.page import (
    charts_of,
    number,
    seeds_in_words,
    title_of,
    units_of,
    words,
)
from fedrec_simulations.experiments.papers.starts import how_chosen
from fedrec_simulations.experiments.rows import Row, table

FOLDER = "figures"
PAGE = "figures.md"
_NEWS = "news-paper-ml1m"
_MOST_COLUMNS = 12
"""Of a table whose series share no column."""
INTRODUCTION = """Made by `fedrec docs docs/reference.md --results docs/results` from the files in
docs/results/figures, which the commands below write; PrivateRec's from docs/results. Every one is a
full run: all seeds, points and trainings of its scenario. [The study](study.md) lists all figures
and tables of the papers, and judges their claims. The papers' data are not at hand, so that a
re-made figure can show an order and not a value. ± is half of the 95% interval over seeds
(Student's t). Lines named *our default* have item biases and users' own means besides, which no
paper here has: they judge no claim. Lines of one figure did not all have the same search for their
settings: an order on this page is no verdict. An ε of PrivateRec is per click, of all others per
user: the two do not compare. Seconds are of the processor, of all threads together, on a machine
that did other work too; the papers' are of the clock, on other machines."""


def figures(results: Path) -> dict[str, Sequence[Row]]:
    """Rows of the figures that are kept, by name, as "ada-dpals/figure1".

    Raises RunError as `write` does."""
    return {f"{name}/{figure}": content["rows"] for name, figure, content in _kept(results)}


def anchor(name: str) -> str:
    """Of a figure's section on the page, "ada-dpals/figure1"."""
    return f"{PAGE}#{'-'.join(_title(*name.split('/')).lower().replace(',', '').split())}"


def write(target: Path, results: Path) -> None:
    """Write the page, and img/figure-*.svg beside it; nothing where no figure is kept.

    Raises RunError on a damaged file, and on one that is not of a full run."""
    sections = [_section(target, name, figure, content) for name, figure, content in _kept(results)]
    if sections:
        parts = ["# Figures of the papers, made again", INTRODUCTION, *sections]
        write_bytes(target, ("\n\n".join(parts) + "\n").encode())


def _kept(results: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path in sorted((results / FOLDER).glob("*.json")):
        result = read_json(path)
        if result["quick"] or result["overrides"]:
            raise RunError(
                f"{path} is of a quick run, or of a scenario that was changed",
                f"Make it again: fedrec bench paper {result['paper']}/FIGURE --output {path}.",
            )
        for figure, content in result["figures"].items():
            yield result["paper"], figure, content
    news = results / f"{_NEWS}.json"
    for figure, content in privaterec.of_news_paper(read_json(news)) if news.exists() else ():
        yield "privaterec", figure, content


def _section(target: Path, name: str, figure: str, content: Mapping[str, Any]) -> str:
    kept, rows = f"{name}-{figure}", content["rows"]
    given = "" if figure in paper(name).no_data else " --data PATH/ml-1m"
    command = (
        f"fedrec bench news-paper{given} --seeds 3 --output docs/results/{_NEWS}.json"
        if name == "privaterec"
        else f"fedrec bench paper {name}/{figure}{given} --output docs/results/{FOLDER}/{kept}.json"
    )
    pictures = [
        _picture(target, f"figure-{kept}-{at}", chart)
        for at, chart in enumerate(charts_of(content), 1)
    ]
    metrics = dict.fromkeys(row["metric"] for row in rows)
    tables = [
        _table(metric, content["x"], [row for row in rows if row["metric"] == metric])
        for metric in metrics
    ]
    return "\n\n".join(
        [
            f"## {_title(name, figure)}",
            f"{content['heading']} {content['data']['words']}",
            f"```sh\n{command}\n```",
            f"{seeds_in_words(rows, content['each_seed'])} Settings: `{content['scenario']}`."
            f"{_chosen(content['scenario'])} "
            f"{_code(content)}{_guarantees(rows)}",
            _published(content["published"]),
            *pictures,
            *tables,
        ]
    )


def _chosen(scenario: str) -> str:
    said = how_chosen(Path(scenario).stem)
    return f" {said}" if said else ""


def _code(content: Mapping[str, Any]) -> str:
    """By which code the rows were made, and what a reader must know of how they were made."""
    code = content["code"]
    made = f"Code with digest {code}." if code else "Code from before a digest of it was kept."
    return f"{made} **Note.** {content['note']}" if content.get("note") else made


def _title(name: str, figure: str) -> str:
    return f"{paper(name).name}, {title_of(figure)}"


def _guarantees(rows: Sequence[Row]) -> str:
    """What an epsilon of the figure is of, and which series have a guarantee that is not proved."""
    units = "; ".join(sorted(units_of(rows)))
    unproved = dict.fromkeys(
        f"{row['series']}" for row in rows if "NOT ESTABLISHED" in row.get("guarantee", "")
    )
    return (f" ε is {units}." if units else "") + (
        f" **Not established**: the guarantee of {'; '.join(unproved)}." if unproved else ""
    )


def _published(said: Mapping[str, Any]) -> str:
    found = [f"- {key}: {words(value)}" for key, value in said.items() if key != "how"]
    if not found:
        return "Nothing was published of it as text."
    return "\n".join([f"What the paper says, {said.get('how', '')}:", "", *found])


def _picture(target: Path, name: str, chart: Any) -> str:
    drawn = str(charts.lines_against(chart, name=name))
    write_bytes(target.parent / "img" / f"{name}.svg", standalone(drawn).encode())
    return f"![{chart.title}](img/{name}.svg)"


def _table(metric: str, x: str, rows: Sequence[Row]) -> str:
    """A line for each series, a column for each x; lists of neighbours in a table of their own.

    Where no two series share an x, as where x is a time, each line lists its own."""
    places = list(dict.fromkeys(row["x"] for row in rows))
    if len(places) == len(rows) > _MOST_COLUMNS:
        return _own_places(metric, x, rows)
    cells = {(row["series"], row["x"]): row for row in rows}
    lines = [
        [f"{series}", *(_cell(cells.get((series, place))) for place in places)]
        for series in dict.fromkeys(row["series"] for row in rows)
    ]
    axis = "bucket" if "in bucket" in metric else x.partition(",")[0].partition(" of the ")[0]
    listed = [
        [f"{row['series']}", words(row["x"]), "; ".join(row["list"])]
        for row in rows
        if row.get("list")
    ]
    nearest = [table(("series", axis, "nearest"), listed, text=True)] if listed else []
    head = (f"{metric} by {axis}", *(words(place) for place in places))
    return "\n\n".join([table(head, lines), *nearest])


def _own_places(metric: str, x: str, rows: Sequence[Row]) -> str:
    points = {
        series: "; ".join(
            f"{row['x']:.4g}: {_cell(row)}" for row in rows if row["series"] == series
        )
        for series in dict.fromkeys(f"{row['series']}" for row in rows)
    }
    return table(("series", f"{x}: {metric}"), [list(pair) for pair in points.items()], text=True)


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    half = f" ± {(row['interval'][1] - row['interval'][0]) / 2:.4f}" if "interval" in row else ""
    return f"{number(row['value'])}{half}"
