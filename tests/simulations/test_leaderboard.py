"""The leaderboard: rows only of runs that finished and are unchanged; ranks only among what may be
compared."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.main import guarded
from fedrec.errors import DataError, FedRecError, RunError, SettingsError
from fedrec.run.simulate import run
from fedrec.settings import load
from fedrec_simulations.leaderboard import drawing
from fedrec_simulations.leaderboard.board import sections
from fedrec_simulations.leaderboard.protocol import Protocol, protocols, read_protocol
from fedrec_simulations.leaderboard.published import published_rows
from fedrec_simulations.leaderboard.rows import FORMAT, Row, read_row, read_rows, write_row
from fedrec_simulations.leaderboard.submitting import command, read_run, submit

ASKED = [
    "recipe=dp-bias",
    "data.rating_range=[1,5]",
    "compare.als=false",
    "compare.epsilons=[2]",
    "privacy.noise=seeded",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a small log that differ in their seed, and a protocol for it."""
    place = tmp_path_factory.mktemp("leaderboard")
    lines = [
        f"u{user},i{(user * 7 + place_ * 3) % 25},{1 + (user + place_) % 5}"
        for user in range(120)
        for place_ in range(12)
    ]
    (place / "log.csv").write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    for seed in (1, 2):
        asked = [
            *ASKED,
            f"data.path={place / 'log.csv'}",
            f"seed={seed}",
            f"run.directory={place / 'runs'}",
        ]
        run(load(None, asked), name=f"seed{seed}", quiet=True)
    found = read_run(runs_of(place)[0])
    (place / "rows").mkdir()
    (place / "rows" / "small.toml").write_text(
        'name = "small"\ntitle = "a small log"\nlargest_delta = 1e-5\nmetric = "rmse"\nbest = '
        '"lowest"\nalso = ["mae"]\nleast_seeds = 2\n'
        '[data]\ntitle = "log.csv"\nsource = "made up"\n'
        f'[split]\nkind = "random"\nsha256 = "{found.data["split"]["sha256"]}"\n'
    )
    return place


def runs_of(place: Path) -> list[Path]:
    return sorted((place / "runs").glob("seed*"))


def a_row(value: float = 0.9, **changed: Any) -> dict[str, Any]:
    """A row as its file has it, of three seeds around `value`."""
    content = {
        "format": FORMAT,
        "source": "measured",
        "protocol": "small",
        "system": "ours",
        "data": {"name": "log.csv", "files": {"log.csv": "1" * 64}},
        "split": {"kind": "random", "seed": 1, "sha256": "2" * 64},
        "guarantee": {
            "unit": "user",
            "neighbours": "add/remove",
            "epsilon": 5.0,
            "delta": 1e-5,
            "established": True,
            "note": "",
        },
        "metrics": {"rmse": [value - 0.001, value, value + 0.001]},
        "seeds": [1, 2, 3],
        "noise": "system",
        "command": "fedrec simulate",
        "code": {"name": "theirs", "version": "2", "sha256": "3" * 64},
        "models": ["4" * 64] * 3,
    }
    return {**content, **changed}


def published(value: float, **promised: Any) -> dict[str, Any]:
    absent = {
        "seeds": [],
        "models": [],
        "code": None,
        "noise": "",
        "command": "",
        "split": {"kind": "random"},
    }
    guarantee = {**a_row()["guarantee"], **promised}
    return a_row(
        source="published",
        metrics={"rmse": [value]},
        guarantee=guarantee,
        reference="Table 1",
        **absent,
    )


PROTOCOL = Protocol.model_validate(
    {
        "name": "small",
        "title": "a small log",
        "data": {"title": "log.csv", "source": "made up"},
        "split": {"kind": "random"},
        "largest_delta": 1e-5,
        "metric": "rmse",
        "best": "lowest",
    }
)


def ranks(*contents: Mapping[str, Any]) -> list[tuple[str, str, int | None, str]]:
    found = sections([Row.model_validate(content) for content in contents], {"small": PROTOCOL})
    return [
        (section.words, entry.row.system, entry.rank, entry.unranked)
        for section in found
        for entry in section.entries
    ]


