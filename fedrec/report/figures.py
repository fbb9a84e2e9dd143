"""Charts of a page as files of their own: each as SVG, and its numbers as CSV.

Page and paper have the same drawing. A file has the light page's colours as literals, since LaTeX
and most converters (rsvg-convert, Inkscape) read no CSS variables.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import RunError, SettingsError
from fedrec.report.page import stylesheet
from fedrec.storage import write_bytes

_CHART = re.compile(r'<svg [^>]*aria-labelledby="([\w-]+)-t [^"]*"[^>]*>.*?</svg>', re.DOTALL)
_NUMBERS = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)
_COLOUR = re.compile(r"(--[\w-]+): (#\w+);")


@dataclass(frozen=True)
class Chart:
    """One chart. svg: a file of its own; numbers: what it draws, as CSV. Notebooks show it."""

    name: str
    svg: str
    numbers: str

    @classmethod
    def of(cls, drawn: str, name: str) -> Chart:
        """The wide drawing of a chart of `charts.py`."""
        numbers = _NUMBERS.search(drawn)
        return cls(name, standalone(drawn), html.unescape(numbers[1]) if numbers else "")

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


def charts_of(page: Path) -> list[Chart]:
    """All charts of a page that fedrec wrote. Raises RunError where the file has none."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"{page} cannot be read: {error}",
            "Give a page that fedrec wrote, for example runs/NAME/report.html.",
        ) from error
    found = [
        Chart.of(match[0], match[1].removesuffix("-wide"))
        for match in _CHART.finditer(text)
        if _NUMBERS.search(match[0])
    ]
    if not found:
        raise RunError(
            f"{page} has no chart whose numbers can be read",
            "Give a page of fedrec simulate, compare or audit.",
        )
    return found


def write(page: Path, folder: Path) -> list[Path]:
    """Files of all charts, `folder/NAME.svg` and `folder/NAME.csv`. Raises RunError as
    `charts_of`."""
    charts = charts_of(page)
    return [
        chart.save(folder / f"{chart.name}{suffix}")
        for chart in charts
        for suffix in (".svg", ".csv")
    ]
