"""Printed output of a demonstration: a line for each step, two lists side by side, a table of who
saw what, what it cost, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from fedrec.cli.recommend import plain
from fedrec.report.wording import power, size
from fedrec.run.training import progress_bar, stage
from fedrec_simulations.demo.evidence import Seen

_TITLE = 38


class Screen:
    """Steps on standard error as they happen, results on standard output; nothing at all where
    `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._steps = Console(stderr=True, quiet=quiet)
        self._results = Console(quiet=quiet)

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """One thing that takes a while."""
        with stage(self._steps, words):
            yield

    @contextmanager
    def rounds(self, words: str, total: int) -> Iterator[Rounds]:
        """A training, round by round."""
        with progress_bar(self._steps) as progress:
            yield Rounds(progress, progress.add_task(words, total=total), words, total)

    def note(self, words: str) -> None:
        """A line below a step."""
        self._steps.print(f"  {words}", style="dim", highlight=False)

    def failed(self, party: str, log: str, lines: Sequence[str]) -> None:
        """The end of a log."""
        self._steps.print(Text(f"{party}: the end of {log}", style="bold red"))
        for line in lines:
            self._steps.print(Text(f"  {line}"), soft_wrap=True)

    def show(self, content: Mapping[str, Any], parties: Sequence[Seen]) -> None:
        """Everything at the end."""
        self._results.print(lists_table(content))
        self._results.print()
        self._results.print(parties_table(parties))
        self._results.print()
        self._results.print(facts_table(content))
        self._results.print()
        self._results.print(
            Text(content["verdict"], style="bold green" if content["holds"] else "bold red")
        )
        if content["holds"]:
            self._results.print(
                "on your own machines: docs/deploy.md, which begins with", markup=False
            )
            self._results.print("next  fedrec certs certificates --client hospital")


class Rounds:
    """Progress of one training."""

    def __init__(self, progress: Progress, task: TaskID, words: str, total: int) -> None:
        self._progress = progress
        self._task = task
        self._words = words
        self._total = total
        self._done = 0

    def done(self, counted: int) -> None:
        """One more round is kept."""
        self._done += 1
        words = f"{self._words}: round {self._done} of {self._total}, {counted:,} people"
        self._progress.update(self._task, completed=self._done, description=words)

    def say(self, words: str) -> None:
        """Something that happened meanwhile."""
        self._progress.console.print(f"  {words}", style="yellow", highlight=False)


def lists_table(content: Mapping[str, Any]) -> Table:
    """What the person got from each model, and from the last one on the device alone."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("", justify="right", style="dim", min_width=2)
    answers = content["answers"]
    number = 1
    for answer in answers:
        name = (
            "ranked on the device, exactly"
            if answer["guarantee"] is None
            else f"answer {number}, by model {answer['version'][:8]}"
        )
        number += answer["guarantee"] is not None
        table.add_column(name, no_wrap=True, max_width=_TITLE, overflow="ellipsis")
    columns = [[plain(item["title"]) for item in answer["items"]] for answer in answers]
    for row in range(max(map(len, columns))):
        cells = [Text(column[row] if row < len(column) else "") for column in columns]
        table.add_row(str(row + 1), *cells)
    return table


def parties_table(parties: Sequence[Seen]) -> Table:
    """Who received, kept and cannot know what; bytes of messages before TLS, as each party's own
    files say."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, right in (
        ("party", False),
        ("received", False),
        ("in", True),
        ("kept", False),
        ("out", True),
        ("cannot know", False),
    ):
        table.add_column(
            name, justify="right" if right else "left", no_wrap=right or name == "party"
        )
    for one in parties:
        words = (
            one.party,
            one.received,
            size(one.bytes_in),
            one.kept,
            size(one.bytes_out),
            one.cannot_know,
        )
        table.add_row(*(Text(word) for word in words))
    table.caption = "Bytes of messages, both trainings and all questions together, before TLS."
    table.caption_justify = "left"
    if any(one.party.startswith("aggregator-") for one in parties):
        table.caption += (
            " What aggregators tell each other is not counted: place 2 passes what it has of "
            "every report on to place 3."
        )
    return table


def facts_table(content: Mapping[str, Any]) -> Table:
    """What was spent, who was killed, what the models are worth, and the same bytes, a line
    each."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, words in facts(content).items():
        table.add_row(name, Text(words))
    return table


def facts(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a demonstration as words by name."""
    training = content["spent"]["training"]
    serving = content["spent"]["serving"]
    killed = content["killed"]
    errors = ", then ".join(
        f"{name.upper()} {value:.3f}"
        for one in content["trainings"]
        for name, value in one["metrics"].items()
    )
    spent = (
        f"of {training['limit']:.3g} {training['unit']}, δ = {power(training['delta'])}, over "
        f"{training['trainings']} trainings"
    )
    asked = (
        f"of {serving['limit']:.3g} {serving['unit']}, δ = {power(serving['delta'])}, over "
        f"{serving['answers']} answers"
    )
    found = {
        "training": f"ε = {training['epsilon']:.3g} {spent}",
        "serving": f"ε = {serving['epsilon']:.3g} {asked}",
        "models": f"{errors} on test, measured here and not private",
        "killed": (
            f"{killed['party']}, with kill -9 in round {killed['round']} of training "
            f"{killed['training']}; another process went on"
        ),
    }
    if content["noise"] == "seeded":
        found["noise"] = (
            "seeded: an experiment on invented people. Whoever knows the seed can remove it; "
            "a deployment draws it anew"
        )
        found["bytes"] = _same(content)
    else:
        found["noise"] = (
            "the operating system's: no other training gives the same bytes, so none was compared"
        )
    if content["aggregation"] == "three-party":
        checked = (
            "bounded by checks"
            if content["hostile_clients"] == "checked"
            else "not checked: the sites are trusted with them"
        )
        against = (
            "ε is against the server with any one of the three; any two of them together can "
            "read every report"
        )
        found["three-party"] = (
            f"not yet reviewed from outside. {against}. What clients share is {checked}"
        )
    return found | ({"files": content["folder"]} if content["folder"] else {})


def _same(content: Mapping[str, Any]) -> str:
    if content["same_bytes"]:
        return (
            "each model is the one that a single process trains from the same data, byte for byte"
        )
    return "A MODEL DIFFERS from the one that a single process trains from the same data"
