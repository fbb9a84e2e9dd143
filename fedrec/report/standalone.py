"""A chart of a page as a picture file of its own."""

from __future__ import annotations

from importlib import resources


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