def test_runs_that_differ_in_their_seed_become_one_row_for_each_epsilon(place: Path) -> None:
    written = submit(runs_of(place), place / "rows", system="ours")
    rows = [read_row(path) for path in written]
    assert [row.guarantee.epsilon for row in rows] == [5.0, 2.0]
    for row, kept in zip(rows, ("epsilon 5", "epsilon 2"), strict=True):
        for number, folder in enumerate(runs_of(place)):
            [line] = [
                line
                for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
                if line["name"] == kept
            ]
            assert row.metrics["rmse"][number] == line["rmse"]
        assert (row.seeds, row.protocol, row.noise, len(set(row.models))) == (
            (1, 2),
            "small",
            "seeded",
            2,
        )
    means = place / "means-of-seeds"
    means.mkdir()
    (means / "seeds.json").write_text("{}")
    # the same row has the same file
    assert submit([means, *runs_of(place)], place / "rows", system="ours") == written
    found = sections(read_rows([place / "rows"]), protocols([place / "rows"]))
    assert [(section.epsilon, entry.rank) for section in found for entry in section.entries] == [
        (2.0, 1),
        (5.0, 1),
    ]


def test_the_command_of_a_row_is_the_scenario_and_names_no_path_of_this_machine(
    place: Path,
) -> None:
    scenario = read_run(runs_of(place)[0]).scenario
    words = shlex.split(command(scenario))
    assert words[:2] == ["fedrec", "simulate"]
    assert str(place) not in command(scenario)
    again = load(None, [word.replace("PATH/", f"{place}/") for word in words[3::2]])
    assert again.digest() == scenario.digest()


@pytest.mark.parametrize("key", ["word_vectors", "entity_vectors", "language_model"])
def test_the_command_of_a_row_of_news_names_no_path_of_this_machine(key: str) -> None:
    usual = load(None, [])
    news = usual.news.model_copy(update={key: "/home/me/vectors"})
    said = command(usual.model_copy(update={"news": news}))
    assert "/home/me" not in said
    assert f'news.{key}="PATH/vectors"' in said


def test_the_same_scenario_with_seeded_noise_leaves_the_same_models(
    place: Path, tmp_path: Path
) -> None:
    scenario = read_run(runs_of(place)[0]).scenario
    again = scenario.model_copy(
        update={"run": scenario.run.model_copy(update={"directory": str(tmp_path)})}
    )
    made = read_run(Path(run(again, name="again", quiet=True)["run_dir"]))
    assert [point.model for point in made.points] == [
        point.model for point in read_run(runs_of(place)[0]).points
    ]


@pytest.mark.parametrize(
    "name", ["ml1m", "ml20m", "convex_ssp_yelp2018", "privaterec_table2", "dp_cmf_figure1"]
)
def test_the_command_of_a_shipped_scenario_makes_the_same_scenario(name: str) -> None:
    scenario = load(
        Path(__file__).parents[2] / "simulations" / f"{name}.toml", ["data.path=PATH/here"]
    )
    again = load(None, shlex.split(command(scenario))[3::2])
    assert again.digest() == scenario.digest()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("result.json", "no finished run"),
        ("record.json", "no record"),
        ("trained.json", "was changed"),
        ("metrics.jsonl", "was changed"),
    ],
)
def test_a_run_that_lacks_a_file_is_refused(
    place: Path, tmp_path: Path, name: str, said: str
) -> None:
    folder = Path(shutil.copytree(runs_of(place)[0], tmp_path / "run"))
    (folder / name).unlink()
    with pytest.raises(RunError, match=said):
        submit([folder], tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    "name",
    [
        "result.json",
        "guarantee.json",
        "settings.json",
        "data.json",
        "code.json",
        "epsilon-5/plan.json",
    ],
)
def test_a_run_that_was_changed_is_refused(place: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(runs_of(place)[0], tmp_path / "run"))
    (folder / name).write_text((folder / name).read_text() + " ")
    with pytest.raises(RunError, match="was changed after"):
        submit([folder], tmp_path / "rows")


