"""Charts as files of their own: each as SVG, and its numbers as CSV.

Page and paper have the same drawing. A file has the light page's colours as literals, since LaTeX
and most converters (rsvg-convert, Inkscape) read no CSS variables.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import SettingsError
from fedrec.report.charts import lines_against
from fedrec.report.content import LineChart
from fedrec.report.page import stylesheet
from fedrec.storage import write_bytes

_COLOUR = re.compile(r"(--[\w-]+): (#\w+);")


@dataclass(frozen=True)
class Chart:
    """One chart. svg: a file of its own; numbers: what it draws, as CSV. Notebooks show it."""

    name: str
    svg: str
    numbers: str

    @classmethod
    def of(cls, chart: LineChart, name: str) -> Chart:
        """The wide drawing of lines, and a row for each point and each level, which has no x."""
        file = io.StringIO()
        metric = chart.title.partition(" against ")[0]
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("line", chart.axis, metric, "half width of the bar"))
        for label, points in chart.lines.items():
            rows.writerows((label, p.x, p.value, p.spread or None) for p in points)
        rows.writerows((name, None, value, None) for name, value in chart.baselines)
        return cls(name, standalone(str(lines_against(chart, name=name))), file.getvalue())

    def save(self, path: Path | str) -> Path:
        """Write the drawing (.svg) or its numbers (.csv) and return where.

        Raises:
            SettingsError: The suffix is another one.
        """
        target = Path(path)
        content = {".svg": self.svg, ".csv": self.numbers}.get(target.suffix)
        if content is None:
            raise SettingsError(
                f"{target}: a chart has no format {target.suffix!r}",
                "Use .svg or .csv. `rsvg-convert -f pdf chart.svg` makes a PDF of it.",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, content.encode())
        return target

    def _repr_svg_(self) -> str:
        return self.svg


def standalone(drawn: str) -> str:
    """The first picture of a chart (the wide one) as a file, with the rules that it takes from the
    report's page."""
    picture = drawn[drawn.index("<svg ") : drawn.index("</svg>") + len("</svg>")]
    css = stylesheet()
    light = dict(_COLOUR.findall(css[: css.index("@media")]))
    rules = "\n".join(rule for rule in css.splitlines() if rule.startswith(("svg ", ".s1", ".f1")))
    style = f"<style>\n{rules}\nsvg {{ color: var(--ink); }}\n</style>"
    head = f'{style}<rect width="100%" height="100%" fill="var(--bg)"/>'
    for name, colour in light.items():
        head = head.replace(f"var({name})", colour)
    opened = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opened.replace(">", f">{head}", 1) + "\n"
