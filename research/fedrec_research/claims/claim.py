"""A claim of a paper, what tests it, and the rows that a test reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedrec_research.study.judging import Outcome, Verdict
from fedrec_research.study.results import Study
from fedrec_research.trials import Row


@dataclass(frozen=True)
class Evidence:
    """Rows that are kept. figures: by name, "dp-cmf/figure5"; the news table on text is
    "privaterec/text"."""

    studies: Sequence[Study]
    figures: Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Test:
    """How a claim is judged: the commands that make its rows, which rows they are, and the verdict
    that is computed from them."""

    __test__ = False  # pytest collects classes of this name
    commands: tuple[str, ...]
    rows: str
    judge: Callable[[Evidence], Verdict]
    by_study: bool = False


@dataclass(frozen=True)
class Claim:
    """paper: by the command's name. figure: the figure of `fedrec research figures` that it is
    read from, "" where that makes none. where: its place in the paper. printed: the value that
    the paper prints, where it prints one. main: whether the page on all papers has it."""

    paper: str
    figure: str
    where: str
    words: str
    test: Test
    printed: str = ""
    main: bool = False


def untested(why: str, *commands: str) -> Test:
    """No row of ours can say, because `why`."""
    return Test(commands, "none", lambda _: Verdict("not tested", why))


def not_tested_by(why: str, test: Test) -> Test:
    """Rows of a stand-in: what they say stands beside the reason why they judge nothing."""

    def judge(evidence: Evidence) -> Verdict:
        found = test.judge(evidence).found
        return Verdict("not tested", f"{why}. {found}" if found else why)

    return Test(test.commands, test.rows, judge, test.by_study)


def proved(outcome: Outcome, why: str, where: str) -> Test:
    """A claim about privacy, which a proof settles and no row. where: the test of what runs
    here."""
    return Test((f"pytest {where}",), "a proof", lambda _: Verdict(outcome, why))
