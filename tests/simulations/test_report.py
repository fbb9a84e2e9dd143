"""The report stands alone, is well formed, escapes what comes from data, and never shows an epsilon
without its unit."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedrec.evaluation.als import ITEM_ITEM
from fedrec.evaluation.controls import Verdict, compare, in_one_line
from fedrec.evaluation.ranking import ListStatistics
from fedrec.evaluation.ratings import RatingMetrics
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.report import charts, dots, findings, page, svg, wording
from fedrec.report.content import (
    BucketBars,
    BudgetLine,
    Convergence,
    CurvePoint,
    Departure,
    ExampleReport,
    Method,
    NeighbourCard,
    NeighbourList,
    Opinion,
    PrivacyCurve,
    Promise,
    ReportContent,
    Series,
    TextTable,
)
from fedrec.report.page import methods_table, print_result
from fedrec.report.svg import chosen
from fedrec.run.outcomes import Outcome
from fedrec.settings import load

EVIL = "<script>alert('x')</script> & \"Sons\""
PRIVATE = {epsilon: Guarantee(epsilon, 1e-5) for epsilon in (1, 5, 20)}
VOID = {"meta", "link", "br", "img", "input", "hr", "rect", "line", "path", "circle"}


def example(title: str = "Federated SSP2 on the planted data set") -> ReportContent:
    """Invented numbers of the right size for every part of the page."""
    return ReportContent(
        title=title,
        data="Planted ratings: 6,000 people, 3,500 items, 1,000,000 ratings from 1 to 5; random "
        "80/10/10 split, seed 1. "
        "Nothing here is about a real person.",
        promises=(
            Promise(PRIVATE[5], second_opinions=(Opinion("PLD", 5.0012), Opinion("RDP", 5.62))),
        ),
        methods=methods(),
        curve=curve(),
        lists_curve=dataclasses.replace(curve(), metric="NDCG@20", lower_is_better=False),
        answer=in_one_line(verdicts()),
        details=tuple(verdict.sentence for verdict in verdicts()),
        persons=(
            TextTable(
                "What this means for a person",
                "A click is not a person.",
                ("what", "ε per user (replace)"),
                (("all", "7.5"),),
            ),
        ),
        buckets=buckets(),
        budget=budget(),
        convergence=convergence(),
        departures=departures(),
        example=example_report(),
        neighbours=neighbours(),
        settings='recipe = "default"\nseed = 1\n\n'
        '[data]\nformat = "planted"\n\n[privacy]\nepsilon = 5.0  # per user (add/remove, number '
        "of users public)\ndelta = 1e-5",
        versions={"fedrec": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"},
        made="fedrec simulate planted --set privacy.epsilon=5",
    )


def methods() -> tuple[Method, ...]:
    """Without privacy, published, and ours at three epsilons."""
    return (
        Method("global mean", non_private(1e-5), {"RMSE": 1.117}),
        Method("item mean", non_private(1e-5), {"RMSE": 0.9794}),
        Method("item + user bias", non_private(1e-5), {"RMSE": 0.9089}),
        Method("non-private ALS", non_private(1e-5), {"RMSE": 0.8467}),
        Method("published recipe", PRIVATE[5], {"RMSE": 0.9921}, 40_800, 2_140_000),
        *(
            Method("federated SSP2", g, {"RMSE": r}, 40_800, 2_140_000, ours=True)
            for g, r in zip(PRIVATE.values(), (0.897, 0.871, 0.857), strict=True)
        ),
    )


def curve() -> PrivacyCurve:
    """Two recipes and what needs no privacy."""
    return PrivacyCurve(
        metric="test RMSE",
        lines={
            "published": tuple(
                CurvePoint(e, v, 0.004) for e, v in ((1, 1.12), (5, 0.99), (10, 0.955), (20, 0.93))
            ),
            "federated SSP2": tuple(
                CurvePoint(e, v, 0.002)
                for e, v in ((0.5, 0.92), (1, 0.897), (5, 0.871), (10, 0.861), (20, 0.857))
            ),
        },
        baselines=(
            ("global mean", 1.117),
            ("item mean", 0.979),
            ("item + user bias", 0.909),
            ("non-private ALS", 0.847),
        ),
        delta=1e-5,
        unit="user",
        neighbours="add/remove",
    )


def buckets() -> tuple[BucketBars, ...]:
    """From the rarest items to the most popular."""
    return (
        BucketBars(
            metric="test RMSE",
            methods={
                "federated SSP2, ε = 5 per user (add/remove, number of users public)": (
                    1.02,
                    0.97,
                    0.93,
                    0.89,
                    0.86,
                ),
                "non-private ALS": (1.01, 0.94, 0.90, 0.86, 0.84),
                "item + user bias": (1.04, 1.00, 0.95, 0.92, 0.90),
            },
        ),
    )


def budget() -> tuple[BudgetLine, ...]:
    """What each release gets."""
    return (
        BudgetLine("item counts", 0.02, 21.4),
        BudgetLine("item bias", 0.08, 8.1, "residual sums and counts"),
        *(
            BudgetLine(f"A and b, step {t}", 0.9 * s / 7, n)
            for t, s, n in ((1, 1, 6.3), (2, 2, 4.5), (3, 4, 3.2))
        ),
    )


def convergence() -> Convergence:
    """Round by round."""
    return Convergence(
        metric="validation RMSE",
        lines=(
            Series(
                "ε = 5 per user (add/remove, number of users public)",
                (0, 1, 2, 3),
                (0.931, 0.889, 0.876, 0.872),
            ),
            Series("non-private", (0, 1, 2, 3), (0.931, 0.862, 0.851, 0.848)),
        ),
        baselines=(("item + user bias", 0.91),),
    )


def departures() -> tuple[Departure, ...]:
    """What leaves a device."""
    return (
        Departure(
            "item counts",
            "165 items × 1",
            412,
            "one weight for each rated item, so that the sum counts ratings",
        ),
        Departure(
            "item bias",
            "165 items × 2",
            840,
            "how far each rating lies above or below the mean, clipped",
        ),
        Departure(
            "A and b, step 1 to 3",
            "165 items × 560",
            39_600,
            "the user's vector times itself and times each rating, scaled to norm 1",
        ),
    )


def example_report() -> ExampleReport:
    """One person, number by number and byte by byte."""
    integers = np.random.default_rng(0).integers(-16384, 16384, 16).astype(np.int16)
    return ExampleReport(
        who=(
            "User 17 of the generator, who “rated” five items. Before noise; the aggregator adds "
            "noise to the sum over all users."
        ),
        integers={
            "item ids": (12, 208, 977, 1410, 3390),
            "coefficients": (9121, 8004, 7230, -6411, 5120),
            "vector": tuple(map(int, integers)),
        },
        payload=np.concatenate(
            [[12, 208, 977, 1410, 3390, 9121, 8004, 7230, -6411, 5120], np.tile(integers, 3)]
        )
        .astype("<i4")
        .tobytes(),
    )


def neighbours() -> tuple[NeighbourCard, ...]:
    """Two items, one with a title that attacks the page."""
    return tuple(
        NeighbourCard(
            query,
            note,
            (
                NeighbourList(
                    "non-private ALS", tuple(zip(titles, (0.94, 0.91, 0.88, 0.86), strict=True))
                ),
                NeighbourList(
                    "federated SSP2, ε = 5 per user (add/remove, number of users public)",
                    tuple(zip(others, (0.92, 0.9, 0.81, 0.78), strict=True)),
                ),
            ),
        )
        for query, note, titles, others in (
            (
                "Planted: The Long Winter (1986)",
                "3,428 ratings",
                (
                    "Harbour Lights (1991)",
                    "Two Rooms (1984)",
                    "Snowblind (1979)",
                    "The Weir (1990)",
                ),
                (
                    "Harbour Lights (1991)",
                    "Snowblind (1979)",
                    "Under Glass (1999)",
                    "The Weir (1990)",
                ),
            ),
            (
                f"Planted: {EVIL} (2001)",
                "31 ratings",
                ("Orbit (1998)", "Red Dust (1996)", EVIL, "Beacon (1993)"),
                ("Orbit (1998)", "A Quiet Machine (2000)", "Beacon (1993)", "Salt (1988)"),
            ),
        )
    )


def verdicts() -> tuple[Verdict, ...]:
    """Better, not clearly better, and no better."""
    return (
        compare("RMSE", 0.871, "global mean", 1.117, stderr=0.002, lower_is_better=True),
        compare("RMSE", 0.871, "item + user bias", 0.909, stderr=0.002, lower_is_better=True),
        compare("RMSE", 0.871, "shuffled history", 0.986, stderr=0.002, lower_is_better=True),
        compare(
            "RMSE, rarest 20%", 1.02, "item + user bias", 1.04, stderr=0.02, lower_is_better=True
        ),
        compare("NDCG@20", 0.061, "shuffled history", 0.063, stderr=0.002, lower_is_better=False),
    )


class Page(HTMLParser):
    """Balance of tags, ids, visible text and what is loaded from elsewhere."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.headings: list[int] = []
        self.text: list[str] = []
        self.loads: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-labelledby":
                self.labels += (value or "").split()
            if name == "href" and (value or "").startswith("#"):
                self.labels.append((value or "")[1:])  # a link within the page leads to an id
            elif name in {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}:
                self.loads.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert tag not in VOID
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def test_tables_for_a_person_are_shown_and_escaped() -> None:
    table = TextTable(
        "For a person", "a <lead>", ("what", "ε per user (replace)"), (("training, <b>", "7.5"),)
    )
    shown = page.render(ReportContent("title", "data", persons=(table,)))
    assert "a &lt;lead&gt;" in shown
    assert "training, &lt;b&gt;" in shown
    assert '<td class="num">7.5</td>' in shown


