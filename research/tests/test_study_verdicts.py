"""Every verdict of docs/study.md, made again from the kept rows by other code: numpy, the table of
Student's t, and the names of the two lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec_research.study.of_figures import (
    as_good_as_metadata,
    lost_by_the_sampler,
    noised_once,
)

DOCS = Path(__file__).parents[1] / "docs"
T_975 = {1: 12.706205, 2: 4.302653, 4: 2.776445}
"""97.5% quantiles of Student's t by degrees of freedom: two, three and five seeds."""
CLAIMS = {
    "adaptive weights beat tail-biased sampling": ("ada-dpals", "dpals-tail", "both"),
    "tail-biased sampling beats uniform sampling": ("dpals-tail", "dpals-uniform", "both"),
    "sufficient statistics beat noisy gradient descent: Ada-DPALS beats Ada-DPGD": (
        "ada-dpals",
        "ada-dpgd",
        "both",
    ),
    "on ratings AM-SSP beats AM-DPSGD": ("am-ssp", "am-dpsgd", "ratings"),
    "on clicks AM-SSP beats AM-DPSGD, of which one layer stands in here": (
        "am-ssp",
        "encoder-descent",
        "clicks",
    ),
    "AM-SSP beats DP-CMF with the same features": ("am-ssp", "dp-cmf", "both"),
    "item features help: AM-SSP beats the same without features": ("am-ssp", "ada-dpals", "both"),
    "on ratings item features help there too: AM-DPSGD beats DPALS with ids alone": (
        "am-dpsgd",
        "dpals-uniform",
        "ratings",
    ),
    "on clicks item features harm noisy descent: the same with ids alone beats AM-DPSGD": (
        "ada-dpgd",
        "encoder-descent",
        "clicks",
    ),
    "on ratings item metadata helps": ("dp-cmf", "ada-dpals", "ratings"),
}
SAME_MODEL = {"ada-dpals", "dpals-tail", "dpals-uniform", "am-ssp"}
"""Lines of the main tables that fit the model of the lines on one model, by a longer search."""
TITLES = ("What held", "What held in part", "What did not hold")


def cells() -> dict[tuple[str, str, str, float], list[float]]:
    """Values by seed, the larger the better, of kind, data, system and epsilon."""
    found = {}
    for path in sorted((DOCS.parent / "results").glob("study-*.json")):
        content = json.loads(path.read_text())
        kind = content["data"]["kind"]
        name = content["data"]["name"]
        sign, metric = (-1, "rmse") if kind == "ratings" else (1, "ndcg@20")
        for cell in content["cells"]:
            order = np.argsort(cell["seeds"])
            assert sorted(cell["seeds"]) == list(range(1, len(order) + 1))
            values = [sign * float(cell[metric][k]) for k in order]
            found[kind, name, cell["system"], float(cell["epsilon"])] = values
    return found


def sign_of(better: list[float], worse: list[float]) -> int:
    """1 where the mean difference over the seeds that both have is above its 95% interval's half,
    -1 below it; 0 of one seed, which has no interval."""
    both = min(len(better), len(worse))
    if both == 1:
        return 0
    gains = np.array(better[:both]) - np.array(worse[:both])
    half = T_975[len(gains) - 1] * gains.std(ddof=1) / np.sqrt(len(gains))
    return int(gains.mean() > half) - int(gains.mean() < -half)


def signs(
    better: str, worse: str, kinds: str, *, form: str = "made sound", longest: bool = False
) -> Iterator[int]:
    """At every data set and finite epsilon that has both lines of this form; `longest`: of each the
    better of that and a line of the same model in the main table."""
    kept = cells()
    for (kind, data, system, epsilon), values in kept.items():
        other = kept.get((kind, data, f"{worse}, {form}", epsilon))
        if system != f"{better}, {form}" or other is None or kinds not in {"both", kind}:
            continue
        sides = []
        for name, own in ((better, values), (worse, other)):
            main = kept.get((kind, data, name, epsilon)) if name in SAME_MODEL else None
            chosen = longest and main is not None and np.mean(main) > np.mean(own)
            sides.append(main if chosen and main is not None else own)
        yield sign_of(sides[0], sides[1])


