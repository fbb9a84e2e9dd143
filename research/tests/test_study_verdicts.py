"""Every verdict of docs/study.md, made again from the kept rows by other code: numpy, the table of
Student's t, and the names of the two lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec_research.claims import dp_cmf, listed
from fedrec_research.claims.am_ssp import RESAMPLED
from fedrec_research.claims.claim import Evidence

DOCS = Path(__file__).parents[1] / "docs"
T_975 = {1: 12.706205, 2: 4.302653, 4: 2.776445}
"""97.5% quantiles of Student's t by degrees of freedom: two, three and five seeds."""
CLAIMS = {
    "On ratings adaptive weights beat tail-biased sampling.": (
        "ada-dpals",
        "dpals-tail",
        "ratings",
    ),
    "On clicks adaptive weights beat tail-biased sampling.": ("ada-dpals", "dpals-tail", "clicks"),
    "On ratings tail-biased sampling beats uniform sampling.": (
        "dpals-tail",
        "dpals-uniform",
        "ratings",
    ),
    "On clicks tail-biased sampling beats uniform sampling.": (
        "dpals-tail",
        "dpals-uniform",
        "clicks",
    ),
    "On ratings AM-SSP beats AM-DPSGD.": ("am-ssp", "am-dpsgd", "ratings"),
    "On ratings AM-SSP beats DP-CMF with the same features.": ("am-ssp", "dp-cmf", "ratings"),
    "On clicks AM-SSP beats DP-CMF with the same features.": ("am-ssp", "dp-cmf", "clicks"),
    "On ratings features help AM-SSP: it beats DPALS with ids alone.": (
        "am-ssp",
        "ada-dpals",
        "ratings",
    ),
    "On clicks features help AM-SSP.": ("am-ssp", "ada-dpals", "clicks"),
    "On ratings features help AM-DPSGD: it beats DPALS with ids alone.": (
        "am-dpsgd",
        "dpals-uniform",
        "ratings",
    ),
    "On ratings item metadata helps.": ("dp-cmf", "ada-dpals", "ratings"),
}
SAME_MODEL = {"ada-dpals", "dpals-tail", "dpals-uniform", "am-ssp"}
"""Lines of the main tables that fit the model of the lines on one model, by a longer search."""
OUTCOMES = ("held", "in part", "did not hold")


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
    return OUTCOMES[0] if won == len(found) else OUTCOMES[1] if won else OUTCOMES[2]


STUDY = (DOCS / "study.md").read_text()


def sections() -> dict[str, str]:
    """By heading, whatever its depth."""
    return {part.partition("\n")[0]: part for part in re.split(r"\n##+ ", STUDY)[1:]}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_claim_stands_where_its_rows_put_it(words: str) -> None:
    """By both forms, and by the longest searches: where they disagree, in part."""
    sound = list(signs(*CLAIMS[words]))
    longest = list(signs(*CLAIMS[words], longest=True))
    printed = list(signs(*CLAIMS[words], form="as printed"))
    decided = {outcome(found) for found in (sound, longest, printed) if found}
    expected = decided.pop() if len(decided) == 1 else OUTCOMES[1]
    (row,) = [line for line in STUDY.splitlines() if f"| {words} | Made sound: " in line]
    assert row.endswith(f"| **{expected}** |")


def of_figure(name: str, series: str, x: float, metric: str = "rmse") -> list[float]:
    """By seed, the larger the better, one point of a kept figure."""
    content = json.loads((DOCS.parent / "results" / "figures" / f"{name}.json").read_text())
    ((_, found),) = content["figures"].items()
    (row,) = [
        row
        for row in found["rows"]
        if (row["metric"], row["series"], row["x"]) == (metric, series, x)
    ]
    assert row["seeds"] == [1, 2, 3]
    return [-value if metric.startswith("rmse") else value for value in row["each"]]


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
    return OUTCOMES[0] if not any(lost) else OUTCOMES[2] if all(lost) else OUTCOMES[1]


def sign_at_all(name: str, pairs: list[tuple[tuple[str, Any], tuple[str, Any]]], **of: str) -> str:
    return outcome(
        [sign_of(*(of_figure(name, series, x, **of) for series, x in pair)) for pair in pairs]
    )