def test_page_needs_nothing_from_anywhere() -> None:
    html = page.render(example())
    assert Page(html).loads == []
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(|<script|<link", html.replace("&lt;script", "")
    )


@pytest.mark.parametrize(
    "content",
    [example(), ReportContent("Only a title", "and a line")],
    ids=["everything", "nothing"],
)
def test_tags_balance_ids_are_unique_labels_exist_and_headings_skip_no_level(
    content: ReportContent,
) -> None:
    parsed = Page(page.render(content))
    assert len(parsed.ids) == len(set(parsed.ids))
    assert set(parsed.labels) <= set(parsed.ids)
    assert parsed.headings[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(parsed.headings))
    assert parsed.tags.count("h1") == parsed.tags.count("main") == 1


@pytest.mark.parametrize(
    "part",
    [
        f.name
        for f in dataclasses.fields(ReportContent)
        if f.name not in {"title", "data", "seeded"}
    ],
)
def test_every_part_may_be_left_out_and_its_section_goes_with_it(part: str) -> None:
    whole = example()
    default = next(f for f in dataclasses.fields(ReportContent) if f.name == part)
    empty = default.default if default.default is not dataclasses.MISSING else {}
    without = page.render(dataclasses.replace(whole, **{part: empty}))
    Page(without)
    assert len(without) < len(page.render(whole))