def test_a_run_of_two_versions_of_the_code_is_refused(place: Path, tmp_path: Path) -> None:
    from fedrec_simulations.leaderboard import record

    folder = Path(shutil.copytree(runs_of(place)[0], tmp_path / "run"))
    code = json.loads((folder / "code.json").read_text())
    (folder / "code.json").write_text(json.dumps({**code, "sha256": ["0" * 64, *code["sha256"]]}))
    record.finish(folder)
    with pytest.raises(RunError, match="went on with other code"):
        submit([folder], tmp_path / "rows")
    record.begin(folder)
    with pytest.raises(RunError, match="no record"):
        submit([folder], tmp_path / "rows")


def test_runs_that_do_not_belong_together_are_refused(place: Path, tmp_path: Path) -> None:
    first, second = runs_of(place)
    with pytest.raises(SettingsError, match="the same seed"):
        submit([first, first], tmp_path)
    other = Path(shutil.copytree(second, tmp_path / "other"))
    settings = json.loads((other / "settings.json").read_text())
    (other / "settings.json").write_text(
        json.dumps(
            {
                **settings,
                "model": {**settings["model"]},
                "recipe": "dp-bias",
                "evaluation": {**settings["evaluation"], "cutoffs": [5]},
            }
        )
    )
    from fedrec_simulations.leaderboard import record

    record.finish(other)
    with pytest.raises(SettingsError, match="another scenario"):
        submit([first, other], tmp_path)


def test_a_run_of_no_protocol_or_of_another_is_refused(place: Path, tmp_path: Path) -> None:
    first = runs_of(place)[0]
    with pytest.raises(SettingsError, match="no protocol has the split"):
        submit([first], tmp_path)
    with pytest.raises(SettingsError, match="there is no protocol 'ml-2m'"):
        submit([first], tmp_path, protocol="ml-2m")
    with pytest.raises(RunError, match="SHA-256 of the split"):
        submit([first], tmp_path, protocol="ml-1m")
    with pytest.raises(RunError, match="number of rows read is 1440, which must be 10000054"):
        submit([first], tmp_path, protocol="ml-10m")
    with pytest.raises(RunError, match=r"split\.kind is 'random', which must be 'held-out-users'"):
        submit([first], tmp_path, protocol="ml-20m")


def test_rows_are_ranked_only_beside_the_same_unit_neighbours_and_epsilon() -> None:
    promised = a_row()["guarantee"]
    click = {**promised, "unit": "click", "neighbours": "replace"}
    contents = [
        a_row(0.9),
        a_row(0.8, system="better"),
        a_row(0.5, system="per click", guarantee=click),
        a_row(0.6, system="at 20", guarantee={**promised, "epsilon": 20.0}),
        published(0.1, **click),
    ]
    assert ranks(*contents) == [
        ("ε = 5 per click (replace)", "ours", None, "published: not run here"),
        ("ε = 5 per click (replace)", "per click", 1, ""),
        ("ε = 5 per user (add/remove)", "better", 1, ""),
        ("ε = 5 per user (add/remove)", "ours", 2, ""),
        ("ε = 20 per user (add/remove)", "at 20", 1, ""),
    ]


def test_a_rank_is_shared_where_intervals_overlap() -> None:
    found = ranks(a_row(0.9), a_row(0.9005, system="close"), a_row(0.95, system="far"))
    assert [rank for _, _, rank, _ in found] == [1, 1, 3]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"guarantee": {**a_row()["guarantee"], "established": False}},
            "guarantee not established",
        ),
        ({"guarantee": {**a_row()["guarantee"], "delta": 1e-3}}, "δ above 1e-05"),
        ({"metrics": {"rmse": [0.1]}, "seeds": [1], "models": ["4" * 64]}, "1 of 3 seeds"),
    ],
)
def test_a_row_that_may_not_be_ranked_says_why_and_takes_nobody_s_rank(
    changed: dict[str, Any], why: str
) -> None:
    found = ranks(
        a_row(0.9),
        a_row(0.95, system="behind"),
        a_row(**{"value": 0.5, **changed, "system": "odd"}),
    )
    assert {(system, rank, said) for _, system, rank, said in found} == {
        ("ours", 1, ""),
        ("behind", 2, ""),
        ("odd", None, why),
    }


