"""Charts of a page as files: SVG, PDF and PNG of each, and its numbers as CSV.

A chart of a page as a picture file of its own.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedrec.errors import RunError, SettingsError
from fedrec.report.drawn import figure
from fedrec.storage import write_bytes


def standalone(drawn: str) -> str:
    """The first picture of a chart (the wide one) as a file, with what it takes from the report's
    page: colours, light and dark."""
    picture = drawn[drawn.index("<svg ") : drawn.index("</svg>") + len("</svg>")]
    css = resources.files("fedrec.report").joinpath("page.css").read_text(encoding="utf-8")
    colours = css[: css.index("* {")]
    rules = "\n".join(rule for rule in css.splitlines() if rule.startswith(("svg ", ".s1", ".f1")))
    style = f"<style>\n{colours}{rules}\nsvg {{ color: var(--ink); }}\n</style>"
    paper = '<rect width="100%" height="100%" fill="var(--bg)"/>'
    opened = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opened.replace(">", f">{style}{paper}", 1) + "\n"


FORMATS = ("svg", "pdf", "png", "csv")
_DPI = 200
_CHART = re.compile(r'<svg [^>]*aria-labelledby="([\w-]+)-t [^"]*"[^>]*>.*?</svg>', re.DOTALL)
_METADATA = {"pdf": {"CreationDate": None}}  # the same bytes every day
_NUMBERS = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)


@dataclass(frozen=True)
class Chart:
    """One chart of a page. svg: a file of its own; numbers: what it draws, as CSV."""

    name: str
    svg: str
    numbers: str

    def file(self, kind: str) -> bytes:
        """Its bytes in one of FORMATS.

        Raises SettingsError where matplotlib is needed and missing."""
        texts = {"svg": self.svg, "csv": self.numbers}
        if kind in texts:
            return texts[kind].encode()
        kept = io.BytesIO()
        figure(self.svg).savefig(
            kept, format=kind, dpi=_DPI, bbox_inches="tight", pad_inches=0.08,
            metadata=_METADATA.get(kind, {}),
        )  # fmt: skip
        return kept.getvalue()


def charts_of(page: Path) -> list[Chart]:
    """All charts of a page that fedrec wrote, or of an SVG that is one.

    Raises RunError where the file has none."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"{page} cannot be read: {error}",
            "Give a page that fedrec wrote, for example runs/NAME/report.html.",
        ) from error
    found = []
    for match in _CHART.finditer(text):
        if numbers := _NUMBERS.search(match[0]):
            svg = standalone(match[0]) if page.suffix != ".svg" else text
            found.append(Chart(match[1].removesuffix("-wide"), svg, html.unescape(numbers[1])))
    if not found:
        remedy = (
            "Give a page of fedrec simulate, compare or audit, or a figure of research/docs/img."
        )
        raise RunError(f"{page} has no chart whose numbers can be read", remedy)
    return found


def write(page: Path, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Files of all charts, `folder/NAME.FORMAT`.

    Raises SettingsError on an unknown format, and RunError as `charts_of`."""
    if unknown := [kind for kind in formats if kind not in FORMATS]:
        raise SettingsError(
            f"there is no format {unknown[0]!r}", f"There are: {', '.join(FORMATS)}."
        )
    made = [
        (folder / f"{chart.name}.{kind}", chart.file(kind))
        for chart in charts_of(page)
        for kind in formats
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in made:
        write_bytes(path, content)
    return [path for path, _ in made]