OF_FIGURES: dict[str, Callable[[], str]] = {
    "Noise drawn once (SSP2) beats noise drawn in every step (SSP1). (4.4)": noised_once_again,
    "1,000 public users do what the best metadata does. (4.2.2)": as_good_again,
    "All sides together are ahead of public users alone. (4.2)": lambda: sign_at_all(
        "dp-cmf-figure1", [(("all sides", e), ("public users, raw", e)) for e in (1, 5, 10, 20)]
    ),
    "Public users, as clicks, are ahead of the other single sources. (4.2)": lambda: sign_at_all(
        "dp-cmf-figure1",
        [
            (("public users, binary", e), (other, e))
            for other in ("similar items", "metadata")
            for e in (1, 5, 10, 20)
        ],
    ),
    "The cast alone brings most of what all metadata bring. (4.2.2)": lambda: sign_at_all(
        "dp-cmf-figure3", [(("cast", e), ("DPALS (no sides)", e)) for e in (1, 5, 10, 20)]
    ),
    "At ε = 1, in buckets 2 to 4, metadata gain most. (4.2.1)": lambda: sign_at_all(
        "dp-cmf-figure1",
        [
            (("metadata", b), (other, b))
            for other in ("similar items", "public users, binary")
            for b in (2, 3, 4)
        ],
        metric="rmse in bucket, epsilon 1",
    ),
    "A larger μ is better on the two rarest fifths of the films. (Sec. 5)": lambda: sign_at_all(
        "ada-dpals-figure4",
        [tuple((f"Ada-DPALS (mu = {mu}), epsilon = 1", b) for mu in ("1", "1/4")) for b in (0, 1)],
    ),
    "μ = 1 is clearly worse. (Sec. 5)": lambda: sign_at_all(
        "ada-dpals-figure3",
        [
            tuple((f"{panel}epsilon = {e}", mu) for mu in (0.25, 1))
            for panel in ("", "DPSGD, ")
            for e in (5, 10, 20)
        ],
    ),
    "On ratings AM-SSP is far ahead of DP-ALS on rare films. (E.3)": lambda: sign_at_all(
        "am-ssp-figure9",
        [
            tuple((f"{name}, epsilon = {e}", b) for name in ("AM-SSP", "DP-ALS (id only)"))
            for e in (1, 5, 20)
            for b in (0, 1)
        ],
    ),
    "At ε = 1 its nearest neighbours overlap more with those of ALS. (D.3)": lambda: sign_at_all(
        "ada-dpals-figure10",
        [(("Ada-DPALS (mu = 1/3)", b), ("DPALS (tail)", b)) for b in range(5)],
        metric="share",
    ),
}


@pytest.mark.parametrize("words", OF_FIGURES)
def test_a_claim_that_a_figure_decides_stands_where_its_points_put_it(words: str) -> None:
    page = (DOCS / "figures.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {words} |")]
    assert row.endswith(f"| **{OF_FIGURES[words]()}** |")


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
        forms = dict(zip(RESAMPLED, (on_all, on_some), strict=True))
        values = {
            (f"epsilon = {e}, {form}", n): each
            for form, pair in forms.items()
            for e in (1, 5, 20)
            for n, each in zip((1, 16), pair, strict=True)
        }
        return judged("Noise drawn once", points("am-ssp/figure4", values))

    assert found((LOW, HIGH), (LOW, HIGH)) == "held"
    assert found((LOW, LOW), (LOW, HIGH)) == "in part"
    assert found((HIGH, LOW), (LOW, LOW)) == "did not hold"
    assert judged("Noise drawn once", {}) == "not tested"


def judged(words: str, figures: dict[str, Any]) -> str:
    (claim,) = [claim for claim in listed.CLAIMS if claim.words.startswith(words)]
    return claim.test.judge(Evidence((), figures)).outcome


@pytest.mark.parametrize(("behind", "expected"), [(0, "held"), (2, "in part"), (4, "did not hold")])
def test_comparable_fails_only_where_public_users_are_behind(behind: int, expected: str) -> None:
    epsilons = (1.0, 5.0, 10.0, 20.0)
    people = {("public users, raw, 1000", e): HIGH if k < behind else LOW
              for k, e in enumerate(epsilons)}  # fmt: skip
    films = {("metadata", e): LOW for e in epsilons}
    both = points("dp-cmf/figure5", people) | points("dp-cmf/figure1", films)
    assert judged("1,000 public users", both) == expected
    assert judged("1,000 public users", points("dp-cmf/figure5", people)) == "not tested"
    one = {
        name: [{**row, "seeds": [1], "each": row["each"][:1]} for row in rows]
        for name, rows in both.items()
    }
    assert judged("1,000 public users", one) == "not tested"  # one seed has no interval
    assert len(dp_cmf.EPSILONS) == len(epsilons)


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
    people = f"{data}, where half of the people are public"
    part = sections()[people if group == "people" else f"{data}: {kind}"]
    said = "**The default is ahead of every other system measured here" in part
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
    for (_, data), found in signs_by_data.items():
        said = "ahead of all these lines, in every form" in sections()[f"{data}, on one model"]
        assert said == all(sign > 0 for sign in found)
