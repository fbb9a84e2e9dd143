"""The leaderboard as text, page, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite, write_bytes, write_json
from fedrec_simulations.experiments.intervals import interval
from fedrec_simulations.experiments.rows import table
from fedrec_simulations.leaderboard.board import Entry, Section, sections
from fedrec_simulations.leaderboard.protocol import protocols
from fedrec_simulations.leaderboard.published import published_rows
from fedrec_simulations.leaderboard.rows import read_rows

NOT_PRIVATE = (
    "A guarantee covers its model alone. The numbers beside it are measured on the data without "
    "noise: they are not private."
)
_SEEDS = "Each is of the row's first seed; `--seeds N` makes N runs from that seed on."
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Leaderboard</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
td {{ white-space: nowrap; }}
td:nth-child(2), td:last-child {{ white-space: normal; }}
td:last-child {{ min-width: 28rem; }}
th, td {{ vertical-align: top; text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }}
code, p {{ overflow-wrap: anywhere; }}
</style></head><body>
<h1>Leaderboard</h1>
<p>{first}</p>
{body}
</body></html>
"""  # noqa: E501
_FIRST = (
    "Rows are ranked only beside rows of the same protocol, unit, neighbours and epsilon. Ranks "
    "are shared where 95% intervals overlap; "
    "published results are shown and not ranked."
)


def as_text(found: Sequence[Section]) -> str:
    """For a terminal."""
    if not found:
        return "There is no row."
    parts = [_FIRST]
    for section in found:
        header, lines = _shown(section)
        widths = [max(len(line[n]) for line in (header, *lines)) for n in range(len(header))]
        drawn = "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (header, *lines)
        )
        parts.append(f"{section.protocol.title}, {section.words}\n{drawn}")
    return "\n\n".join([*parts, NOT_PRIVATE])


def as_page(found: Sequence[Section]) -> str:
    """One HTML page that needs no network."""
    parts, last = list[str](), ""
    for section in found:
        if section.protocol.name != last:
            last = section.protocol.name
            data, rules = (
                section.protocol.data,
                "".join(f"<li>{escape(rule)}</li>" for rule in section.protocol.rules),
            )
            parts.append(
                f"<h2>{escape(section.protocol.title)}</h2><p>Data: {escape(data.title)}, "
                f"{escape(data.source)}</p><ul>{rules}</ul>"
            )
        header, lines = _shown(section)
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        label = escape(f"{section.protocol.title}, {section.words}", quote=True)
        parts.append(
            f'<h3>{escape(section.words)}</h3><div class="wide" tabindex="0" role="region" '
            f'aria-label="{label}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{_made(section)}"
        )
    parts.append(f"<p>{NOT_PRIVATE}</p>")
    return _PAGE.format(
        first=escape(_FIRST if found else "There is no row."), body="\n".join(parts)
    )


def as_markdown(found: Sequence[Section]) -> str:
    """A heading and a table for each section, where published rows are printed below it, and the
    commands of all rows at the end."""
    parts, commands = [_FIRST], dict[str, None]()
    for section in found:
        header, lines = _shown(section, references=False)
        parts.append(f"### {section.protocol.title}, {section.words}")
        parts.append(table(header, [[cell or "–" for cell in line] for line in lines], text=True))
        printed = dict.fromkeys(e.row.reference for e in section.entries if e.row.reference)
        parts += [f"Published rows: {reference}." for reference in printed]
        commands |= dict.fromkeys(e.row.command for e in section.entries if e.row.command)
    if commands:
        parts += [
            "### Commands of the measured rows",
            _SEEDS,
            "```sh\n" + "\n".join(commands) + "\n```",
        ]
    return "\n\n".join([*parts, NOT_PRIVATE])


def as_json(found: Sequence[Section]) -> list[dict[str, Any]]:
    """One object for each row: its place, and everything that its file says."""
    return [
        dict(
            finite(
                {
                    "rank": entry.rank,
                    "unranked": entry.unranked,
                    "mean": entry.value.mean,
                    "half": None if math.isnan(entry.value.half) else entry.value.half,
                    **entry.row.content(),
                    "sha256": entry.row.digest,
                }
            )
        )
        for section in found
        for entry in section.entries
    ]