def test_every_epsilon_stands_beside_its_unit_and_neighbours() -> None:
    text = re.sub(r"\s+", " ", "".join(Page(page.render(example())).text))
    places = [match.start() for match in re.finditer("ε|epsilon", text)]
    assert len(places) > 15
    for at in places:
        near = text[at : at + 60]
        assert (
            "(add/remove" in near
            or "(replace)" in near
            or "privacy.epsilon" in text[at - 8 : at + 8]
        ), f"no unit in {near!r}"


def test_titles_from_data_are_escaped_everywhere() -> None:
    content = dataclasses.replace(
        example(title=EVIL),
        data=EVIL,
        settings=EVIL,
        methods=(Method(EVIL, non_private(1e-5), {EVIL: 1.0}),),
        versions={EVIL: EVIL},
    )
    curve = dataclasses.replace(
        example().curve, metric=EVIL, lines={EVIL: (CurvePoint(1, 1),)}, baselines=((EVIL, 2.0),)
    )  # type: ignore[type-var]
    html = page.render(
        dataclasses.replace(content, curve=curve, buckets=(BucketBars(EVIL, {EVIL: (1.0, 2.0)}),))
    )
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 10
    assert EVIL in "".join(Page(html).text)


def test_a_guarantee_that_is_not_established_says_so_wherever_it_appears() -> None:
    doubtful = Guarantee(1.0, 1e-5, established=False, note="the proof covers one update of many")
    html = page.render(
        ReportContent(
            "t",
            "d",
            promises=(Promise(doubtful),),
            methods=(Method("as printed", doubtful, {"RMSE": 1.0}),),
        )
    )
    assert html.count("the proof covers one update of many") == 2
    assert html.lower().count("not established") == 3