def test_rows_of_another_split_are_not_ranked_with_the_others() -> None:
    other = a_row(0.5, system="other", split={"kind": "random", "seed": 1, "sha256": "5" * 64})
    found = ranks(a_row(0.9), a_row(0.91, system="second"), other)
    assert {system: rank for _, system, rank, _ in found} == {"ours": 1, "second": 2, "other": None}
    with pytest.raises(DataError, match="another split than its protocol"):
        sections(
            [Row.model_validate(other)],
            {
                "small": PROTOCOL.model_copy(
                    update={"split": PROTOCOL.split.model_copy(update={"sha256": "2" * 64})}
                )
            },
        )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "fedrec-leaderboard/9"}, "format"),
        ({"sytem": "x"}, "there is no key sytem"),
        ({"metrics": {"rmse": [0.9]}}, "one value for each seed, found 1 for 3 seeds"),
        ({"metrics": {"rmse": [0.9, "nan", 0.9]}}, "must be finite"),
        ({"metrics": {}}, "metrics"),
        ({"seeds": [1, 1, 2]}, "each seed counts once"),
        ({"models": []}, "a model for each seed"),
        ({"code": None}, "says its code"),
        ({"command": ""}, "says its command"),
        ({"split": {"kind": "random", "seed": 1}}, "says its split.sha256"),
        ({"guarantee": {**a_row()["guarantee"], "epsilon": -1}}, "guarantee.epsilon"),
        ({"guarantee": {**a_row()["guarantee"], "unit": "person"}}, "guarantee.unit"),
        ({"guarantee": {**a_row()["guarantee"], "delta": 1}}, "guarantee.delta"),
        ({"source": "published"}, "says its reference"),
        ({"source": "published", "reference": "Table 1"}, "no seeds, models or code"),
    ],
)
def test_a_wrong_row_is_refused_with_its_file_and_key(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.row.json").write_text(json.dumps({**a_row(), **changed}))
    with pytest.raises(DataError, match=said) as found:
        read_rows([tmp_path])
    assert "a.row.json" in found.value.cause
    assert found.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", '"row"', "null", "\x00"])
def test_a_file_that_is_no_row_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.row.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.row\.json"):
        read_rows([tmp_path])


def test_a_row_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = write_row(tmp_path, Row.model_validate(a_row()))
    assert read_row(path).system == "ours"
    path.write_text(path.read_text().replace("0.901", "0.801"))
    with pytest.raises(DataError, match="was changed after it was written"):
        read_row(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nam = 1", "there is no key nam"),
        ("largest_delta = 2", "largest_delta"),
        ("x", "not TOML"),
        ('best = "big"', "best"),
    ],
)
def test_a_wrong_protocol_is_refused_with_its_key(tmp_path: Path, line: str, said: str) -> None:
    whole = (
        'name = "a"\ntitle = "a"\nmetric = "rmse"\ndata = {title = "a", source = "b"}\nsplit = '
        '{kind = "random"}\n'
    )
    usual = {"largest_delta": "largest_delta = 1e-5\n", "best": 'best = "lowest"\n'}
    (tmp_path / "a.toml").write_text(
        whole
        + "".join(text for key, text in usual.items() if not line.startswith(key))
        + line
        + "\n"
    )
    with pytest.raises(DataError, match=said):
        read_protocol(tmp_path / "a.toml")


