"""Text of what `fedrec inspect` found, for people: one section a party, one table a message, 80
columns."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Content = Mapping[str, Any]

COLUMNS = 80  # of a terminal: text beyond is wrapped
_SHOWN = 6
"""Numbers of a user's field that are printed; the JSON has all of them."""


def text(found: Content) -> str:
    """Every party in turn.

    The same content as the JSON, but of a user's long fields only the beginning."""
    console = Console(
        file=io.StringIO(), width=COLUMNS, color_system=None, highlight=False, soft_wrap=False
    )
    for part in _parts(found):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _parts(found: Content) -> Iterator[RenderableType]:
    for party in found["clients"]:
        yield from _client(party)
    for party in found["news_clients"]:
        yield from _news_client(party)
    for party in found["devices"]:
        yield from _device(party)
    for party in found["aggregators"]:
        yield from _aggregator(party)
    for party in found["servers"]:
        yield from _server(party)


def _client(party: Content) -> Iterator[RenderableType]:
    yield _title(
        f"CLIENT {party['folder']}",
        "this site's own copy; values are shown because they are its own",
    )
    charged = [
        (_time(c["time_s"]), c["run"], c["round"], ", ".join(c["releases"]))
        for c in party["charges"]
    ]
    yield _table(
        "charged to each user before anything left", ("when", "run", "round", "releases"), charged
    )
    yield _spent(party)
    for round in party["rounds"]:
        yield from _sent(round)


def _sent(round: Content) -> Iterator[RenderableType]:
    receipt = round["receipt"]
    asked = round["asked"]
    yield _line(
        f"round {round['round']} of {round['run']}: asked for step {asked['step']}, to "
        f"release {', '.join(asked['releases'])}"
    )
    came = [
        (name, " x ".join(map(str, shape)) or "one number")
        for name, shape in asked["public"].items()
    ]
    yield _table("came with the question, public", ("array", "shape"), came)
    yield _line(
        f"  sent: {_count(round['messages'], 'message')}, {round['bytes_sent']:,} bytes in all"
    )
    yield _line(f"  receipt: {receipt['accepted']:,} users counted{_reasons(receipt['rejected'])}")
    if not round["kept"]:
        yield _line(
            "  no message was kept: set keep_sent = true in the client's settings to see the next"
        )
    for number, message in enumerate(round["kept"]):
        yield _line(f"  {_message(message)}{'; laid out alike' if number else ''}")
        if number == 0:
            yield from _fields(message)


def _message(message: Content) -> str:
    size = message["bytes_per_user"]
    holds = (
        f"{message['bytes']:,} bytes, {_count(message['users'], 'user')}, "
        f"{_count(message['events'], 'event')}"
    )
    return f"{message['file']}: {holds}; a user {size['least']:,} to {size['most']:,} bytes"


def _fields(message: Content) -> Iterator[RenderableType]:
    fields = [
        (f["field"], f["type"], f["offset"], f["bytes"], f["meaning"]) for f in message["fields"]
    ]
    yield _table("every field", ("field", "type", "from", "bytes", "what it is"), fields)
    one = [(f["field"], _values(f), _shortened(f["hex"])) for f in message["one_user"]]
    yield _table("the first user's part", ("field", "value", "bytes, hexadecimal"), one)


def _aggregator(party: Content) -> Iterator[RenderableType]:
    yield _title(
        f"AGGREGATOR {party['folder']}",
        "reports are added up in memory and never written; this is all it keeps",
    )
    yield _table(
        "users enrolled, by pseudonym",
        ("client", "users"),
        list(party["enrolled_by_client"].items()),
    )
    yield _spent(party)
    charges = [
        (_time(c["time_s"]), c["run"], c["round"], c["release"], _number(c["mu"]))
        for c in party["charges"]
    ]
    yield _table(
        "charged, each before its noise was drawn",
        ("when", "run", "round", "release", "mu"),
        charges,
    )
    for round in party["rounds"]:
        yield _line(
            f"round {round['round']} of {round['run']}, attempt {round['attempt']}, released "
            f"{_time(round['time_s'])}"
        )
        yield _line(
            f"  reached it: {round['bytes_in']:,} bytes, {round['reported']:,} of "
            f"{round['enrolled']:,} users"
        )
        yield _line(
            f"  it shrank {_count(round['clipped'], 'report')} to the "
            f"radius{_reasons(round['rejected'])}"
        )
        yield from _release(round["release"])


def _news_client(party: Content) -> Iterator[RenderableType]:
    yield _title(
        f"CLIENT OF NEWS {party['folder']}",
        "this site's own ledger; an answer is made anew, with the same noise, when asked again",
    )
    columns = (
        "when",
        "run",
        "seen",
        "release",
        "epsilon per click (replace)",
        "at delta",
        "rounds",
    )
    yield _table(
        "each run, charged before its first answer",
        columns,
        [row for c in party["charges"] for row in _run(c)],
    )
    yield _spent(party)