@pytest.mark.parametrize(
    ("guarantee", "seeded", "answer"),
    [
        (PRIVATE[5], False, "ε = 5 per user (add/remove, number of users public), δ = 10⁻⁵, for"),
        (
            PRIVATE[5],
            True,
            "The noise is seeded, an experiment: whoever knows the seed can remove it",
        ),
        (non_private(1e-5), True, "none. The model was trained without noise."),
        (
            dataclasses.replace(PRIVATE[5], established=False, note="invented"),
            False,
            "Not established.",
        ),
    ],
)
def test_the_page_says_first_what_the_model_is_worth_and_whether_it_is_private(
    guarantee: Guarantee, seeded: bool, answer: str
) -> None:
    written = page.render(
        dataclasses.replace(example(), promises=(Promise(guarantee),), seeded=seeded)
    )
    first = "".join(Page(written.partition("</header>")[0] + "</header></main></body></html>").text)
    first = first.replace("\N{NO-BREAK SPACE}", " ")
    assert answer in first
    assert "RMSE: better than global mean and item + user bias" in first
    assert first.index("RMSE: better than") < first.index("Guarantee: ")


def test_results_come_before_everything_else_and_comparisons_lie_in_a_fold() -> None:
    written = page.render(example())
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", written)
    assert titles[:2] == ["What privacy costs", "What privacy costs: lists"]
    assert titles[2] == "Methods side by side"
    fold = written[written.index("Every comparison") :].partition("</details>")[0]
    assert all(one.sentence in fold for one in verdicts())
    single = page.render(dataclasses.replace(example(), curve=None, lists_curve=None))
    first = single[single.index('<h2 id="methods">') :]
    assert first.index("<figure>") < first.index("<table>"), "a chart of the methods instead"


def test_a_caption_says_what_is_drawn_alone() -> None:
    bare = dataclasses.replace(
        curve(), lines={"fedrec default": (CurvePoint(1, 0.9), CurvePoint(5, 0.8))}, baselines=()
    )
    written = page.render(dataclasses.replace(example(), curve=bare, lists_curve=None))
    assert "vertical bars" not in written
    assert "Dashed levels" not in written
    assert "vertical bars" in page.render(example())
    alone = tuple(dataclasses.replace(card, lists=card.lists[:1]) for card in example().neighbours)
    assert "in bold" not in page.render(dataclasses.replace(example(), neighbours=alone))


def test_a_method_has_one_colour_on_every_chart() -> None:
    names = ["popularity", "non-private ALS", "item + user bias", "global mean", "item mean"]
    shown = [names, [names[1], "fedrec default"], ["fedrec mine", *names], names[::-1]]
    found = [chosen(own) for own in shown]
    for name in names:
        assert len({own[name][0] for own in found if name in own}) == 1
    assert found[1]["fedrec default"] == found[2]["fedrec mine"] == (1, False)


def test_a_second_accountant_below_the_first_is_called_a_disagreement() -> None:
    promise = Promise(Guarantee(5.0, 1e-5), second_opinions=(Opinion("PLD", 4.5),))
    assert "DISAGREES" in page.render(ReportContent("t", "d", promises=(promise,)))
    assert wording.opinion(promise, Opinion("PLD", 5.001)) == "agrees"
    assert wording.opinion(promise, Opinion("RDP", 5.5)) == "over-estimates by 10.0%"
    assert "DISAGREES" in wording.opinion(
        promise, Opinion("GDP of what was drawn", 5.5, exact=True)
    )
    assert "DISAGREES" in wording.opinion(promise, Opinion("PLD", math.nan))
    assert wording.opinion(promise, Opinion("PLD", math.inf)) == "not computed at delta = 1e-05"


def test_a_result_no_better_than_its_control_is_on_the_page() -> None:
    text = "".join(Page(page.render(example())).text)
    assert "NDCG@20: not shown to be personal" in text
    assert "is no better than shuffled history" in text
    assert "not clearly better" in text
    assert "NO BETTER" not in text


