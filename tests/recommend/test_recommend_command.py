"""`fedrec recommend` as a person types it: lists, refusals with their exit codes, and the demo with
a server of its own."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedrec.cli.main import guarded
from fedrec.cli.recommend_demo import example_history, served_run
from fedrec.data.interactions import Interactions
from fedrec.errors import DataError
from fedrec.factorization.default_ratings.liked_ranker import LikedRanker
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.rankers import ranker_of
from fedrec.factorization.released import arrays_of, model_of
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.serving.bundle import FILE, Texts, read
from fedrec_client.clicks import read_clicks
from fedrec_client.public_model import best, released_model
from fedrec_server.serving.settings import validated
from fedrec_server.settings_tables import PublishTable
from tests.ports import free_port

from .conftest import ITEMS, PlainServer, write_bundle

Said = Callable[..., tuple[int, str, str]]


pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")


@pytest.fixture
def said(capsys: Any, tmp_path: Path, monkeypatch: Any) -> Said:
    """Exit code, stdout and stderr of `fedrec recommend ARGUMENTS`, with a state folder of the
    test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "read.txt").write_text("i1\ni2\ni3\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        via = () if {"--via", "--demo"} & {*arguments} else ("--via", "server")
        code = guarded(["recommend", *arguments, *via])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_a_list_its_promise_and_its_price_then_the_same_for_nothing(
    said: Said, served: PlainServer, real_server: Any, tmp_path: Path
) -> None:
    serving = real_server(served.paths[0])
    ask = ["--history", str(tmp_path / "read.txt"), "--server", serving.http]
    code, out, _ = said(*ask)
    assert code == 0
    for words in (
        "   1  Title ",
        "  10  Title ",
        "per click (replace)",
        "epsilon 5 of 20 per click (replace)",
        "person   1 fresh answer on 3 clicks: epsilon ",
        "per user (replace)",
        f"next     fedrec recommend --server {serving.http} --history {tmp_path / 'read.txt'} --via server --explain",
    ):
        assert words in out
    assert f"version {serving.newest}" in said(*ask, "--explain")[1]
    first, second = (
        json.loads(said(*ask, "--json", *more)[1]) for more in ([], ["--explain", "-k", "3"])
    )
    assert first["fresh"] is second["fresh"] is False
    assert second["items"] == first["items"][:3]
    assert first["guarantee"] == {
        **first["guarantee"],
        "epsilon": 5.0,
        "delta": 1e-5,
        "unit": "click",
        "neighbours": "replace",
    }
    assert set(json.loads(bytes.fromhex(second["left"][-1]["body"]))) == {
        "version",
        "coefficients",
        "k",
    }
    assert (tmp_path / "xdg" / "fedrec" / "recommend" / "ledger.sqlite").stat().st_mode & 0o077 == 0
    code, out, _ = said(*ask, "--via", "device", "--explain")
    assert out.count("Left this device: ") == out.count("GET /v1/models HTTP") == 1
    assert "cost     nothing" in out


def test_what_answers_are_for_the_person_is_said_and_limited_whatever_the_history(
    said: Said, served: PlainServer, real_server: Any, tmp_path: Path
) -> None:
    ask = ["--server", real_server(served.paths[0]).http, "--json"]
    mine = tmp_path / "read.txt"
    one = tmp_path / "one.txt"
    found = json.loads(said(*ask, "--history", str(mine))[1])["person"]
    assert (found["unit"], found["neighbours"], found["clicks"], found["limit"]) == (
        "user",
        "replace",
        3,
        "inf",
    )
    assert found["epsilon"] == pytest.approx(epsilon_of(3 * mu_for(5.0, 1e-5), 1e-5), rel=1e-9)
    assert found["epsilon"] < found["any_history"]
    one.write_text("i4\n")
    refusals = []
    for history in (mine, one):
        limited = [
            *ask,
            "--history",
            str(history),
            "--state",
            str(tmp_path / history.stem),
            "--max-user-epsilon",
        ]
        assert said(*limited, str(0.99 * found["any_history"]))[0] == 5
        refusals.append(said(*limited, str(0.99 * found["any_history"]))[2])
        assert said(*limited, str(1.01 * found["any_history"]))[0] == 0
    assert "per user (replace)" in refusals[0]
    assert refusals[0] == refusals[1]


def test_a_short_list_says_whether_asking_for_more_would_help(
    said: Said, served: PlainServer, real_server: Any, tmp_path: Path
) -> None:
    ask = ["--history", str(tmp_path / "read.txt"), "--server", real_server(served.paths[0]).http]
    whole = said(*ask, "-k", str(2 * ITEMS))[1]
    assert f"{ITEMS - 3} of {2 * ITEMS}: the catalogue has no others that were not seen." in whole
    assert "--candidates" not in whole
    assert "the catalogue has no others" in said(*ask, "-k", str(2 * ITEMS), "--via", "device")[1]


def test_items_that_the_catalogue_lacks_are_said_on_the_device_alone(
    said: Said, served: PlainServer, real_server: Any, tmp_path: Path
) -> None:
    serving = real_server(served.paths[0])
    (tmp_path / "unknown.txt").write_text("i1\nwhat\n")
    ask = ["--history", str(tmp_path / "unknown.txt"), "--server", serving.http]
    code, out, _ = said(*ask)
    assert code == 0
    assert (
        "1 of the clicks is of an item that this model does not have: it counts as an empty place"
        in out
    )
    found = json.loads(said(*ask, "--json", "--explain")[1])
    assert found["unknown"] == 1
    assert "what" not in found["left"][-1]["decoded"]


def test_refusals_are_a_line_of_cause_a_line_of_remedy_and_an_exit_code(
    said: Said, served: PlainServer, real_server: Any, tmp_path: Path
) -> None:
    history = str(tmp_path / "read.txt")
    nobody = f"grpc://127.0.0.1:{free_port('127.0.0.1')}"
    grpc = f"grpc://{real_server(served.paths[0]).grpc}"
    expected: dict[int, list[list[str]]] = {
        2: [
            ["--server", grpc],
            ["--history", history],
            ["--history", history, "--server", grpc, "--epsilon", "-1"],
            ["--history", history, "--server", grpc, "--category", "opera"],
            ["--history", history, "--server", grpc, "--pin", "abc"],
            ["some-run", "--history", history, "--server", grpc],
        ],
        3: [["--history", str(tmp_path / "none.txt"), "--server", grpc]],
        5: [["--history", history, "--server", grpc, "--epsilon", "21"]],
        6: [
            ["--history", history, "--server", grpc, "--state", history],
            ["--demo", str(tmp_path)],
        ],
        7: [["--history", history, "--server", nobody, "--timeout", "1"]],
    }
    for wanted, lines in expected.items():
        for line in lines:
            code, _, err = said(*line)
            assert (code, [part.split(":")[0] for part in err.splitlines()]) == (
                wanted,
                ["error", "remedy"],
            ), (line, err)


@pytest.mark.slow
def test_the_demo_goes_from_a_run_to_a_private_list_beside_the_exact_one(
    said: Said, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    version = write_bundle(tmp_path / "run" / FILE)
    code, out, err = said("--demo", str(tmp_path / "run"))
    assert code == 0
    assert err.startswith("warning: noise of epsilon 5 per click leaves about 8% of what 8 clicks")
    assert len(err.splitlines()) == 1
    for words in (
        "A made-up reader",
        "are in both lists",
        "cost nothing",
        "Left this device",
        version,
    ):
        assert words in out
    found = json.loads(said("--demo", str(tmp_path / "run"), "--json", "--epsilon", "15")[1])
    assert (
        len(found["items"]),
        len(found["exact"]),
        found["repeated_fresh"],
        found["answers"],
    ) == (10, 10, False, 1)
    assert not (tmp_path / "xdg").exists()


@pytest.mark.slow
def test_a_model_of_seeded_noise_is_called_an_experiment_and_served_with_demo_alone(
    said: Said, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    write_bundle(tmp_path / "run" / FILE, about={"noise": "seeded"})
    code, out, _ = said("--demo", str(tmp_path / "run"))
    assert code == 0
    assert "training EXPERIMENT: trained with seeded noise" in out
    found = json.loads(said("--demo", str(tmp_path / "run"), "--json")[1])
    assert (found["experiment"], found["training"]["noise"]) == (True, "seeded")
    write_bundle(tmp_path / "run" / FILE)
    found = json.loads(said("--demo", str(tmp_path / "run"), "--json")[1])
    assert (found["experiment"], found["training"]) == (False, {"epsilon": 5.0, "noise": "system"})


@pytest.mark.slow
def test_words_of_a_server_reach_no_terminal_as_commands(said: Said, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    texts = Texts.of([f"\x1b]0;owned\x07Title {j}" for j in range(ITEMS)])
    write_bundle(
        tmp_path / "run" / FILE,
        about={"name": "a\x1bname"},
        **{"titles.content": texts.content, "titles.ptr": texts.ptr},
    )
    out = said("--demo", str(tmp_path / "run"))[1]
    assert "Title" in out
    assert not {"\x1b", "\x07"} & set(out)


def test_the_demo_takes_the_newest_run_that_can_be_served(tmp_path: Path, monkeypatch: Any) -> None:
    import os

    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("old", "new", "without")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if name != "without":
            write_bundle(tmp_path / "runs" / name / FILE, seed=number)
            os.utime(tmp_path / "runs" / name / FILE, (1e9 + number, 1e9 + number))
    assert served_run(None) == Path("runs/new")
    bundle = read(Path("runs/new") / FILE)
    clicks = example_history(bundle)
    assert len({click.item for click in clicks.events}) == 8


@pytest.mark.parametrize("ranked", [False, True])
def test_a_factorisation_model_is_ranked_here_by_its_own_solve_with_ratings(
    ranked: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    model = DefaultModel(
        rng.normal(size=(ITEMS, 5)),
        rng.normal(size=ITEMS),
        np.full(ITEMS, 0.1),
        0.2,
        0.5,
        (1.0, 5.0),
    )
    if ranked:
        model = replace(
            model,
            ranker=LikedRanker.of(model, rng.uniform(1, 9, ITEMS), std=0.9, value_range=(1.0, 5.0)),
        )
    arrays: dict[str, Any] = {
        f"model.{name}": np.asarray(array) for name, array in arrays_of(model).items()
    }
    write_bundle(tmp_path / "b.safetensors", about={"family": "ratings", "liked": 4.0}, **arrays)
    bundle = read(tmp_path / "b.safetensors")
    assert isinstance(released_model(bundle), DefaultModel)
    events = [(3, 5.0), (50, 1.0), (7, None), (3, 4.0)]
    rows, scores = best(bundle, np.full(10, -1, np.int32), events, k=20, categories=0)
    zero = np.zeros(3, np.int32)
    history = Interactions.from_columns(
        zero,
        np.array([3, 7, 50]),
        np.array([4.0, 5.0, 1.0]),
        num_users=1,
        num_items=ITEMS,
        value_range=(1.0, 5.0),
    )
    solved = ranker_of(model_of(arrays_of(model), "default"))
    expected = (
        solved.item_vectors.astype(np.float64) @ solved.user_vectors(history)[0] + solved.offset
    )
    expected[[3, 7, 50]] = -np.inf
    assert rows.tolist() == np.argsort(-expected, kind="stable")[:20].tolist()
    np.testing.assert_allclose(scores, expected[rows], rtol=1e-10)


def test_the_settings_of_the_serving_page_load_and_its_python_is_the_real_interface(
    served: PlainServer, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    serve, publish, fetch = (
        tomllib.loads(text)
        for text in re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    )
    # both are of serving; what publishes is the server's
    assert validated(fetch | serve).tls is not None
    assert PublishTable(**publish["publish"]).tokens
    (python,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name in ("1193", "661", "914"):
        python = python.replace(f'"{name}"', f'"i{int(name) % ITEMS}"')
    shown = list[Any]()
    scope = {"print": lambda *words: shown.append(words)}
    python = python.replace(
        '"grpcs://recommender.example.org:7443", Path("state")', "SERVER, STATE"
    )
    exec(python, scope | {"SERVER": served, "STATE": tmp_path / "state"})
    assert len(shown) == 10


def test_a_history_is_text_a_table_parquet_or_a_pipe(tmp_path: Path) -> None:
    (text := tmp_path / "h.txt").write_text("i2\ni1\n")
    frame = pl.DataFrame(
        {"item": ["i1", "i2"], "timestamp": [datetime(2020, 1, d) for d in (2, 1)]}
    )
    frame.write_parquet(tmp_path / "h.parquet")
    frame.write_csv(tmp_path / "h.csv")
    os.mkfifo(idle := tmp_path / "pipe")
    with pytest.raises(DataError, match="nobody writes"):
        read_clicks(idle)
    end, begin = os.pipe()
    os.write(begin, text.read_bytes())
    os.close(begin)
    files = text, tmp_path / "h.parquet", tmp_path / "h.csv", Path(f"/dev/fd/{end}")
    for path in files:
        assert [one.item for one in read_clicks(path).events] == ["i2", "i1"]
    os.close(end)


@pytest.mark.parametrize("header", ["user,item", "reader_id,book,timestamp"])
def test_a_table_of_several_people_is_nobodys_history(header: str, tmp_path: Path) -> None:
    """In Python a frame of them is refused, too: the clicks of all would be sent as one person's."""
    columns = header.count(",") - 1
    table = tmp_path / "log.csv"
    table.write_text(f"{header}\nann,i1{',1' * columns}\nann,i2{',2' * columns}\n")
    assert [click.item for click in read_clicks(table).events] == ["i1", "i2"]
    with table.open("a") as file:
        file.write(f"bob,i3{',3' * columns}\n")
    with pytest.raises(DataError, match="line 4: expected the rows of one user, found 'bob'"):
        read_clicks(table)


def test_an_epsilon_that_no_query_spends_and_half_an_address_are_refused(
    said: Said, tmp_path: Path
) -> None:
    asked = ["--history", str(tmp_path / "read.txt"), "--server"]
    code, _, told = said(*asked, "http://127.0.0.1:1", "--via", "device", "--epsilon", "1")
    assert code == 2
    assert "--epsilon is of queries" in told
    for address in ("http://127.0.0.1:1?x=1", "http://127.0.0.1:1#x", "http://127.0.0.1:1/x"):
        code, _, told = said(*asked, address)
        assert code == 2
        assert "is no server" in told