def outcome(found: list[int]) -> str:
    won = sum(sign > 0 for sign in found)
    return TITLES[0] if won == len(found) else TITLES[1] if won else TITLES[2]


def sections() -> dict[str, str]:
    page = (DOCS / "study.md").read_text()
    return {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_claim_stands_where_its_rows_put_it(words: str) -> None:
    """By both forms, and by the longest searches: where they disagree, in part."""
    sound = list(signs(*CLAIMS[words]))
    longest = list(signs(*CLAIMS[words], longest=True))
    printed = list(signs(*CLAIMS[words], form="as printed"))
    decided = {outcome(found) for found in (sound, longest, printed) if found}
    expected = decided.pop() if len(decided) == 1 else TITLES[1]
    listed = [title for title in TITLES if f"): {words}. *Made sound" in sections().get(title, "")]
    assert listed == [expected]


def of_figure(name: str, series: str, x: float) -> list[float]:
    """RMSE by seed, with its sign turned, of one point of a kept figure."""
    content = json.loads((DOCS.parent / "results" / "figures" / f"{name}.json").read_text())
    ((_, found),) = content["figures"].items()
    (row,) = [
        row
        for row in found["rows"]
        if (row["metric"], row["series"], row["x"]) == ("rmse", series, x)
    ]
    assert row["seeds"] == [1, 2, 3]
    return [-value for value in row["each"]]


def noised_once_again() -> str:
    found = [
        sign_of(*(of_figure("am-ssp-figure4", f"epsilon = {e}, {form}", n) for n in (1, 16)))
        for form in ("all examples (Alg. 2)", "batches (Alg. 4)")
        for e in (1, 5, 20)
    ]
    return outcome(found)


def as_good_again() -> str:
    """Behind at none: the paper says comparable."""
    lost = [
        sign_of(
            of_figure("dp-cmf-figure5", "public users, raw, 1000", e),
            of_figure("dp-cmf-figure1", "metadata", e),
        )
        < 0
        for e in (1, 5, 10, 20)
    ]
    return TITLES[0] if not any(lost) else TITLES[2] if all(lost) else TITLES[1]


OF_FIGURES: dict[str, Callable[[], str]] = {
    "noising once (SSP2) beats noising in every step (SSP1)": noised_once_again,
    "1,000 public users do what the best metadata does": as_good_again,
}


@pytest.mark.parametrize("words", OF_FIGURES)
def test_a_claim_that_a_figure_decides_stands_where_its_points_put_it(words: str) -> None:
    listed = [title for title in TITLES if f"): {words}. *Of [`fed" in sections().get(title, "")]
    assert listed == [OF_FIGURES[words]()]


def points(figure: str, values: dict[tuple[str, Any], list[float]]) -> dict[str, Any]:
    return {
        figure: [
            {"metric": "rmse", "series": series, "x": x, "seeds": [1, 2, 3], "each": each}
            for (series, x), each in values.items()
        ]
    }


LOW = [0.90, 0.91, 0.92]
HIGH = [0.95, 0.965, 0.97]


def test_verdicts_of_resampled_noise_turn_when_points_turn() -> None:
    def found(on_all: tuple[list[float], list[float]], on_some: tuple[list[float], ...]) -> str:
        forms = {"all examples (Alg. 2)": on_all, "batches (Alg. 4)": on_some}
        values = {
            (f"epsilon = {e}, {form}", n): each
            for form, pair in forms.items()
            for e in (1, 5, 20)
            for n, each in zip((1, 16), pair, strict=True)
        }
        verdict = noised_once(points("am-ssp/figure4", values))
        assert verdict is not None
        return verdict.outcome

    assert found((LOW, HIGH), (LOW, HIGH)) == "held"
    assert found((LOW, LOW), (LOW, HIGH)) == "in part"
    assert found((HIGH, LOW), (LOW, LOW)) == "did not hold"
    assert noised_once({}) is None


@pytest.mark.parametrize(("behind", "expected"), [(0, "held"), (2, "in part"), (4, "did not hold")])
def test_comparable_fails_only_where_public_users_are_behind(behind: int, expected: str) -> None:
    epsilons = (1.0, 5.0, 10.0, 20.0)
    people = {("public users, raw, 1000", e): HIGH if k < behind else LOW
              for k, e in enumerate(epsilons)}  # fmt: skip
    films = {("metadata", e): LOW for e in epsilons}
    verdict = as_good_as_metadata(
        points("dp-cmf/figure5", people) | points("dp-cmf/figure1", films)
    )
    assert verdict is not None
    assert verdict.outcome == expected
    assert as_good_as_metadata(points("dp-cmf/figure5", people)) is None


def test_what_the_sampler_loses_is_said_and_never_judged() -> None:
    """Its guarantee is not established, and the paper says no margin."""
    series = "SGLD, printed conversion"
    values = {(series, 100.0): HIGH, (series, 250.0): LOW, (series, "inf"): LOW}
    verdict = lost_by_the_sampler(points("fast-dpmf/figure5", values))
    assert verdict is not None
    assert verdict.outcome == "not measured"
    # .95 - .90, .965 - .91, .97 - .92: .0517, and 4.302653 standard errors
    for said in (
        "+0.0517 ± 0.0072 at ε = 100 as printed",
        "+0.0000 ± 0.0000 at ε = 250 as printed",
    ):
        assert said in verdict.found
    assert "add/remove" not in verdict.found
    assert lost_by_the_sampler({}) is None


def test_no_other_verdict_stands_on_the_page() -> None:
    """A claim of another kind would have no second code: there is one, on designs of our own, and
    it is withdrawn."""
    stated = [
        line
        for title in TITLES
        for line in sections().get(title, "").splitlines()
        if line[:2] == "- "
    ]
    assert len(stated) == len(CLAIMS) + len(OF_FIGURES)


def groups() -> set[tuple[str, str, str]]:
    """Kind, data and whose people, of each headline."""
    mine = {"default": "alone", "default-people": "people"}
    return {(kind, data, mine[system]) for kind, data, system, _ in cells() if system in mine}


@pytest.mark.parametrize(("kind", "data", "group"), sorted(groups()))
def test_a_headline_is_what_its_rows_say(kind: str, data: str, group: str) -> None:
    """The default against every line with a guarantee that is not ours, at every epsilon."""
    mine = "default-people" if group == "people" else "default"
    public = {"dp-cmf-all", "dp-cmf-users"}
    rest = {"als", "als-half", "sgld", "popularity", "public-users-alone", "default-plain"}
    rest |= {"default-half", "global-mean", "item-mean", "item-user-bias", mine}
    kept = cells()
    ahead = []
    for (of, where, system, epsilon), values in kept.items():
        own = kept.get((kind, data, mine, epsilon))
        with_people = system.endswith(("-people", "-half")) or system in public
        if (of, where, with_people) != (kind, data, group == "people") or own is None:
            continue
        if system not in rest and "," not in system:
            ahead.append(sign_of(own, values) > 0)
    part = sections()[f"{data}: {kind}"]
    alone, _, beside = part.partition("where half of the people are public")
    said = "**The default is ahead of every other system measured here" in (
        beside if group == "people" else alone
    )
    assert ahead
    assert said == all(ahead)


def test_the_default_is_ahead_of_every_line_on_one_model_where_the_page_says_so() -> None:
    """In all forms, at every epsilon that they have."""
    kept = cells()
    signs_by_data: dict[tuple[str, str], list[int]] = {}
    for (kind, data, system, epsilon), values in kept.items():
        own = kept.get((kind, data, "default", epsilon))
        if "," in system and own is not None:
            signs_by_data.setdefault((kind, data), []).append(sign_of(own, values))
    assert ("ratings", "ml-1m") in signs_by_data
    for (kind, data), found in signs_by_data.items():
        said = "ahead of all these lines, in every form" in sections()[f"{data}: {kind}"]
        assert said == all(sign > 0 for sign in found)