def test_page_is_written_whole_in_utf8_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    page.write(path, example())
    assert path.read_text(encoding="utf-8") == page.render(example())
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_points_lie_where_their_epsilon_and_value_say() -> None:
    curve = PrivacyCurve(
        "RMSE",
        {"a": (CurvePoint(1, 2.0), CurvePoint(10, 1.5), CurvePoint(100, 1.0))},
        (),
        1e-5,
        "user",
        "add/remove",
    )
    dots = [
        tuple(map(float, match))
        for match in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', charts.privacy_curve(curve))
    ][:3]
    # a factor of ten each
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.02)
    assert dots[1][1] - dots[0][1] == pytest.approx(dots[2][1] - dots[1][1], abs=0.02)
    assert dots[2][1] > dots[0][1]  # lower values lie lower


def test_dots_lie_where_their_values_are_and_the_axis_does_not_begin_at_zero() -> None:
    drawn = dots.bucket_dots(BucketBars("RMSE", {"a": (1.0, 0.5, math.nan, 0.75, 0.625)}), name="b")
    places = [
        float(at) for at in re.findall(r'<circle cx="([\d.]+)"', drawn.partition("</svg>")[0])
    ]
    assert len(places) == 4, "what was not measured has no dot"
    assert places[2] - places[1] == pytest.approx((places[0] - places[1]) / 2, abs=0.1)
    assert places[3] - places[1] == pytest.approx((places[0] - places[1]) / 4, abs=0.1)
    assert ">0.0<" not in drawn
    assert dots.bucket_names(5) == ("rarest 20%", "20–40%", "40–60%", "60–80%", "most popular 20%")


def test_charts_of_one_point_or_equal_values_are_drawn() -> None:
    curve = PrivacyCurve("RMSE", {"a": (CurvePoint(5, 0.9),)}, (), 1e-5, "user", "add/remove")
    assert "nan" not in charts.privacy_curve(curve)
    assert "nan" not in charts.convergence(Convergence("RMSE", (Series("a", (0, 1), (0.9, 0.9)),)))


def test_a_curve_without_a_finite_epsilon_and_ragged_series_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline"):
        PrivacyCurve("RMSE", {"a": (CurvePoint(math.inf, 1.0),)}, (), 1e-5, "user", "add/remove")
    with pytest.raises(ValueError, match="2 x and 1 y"):
        Series("a", (0, 1), (1.0,))
    with pytest.raises(ValueError, match="same number"):
        BucketBars("RMSE", {"a": (1.0,), "b": (1.0, 2.0)})


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
def test_labels_are_moved_apart_in_order_and_stay_inside(wanted: list[float]) -> None:
    sizes = [12.0 + 6 * (i % 3) for i in range(len(wanted))]
    placed = svg.spread(wanted, sizes, low=0, high=300)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert min(placed) >= -1e-6
    assert max(p + size for p, size in zip(placed, sizes, strict=True)) <= 300 + 1e-6
    assert all(placed[b] - placed[a] >= sizes[a] - 1e-6 for a, b in itertools.pairwise(order))


@given(low=st.floats(-1e3, 1e3), span=st.floats(1e-3, 1e3))
def test_ticks_are_few_inside_and_evenly_spaced(low: float, span: float) -> None:
    marks = svg.ticks(low, low + span)
    assert 2 <= len(marks) <= 11
    assert low - 1e-6 <= marks[0]
    assert marks[-1] <= low + span + 1e-6
    assert np.diff(marks) == pytest.approx(np.diff(marks)[0])


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (40_800, "40.8 kB"),
        (999_900, "1 MB"),
        (2_140_000, "2.14 MB"),
        (None, "–"),
    ],
)
def test_sizes_in_words(count: int | None, words: str) -> None:
    assert wording.size(count) == words


@pytest.mark.parametrize(
    ("value", "words"), [(1e-5, "10⁻⁵"), (2.5e-6, "2.5·10⁻⁶"), (0.001, "0.001"), (2e12, "2·10¹²")]
)
def test_powers_in_words(value: float, words: str) -> None:
    assert wording.power(value) == words


def test_plain_words_state_the_factor_the_unit_and_the_chance() -> None:
    words = wording.in_plain_words(Guarantee(1.0, 1e-5))
    assert "2.72 times" in words
    assert "any one person been left out" in words
    assert "10⁻⁵" in words
    assert "exchanged" in wording.in_plain_words(Guarantee(1.0, 1e-5, "click", "replace"))
    assert "Nothing is promised" in wording.in_plain_words(non_private(1e-5))