def as_csv(found: Sequence[Section]) -> str:
    """One line for each row."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for section in found:
        for entry in section.entries:
            writer.writerow(_cells(section, entry))
    return file.getvalue()


def write(path: Path, found: Sequence[Section]) -> None:
    """By the suffix. Raises SettingsError on an unknown one."""
    if path.suffix == ".html":
        write_bytes(path, as_page(found).encode())
    elif path.suffix == ".md":
        write_bytes(path, (as_markdown(found) + "\n").encode())
    elif path.suffix == ".csv":
        write_bytes(path, as_csv(found).encode())
    elif path.suffix == ".json":
        write_json(path, as_json(found))
    else:
        raise SettingsError(
            f"{path}: no leaderboard has the suffix {path.suffix!r}",
            "Use .html, .md, .csv or .json.",
        )


def write_between(page: Path, folder: Path) -> None:
    """Put the tables of `folder`'s rows, and of published results, between the marks of a Markdown
    page; nothing where there is no such folder."""
    if not folder.is_dir() or not page.exists():
        return
    known = protocols([folder])
    found = sections([*read_rows([folder]), *published_rows(known)], known)
    before, _, rest = page.read_text(encoding="utf-8").partition(_MARK)
    after = rest.partition(_END)[2]
    content = f"{before}{_MARK}\n{as_markdown(found)}\n\n{_END}{after}"
    write_bytes(page, content.encode())


_MARK, _END = "<!-- rows -->\n", "<!-- end of rows -->"
_COLUMNS = (
    "protocol", "unit", "neighbours", "epsilon", "serving_epsilon", "delta", "established", "rank",
    "unranked", "source", "system",
    "metric", "mean", "half", "seeds", "noise", "code", "split", "sha256",
)  # fmt: skip


def _cells(section: Section, entry: Entry) -> list[object]:
    row, promised, half = entry.row, entry.row.guarantee, entry.value.half
    return [
        row.protocol, promised.unit, promised.neighbours, f"{promised.epsilon:g}",
        "" if row.serving_epsilon is None else f"{row.serving_epsilon:g}", f"{promised.delta:g}",
        promised.established,
        "" if entry.rank is None else entry.rank, entry.unranked, row.source, row.system,
        section.protocol.metric, entry.value.mean,
        "" if math.isnan(half) else half, " ".join(map(str, row.seeds)), row.noise,
        "" if row.code is None else row.code.sha256,
        row.split.sha256, row.digest,
    ]  # fmt: skip


def _shown(section: Section, *, references: bool = True) -> tuple[list[str], list[list[str]]]:
    protocol = section.protocol
    header = [
        "rank",
        "system",
        *(
            f"{name} ({protocol.best})" if name == protocol.metric else name
            for name in (protocol.metric, *protocol.also)
        ),
    ]
    lines = []
    for entry in section.entries:
        row = entry.row
        place = "–" if entry.rank is None else str(entry.rank)
        values = [
            _measured(row.metrics.get(name, ())) for name in (protocol.metric, *protocol.also)
        ]
        seeded = (
            "seeded: an experiment"
            if row.noise == "seeded" and math.isfinite(row.guarantee.epsilon)
            else ""
        )
        reference = row.reference if references else ""
        about = "; ".join(
            part for part in (entry.unranked, row.guarantee.note, seeded, reference) if part
        )
        made = (
            "" if row.code is None else f"{row.code.name} {row.code.version}, {row.code.sha256[:8]}"
        )
        lines.append(
            [
                place,
                row.system,
                *values,
                f"{row.guarantee.delta:g}",
                str(len(row.seeds) or ""),
                made,
                about,
            ]
        )
    return [*header, "δ", "seeds", "code", "remarks"], lines


def _measured(values: Sequence[float]) -> str:
    if not values:
        return ""
    found = interval(values)
    return f"{found.mean:.4f}" if math.isnan(found.half) else f"{found.mean:.4f} ± {found.half:.4f}"


def _made(section: Section) -> str:
    lines = "".join(
        (
            f"<li>{escape(entry.row.system)}, seeds {', '.join(map(str, entry.row.seeds))}: "
            f"<code>{escape(entry.row.command)}</code></li>"
        )
        for entry in section.entries
        if entry.row.command
    )
    return f"<details><summary>Commands</summary><ul>{lines}</ul></details>" if lines else ""
