"""research/docs/figures.md: full results of `fedrec research figures` that are kept in
research/results/figures, each with its command, what the paper says, charts, and every number; and
PrivateRec's, of the runs that `fedrec research measure news-paper` keeps.

A quick run, or one whose scenario was changed, shows no result and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.report import charts
from fedrec.report.figures import standalone
from fedrec.storage import read_json, write_bytes
from fedrec_research import drawing
from fedrec_research.papers import privaterec
from fedrec_research.papers.charts import by_metric, charts_of, units_of
from fedrec_research.papers.figures import paper
from fedrec_research.papers.starts import how_chosen
from fedrec_research.trials import Row

FOLDER = "figures"
PAGE = "figures.md"
_NEWS = "news-paper-ml1m"
_MOST_COLUMNS = 12
"""Of a table whose series share no column."""


def figures(results: Path) -> dict[str, Sequence[Row]]:
    """Rows of the figures that are kept, by name, as "ada-dpals/figure1".

    Raises RunError as `write` does."""
    return {f"{name}/{figure}": content["rows"] for name, figure, content in _kept(results)}


def anchor(name: str) -> str:
    """Return the link to the section on the page of a figure named like "ada-dpals/figure1"."""
    return f"{PAGE}#{'-'.join(_title(*name.split('/')).lower().replace(',', '').split())}"


def write(target: Path, results: Path) -> None:
    """Write the page, and img/figure-*.svg beside it; nothing where no figure is kept.

    Raises RunError on a damaged file, and on one that is not of a full run."""
    sections = [_section(target, name, figure, content) for name, figure, content in _kept(results)]
    if sections:
        drawing.write(target, "figures", figures=sections)


def _kept(results: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path in sorted((results / FOLDER).glob("*.json")):
        result = read_json(path)
        if result["quick"] or result["overrides"]:
            raise RunError(
                f"{path} is of a quick run, or of a scenario that was changed",
                f"Make it again: fedrec research figures {result['paper']}/FIGURE --output {path}.",
            )
        for figure, content in result["figures"].items():
            yield result["paper"], figure, content
    news = results / f"{_NEWS}.json"
    for figure, content in privaterec.of_news_paper(read_json(news)) if news.exists() else ():
        yield "privaterec", figure, content


def _section(target: Path, name: str, figure: str, content: Mapping[str, Any]) -> Row:
    rows = content["rows"]
    scenario = Path(content["scenario"])
    pictures = [
        (chart.title, _picture(target, f"figure-{name}-{figure}-{at}", chart))
        for at, chart in enumerate(charts_of(content), 1)
    ]
    said = dict(content["published"])
    unproved = [f"{r['series']}" for r in rows if "NOT ESTABLISHED" in r.get("guarantee", "")]
    return {
        "title": _title(name, figure),
        "heading": content["heading"],
        "data": content["data"],
        "command": _command(name, figure),
        "seeds": max((tuple(row.get("seeds", ())) for row in rows), key=len, default=()),
        "each_seed": content["each_seed"],
        "scenario": f"research/scenarios/{scenario.name}",
        "chosen": how_chosen(scenario.stem),
        "code": content["code"],
        "note": content.get("note", ""),
        "units": sorted(units_of(rows)),
        "unproved": list(dict.fromkeys(unproved)),
        "how": said.pop("how", ""),
        "said": said,
        "pictures": pictures,
        "x": content["x"],
        "tables": [_table(metric, content["x"], some) for metric, some in by_metric(rows).items()],
    }


def _command(name: str, figure: str) -> str:
    what = f"figures {name}/{figure}"
    end = f"--output research/results/{FOLDER}/{name}-{figure}.json"
    if name == "privaterec":
        what = "measure news-paper"
        end = f"--seeds 3 --output research/results/{_NEWS}.json"
    given = "" if figure in paper(name).no_data else " --data PATH/ml-1m"
    return f"fedrec research {what}{given} {end}"


def _title(name: str, figure: str) -> str:
    """ "DP-CMF, Figure 4b" of dp-cmf and figure4b."""
    return f"{paper(name).name}, {re.sub(r'(?<=[a-z])(?=[0-9])', ' ', figure).capitalize()}"


def _picture(target: Path, name: str, chart: Any) -> str:
    drawn = standalone(str(charts.lines_against(chart, name=name)))
    write_bytes(target.parent / "img" / f"{name}.svg", drawn.encode())
    return name


def _table(metric: str, x: str, rows: Sequence[Row]) -> Row:
    """A line for each series, a column for each x; where no two series share an x, as where x is a
    time, each line lists its own."""
    series = dict[str, list[Row]]()
    for row in rows:
        series.setdefault(f"{row['series']}", []).append(row)
    places = list(dict.fromkeys(row["x"] for row in rows))
    bucket = "in bucket" in metric
    return {
        "metric": metric,
        "own_places": len(places) == len(rows) > _MOST_COLUMNS,
        "places": places,
        "series": series,
        "axis": "bucket" if bucket else x.partition(",")[0].partition(" of the ")[0],
        "listed": [row for row in rows if row.get("list")],
    }