def _run(charge: Content) -> Iterator[tuple[object, ...]]:
    for role, seen in (("history", "in a history"), ("labels", "as a label")):
        for price in charge[role]:
            cost = price["release"], _number(price["epsilon"]), f"{price['delta']:g}"
            yield _time(charge["time_s"]), charge["run"], seen, *cost, len(charge["rounds"])


def _device(party: Content) -> Iterator[RenderableType]:
    yield _title(
        f"DEVICE {party['folder']}",
        "this person's own ledger; the same question gets the kept answer and costs nothing",
    )
    columns = (
        "when",
        "model",
        "epsilon per click (replace)",
        "at delta",
        "noise std",
        "numbers sent",
    )
    rows = [
        (
            _time(a["time_s"]),
            a["version"],
            _number(a["epsilon"]),
            a["delta"],
            _number(a["noise_std"]),
            len(a["sent"]),
        )
        for a in party["answers"]
    ]
    yield _table("answers, each paid for before it left", columns, rows)
    yield _spent(party)


def _spent(party: Content) -> RenderableType:
    spent = [
        (unit, _number(cost["epsilon"]), cost["delta"]) for unit, cost in party["spent"].items()
    ]
    return _table("charged in all", ("per", "epsilon", "at delta"), spent)


def _server(party: Content) -> Iterator[RenderableType]:
    head = _shortened(party["ledger_head"] or "none")
    yield _title(
        f"SERVER {party['folder']}",
        f"run {party['run']}, {party['num_users'] or 0:,} users; last ledger head seen: {head}",
    )
    if news := party["news"]:
        yield _table(
            f"news, {news['variant']}: users by client",
            ("client", "users"),
            list(news["users_by_client"].items()),
        )
        kept = [(name, " x ".join(map(str, shape))) for name, shape in news["reports"].items()]
        if kept:
            yield _table("what devices told, as it is kept", ("array", "shape"), kept)
    for round in party["rounds"]:
        yield _line(f"round {round['round']}, step {round['step']}, attempt {round['attempt']}")
        counted = (
            f"{round['reported']:,} of {round['enrolled']:,} users, {round['clipped']:,} shrunk"
        )
        yield _line(f"  the aggregator's status: {counted}{_reasons(round['rejected'])}")
        yield _line(
            f"  sent to each client that had the question before: {round['bytes_down']:,} bytes"
        )
        columns = ("client", "users", "counted", "turned away", "refusal", "bytes")
        yield _table(
            "answers of clients", columns, [_answer(answer) for answer in round["answers"]]
        )
        yield from _release(round["release"])
    yield _line("no message to it has a field for:")
    for words in party["never_sees"]:
        yield _line(f"  {words}")


def _answer(answer: Content) -> tuple[object, ...]:
    refusal = f"{answer['refusal']} {answer['cause']}".strip()
    return (
        answer["client"],
        answer["users"],
        answer["accepted"],
        _codes(answer["rejected"]) or "-",
        refusal or "-",
        answer["bytes"],
    )


def _release(release: Content) -> Iterator[RenderableType]:
    if release.get("missing"):
        yield _line(f"  release {release['file']} is not here")
        return
    same = "as recorded" if release["as_recorded"] else "NOT WHAT WAS RECORDED"
    yield _line(
        f"  release {release['file']}: {release['bytes']:,} bytes, SHA-256 "
        f"{release['sha256'][:16]}..., {same}"
    )
    if release.get("of_three"):
        yield _line("  a masked part of the noised sums, one of three: by itself it says nothing")
        return
    blocks = [
        (b["block"], " x ".join(map(str, b["shape"])), _number(b["noise_std"]))
        for b in release["blocks"]
    ]
    yield _table("noised sums in it", ("block", "rows x columns", "noise std"), blocks)


def _title(name: str, words: str) -> Text:
    return Text(f"\n{name}\n{words}\n")


def _line(words: str) -> RenderableType:
    """One line; where it must be broken, the rest is as far from the margin as its beginning."""
    return Padding(Text(words.lstrip()), (0, 0, 0, len(words) - len(words.lstrip())))


def _table(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    cells = [
        [Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row] for row in rows
    ]
    for row in cells or [[Text("none")]]:
        table.add_row(*row)
    return Padding(Group(Text(name), table), (0, 0, 1, 2))


def _values(field: Content) -> str:
    values = field.get("values")
    if values is None:
        return "-"
    more = f" ... {len(values):,} in all" if len(values) > _SHOWN else ""
    return " ".join(_number(value) for value in values[:_SHOWN]) + more


def _number(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _shortened(words: str) -> str:
    return words if len(words) <= 32 else f"{words[:32]}..."


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _codes(rejected: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(rejected.items()) if count)


def _reasons(rejected: Mapping[str, int]) -> str:
    codes = _codes(rejected)
    return f"; turned away: {codes}" if codes else ""