def test_terminal_table_shows_each_method_with_its_guarantee_and_bytes() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    content = dataclasses.replace(
        example(), methods=(*example().methods, Method("odd [red]name[/]", non_private(1e-5), {}))
    )
    console.print(methods_table(content))
    lines = console.export_text().splitlines()
    ours = next(line for line in lines if "0.8710" in line)
    assert " 5 " in ours
    assert "ε per user (add/remove)" in lines[0]
    assert "40.8 kB" in ours
    assert "2.14 MB" in ours
    assert any("odd [red]name[/]" in line for line in lines)
    assert sum(" – " in line for line in lines) == 5


@pytest.mark.parametrize("width", [60, 80])
def test_no_number_of_the_terminal_table_is_cut_off_where_the_terminal_is_narrow(
    width: int,
) -> None:
    values = dict.fromkeys(("RMSE", "MAE", "NDCG@20", "recall@20"), 0.1234)
    ours = dataclasses.replace(example().methods[-1], metrics=values)
    content = dataclasses.replace(example(), methods=(ours,))
    file = io.StringIO()
    print_result(Console(width=width, file=file), content)
    (row,) = (line for line in file.getvalue().splitlines() if "0.1234" in line)
    assert row.count("0.1234") == 4
    assert row.rstrip().endswith("2.14 MB")
    assert "received" in file.getvalue()


def test_a_terminal_gets_one_table_one_verdict_and_the_guarantee_once() -> None:
    file = io.StringIO()
    print_result(Console(width=120, file=file), example())
    said = file.getvalue()
    assert said.count("add/remove, number of users public") == 1
    assert said.count("better than") == said.count("RMSE: better than") + 1
    assert "NDCG@20: not shown to be personal" in said
    print_result(Console(width=120, file=file), example(), details=True)
    assert all(one.sentence in file.getvalue() for one in verdicts())


def test_the_published_recipe_beside_a_run_is_named_as_one_whose_settings_a_rule_chose() -> None:
    """Of a run as far as names go: one training of ours and one of theirs at two epsilons."""
    outcome = Outcome(RatingMetrics(0.9, 0.7, 0.001, 100, 10), (), None, ())
    trained = {
        e: SimpleNamespace(
            rounds=[], prepared=SimpleNamespace(plan=SimpleNamespace(guarantee=PRIVATE[e]))
        )
        for e in (1, 5)
    }
    run = SimpleNamespace(
        scenario=load(None),
        split=SimpleNamespace(train=SimpleNamespace(kind="ratings")),
        rivals={},
        trained=trained,
        main=trained[5],
        terms_bytes=100,
        outcomes=dict.fromkeys(trained, outcome),
        published={e: (t, outcome) for e, t in trained.items()},
        simple={},
    )
    named = [method.name for method in findings._methods(run)]  # type: ignore[arg-type]
    assert named == ["published recipe, settings by rule"] * 2 + ["fedrec default"] * 2
    assert [method.bytes_down for method in findings._methods(run)] == [100] * 4  # type: ignore[arg-type]
    curve = findings._curve(run, "rmse")  # type: ignore[arg-type]
    assert curve is not None
    assert set(curve.lines) == {"fedrec default", "published recipe, settings by rule"}


def test_lists_are_said_to_be_popular_beside_each_epsilon_and_beside_exact_ones() -> None:
    lists = ListStatistics(20, 0.25, 0.5, 90.0, 30.0, 1.0, 0.4)
    alone = dataclasses.replace(lists, diversity=math.nan)
    with_lists, with_one, without = (
        SimpleNamespace(ranking=found and SimpleNamespace(lists={20: found}))
        for found in (lists, alone, None)
    )
    run = SimpleNamespace(
        scenario=load(None, ["evaluation.cutoffs=[10, 20]"]),
        split=SimpleNamespace(train=SimpleNamespace(kind="clicks")),
        outcomes={1.0: with_lists, 5.0: with_one, math.inf: without},
        rivals={ITEM_ITEM: with_lists, "popularity": with_lists},
    )
    said = list(findings._popular_lists(run))  # type: ignore[arg-type]
    assert [one.partition(":")[0] for one in said] == [
        "Lists of 20, epsilon 1",
        f"Lists of 20, {ITEM_ITEM}",
    ]
    assert "a listed item has 90 clicks on average, an item of a training row 30" in said[0]
    assert "25% of the catalogue is listed, and two people share 60% of their lists" in said[0]