def test_the_shipped_protocols_fit_the_shipped_scenarios() -> None:
    known = protocols()
    assert set(known) == {"ml-1m", "ml-10m", "ml-20m", "yelp2018", "amazon-book", "mind-small"}
    for name, file in {"ml-1m": "ml1m", "ml-10m": "ml10m", "ml-20m": "ml20m"}.items():
        scenario = load(Path(__file__).parents[2] / "simulations" / f"{file}.toml").model_dump()
        wanted = {
            "split.kind": known[name].split.kind,
            "split.seed": known[name].split.seed,
            **known[name].settings,
        }
        for key, value in wanted.items():
            table, _, last = key.partition(".")
            found = scenario[table][last]
            assert (list(found) if isinstance(found, tuple) else found) == value
        assert scenario["privacy"]["delta"] <= known[name].largest_delta


def test_published_results_are_shown_with_their_unit_and_have_no_rank() -> None:
    known = protocols()
    found = sections(published_rows(known), known)
    assert {(section.protocol.name, section.unit) for section in found} == {
        ("mind-small", "click"),
        ("ml-20m", "user"),
    }
    assert all(
        entry.rank is None and entry.row.reference for section in found for entry in section.entries
    )


def test_every_drawing_has_every_row_and_a_page_takes_no_markup_from_a_row(tmp_path: Path) -> None:
    rows = [
        Row.model_validate(content)
        for content in (a_row(0.9), a_row(0.95, system="<script>x</script>"), published(0.1))
    ]
    found = sections(rows, {"small": PROTOCOL})
    text, page = drawing.as_text(found), drawing.as_page(found)
    assert text.index("0.1000") < text.index("0.9000 ± 0.0025") < text.index("0.9500")
    assert "published: not run here" in text
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    for suffix in ("html", "csv", "json"):
        drawing.write(tmp_path / f"board.{suffix}", found)
    assert len((tmp_path / "board.csv").read_text().splitlines()) == 4
    content = json.loads((tmp_path / "board.json").read_text())
    assert [one["rank"] for one in content] == [None, 1, 2]
    with pytest.raises(FedRecError, match="suffix"):
        drawing.write(tmp_path / "board.pdf", found)


def test_the_command_line_writes_rows_and_draws_them(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    shutil.copy(place / "rows" / "small.toml", tmp_path / "rows")
    assert (
        guarded(
            [
                "bench",
                "submit",
                *map(str, runs_of(place)),
                "--output",
                str(tmp_path / "rows"),
                "--system",
                "ours",
            ]
        )
        == 0
    )
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(written) == 2
    assert all(path.is_file() for path in written)
    assert (
        guarded(
            [
                "bench",
                "leaderboard",
                str(tmp_path / "rows"),
                "--output",
                str(tmp_path / "board.html"),
            ]
        )
        == 0
    )
    assert "ε = 2 per user (add/remove)" in capsys.readouterr().out
    assert (tmp_path / "board.html").is_file()
    assert guarded(["bench", "leaderboard", str(tmp_path / "rows"), "--json"]) == 0
    assert [
        one["rank"] for one in json.loads(capsys.readouterr().out) if one["protocol"] == "small"
    ] == [1, 1]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("bench submit", 2, "submit needs run folders"),
        ("bench submit nowhere", 6, "holds no finished run"),
        ("bench leaderboard nowhere", 3, "nowhere is no folder"),
        ("bench quality x", 2, "quality takes no names"),
        ("bench leaderboard --protocol ml-1m", 2, "--protocol is not for leaderboard"),
        ("bench leaderboard --quick", 2, "--data and --quick are not for leaderboard"),
    ],
)
def test_a_wrong_line_is_refused(
    line: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(line.split()) == code
    assert said in capsys.readouterr().err


def test_the_tables_of_the_page_in_the_project_are_what_its_rows_make(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    page = tmp_path / "leaderboard.md"
    kept = (root / "docs" / "leaderboard.md").read_text()
    page.write_text(kept)
    drawing.write_between(page, root / "docs" / "results" / "leaderboard")
    assert page.read_text() == kept
    assert kept.count("| default | ") >= 4
