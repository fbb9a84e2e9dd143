"""From the file on: one person's rows in or out of the *file*, and what everybody else's rows
become, by the ids of the file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.clicklog import ClickLog, ClickLogProtocol, click_log
from fedrec.data.impressions import News
from fedrec.data.interactions import Catalogue, Dataset, Interactions
from fedrec.data.keyed_hash import id_words
from fedrec.data.news_files import read_mind
from fedrec.data.rated_news import read_rated_films
from fedrec.data.splits import Split
from fedrec.factorization.facts import public_facts
from fedrec.federation.messages import ClientStep, Question, train
from fedrec.federation.reports import ExactSums
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario, validated

Rows = dict[str, set[tuple[str, float, int]]]
"""The rows of each user, by the ids of the file."""


@dataclass(frozen=True)
class Row:
    """One line of a file."""

    user: str
    item: str
    rating: float
    time: int


def log_of(seed: int, *, users: int = 60, items: int = 25) -> list[Row]:
    """Ratings in no order; ids are texts or numbers with gaps, and some users' times repeat."""
    rng = np.random.default_rng(seed)
    rows = [
        Row(
            f"{7 * k + 3}",
            f"{3 * int(j) + 1}",
            float(rng.integers(1, 6)),
            int(1_000_000 + rng.integers(1, 90) * 1_000),
        )
        for k in range(users)
        for j in rng.choice(items, rng.integers(1, 18), replace=False)
    ]
    return [rows[place] for place in rng.permutation(len(rows))]


def by_user(events: Interactions, numbers: np.ndarray | None, catalogue: Catalogue) -> Rows:
    """Rows by external ids; `numbers` are the data set's numbers of the users, where a part has
    others."""
    owners = events.users if numbers is None else numbers[events.users]
    times = np.zeros(len(events), np.int64) if events.times is None else events.times
    found: Rows = {}
    for user, item, value, time in zip(
        owners.tolist(), events.items.tolist(), events.values.tolist(), times.tolist(), strict=True
    ):
        found.setdefault(catalogue.user_ids[user], set()).add(
            (catalogue.item_ids[item], value, time)
        )
    return found


def parts_of(split: Split, dataset: Dataset) -> Iterator[tuple[str, Rows]]:
    yield "train", by_user(split.train, split.train_users, dataset.catalogue)
    for name, fold in (("validation", split.validation), ("test", split.test)):
        yield (
            f"{name} history",
            by_user(
                fold.history,
                fold.users if fold.users is not None else split.train_users,
                dataset.catalogue,
            ),
        )
        yield f"{name} targets", by_user(fold.targets, fold.users, dataset.catalogue)


def written(folder: Path, form: str, rows: list[Row]) -> Path:
    """One file (or two, with the items) of the rows in a format."""
    folder.mkdir()
    if form == "ml-1m":
        (folder / "ratings.dat").write_text(
            "".join(f"{r.user}::{r.item}::{r.rating:g}::{r.time}\n" for r in rows)
        )
        (folder / "movies.dat").write_text(
            "".join(f"{3 * j + 1}::Film {j} (1990)::Drama\n" for j in range(25)), "latin-1"
        )
        return folder
    if form == "clicks-lists":
        halves = {
            "train.txt": [r for r in rows if r.time % 2_000],
            "test.txt": [r for r in rows if not r.time % 2_000],
        }
        for name, part in halves.items():
            mine: dict[str, list[str]] = {}
            for row in part:
                mine.setdefault(row.user, []).append(row.item)
            (folder / name).write_text(
                "".join(f"{user} {' '.join(found)}\n" for user, found in mine.items())
            )
        return folder
    (folder / "items.csv").write_text(
        "item,title\n" + "".join(f"{3 * j + 1},Thing {j}\n" for j in range(25))
    )
    (folder / "log.csv").write_text(
        "user,item,rating,time\n"
        + "".join(f"{r.user},{r.item},{r.rating:g},{r.time}\n" for r in rows)
    )
    return folder / "log.csv"


def scenario_of(
    path: Path, form: str, split: dict[str, object], data: dict[str, object]
) -> Scenario:
    columns = {"timestamp": "time", "rating": "rating"}
    table = (
        {
            "columns": columns,
            "rating_range": [1, 5],
            "features_path": str(path.parent / "items.csv"),
        }
        if form == "table"
        else {}
    )
    return validated(
        {"data": {"path": str(path), "format": form, **table, **data}, "split": split},
        source="the test",
    )


SPLITS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "random": ("ml-1m", {"kind": "random"}, {}),
    "held-out-users": ("ml-1m", {"kind": "held-out-users"}, {}),
    "temporal": ("ml-1m", {"kind": "temporal", "cuts": [1_060_000, 1_075_000]}, {}),
    "leave-last-out": ("ml-1m", {"kind": "leave-last-out"}, {}),
    "given": ("clicks-lists", {"kind": "given", "validation_share": 0.1}, {}),
    "a table with its items": ("table", {"kind": "random"}, {}),
    "users of a table": ("table", {"kind": "held-out-users"}, {}),
    "ratings as clicks": ("table", {"kind": "random"}, {"kind": "clicks", "click_threshold": 3}),
    "the last of repeated rows": ("table", {"kind": "random"}, {"duplicates": "last"}),
    "the mean of repeated rows": ("table", {"kind": "leave-last-out"}, {"duplicates": "mean"}),
    "ratings off the scale dropped": (
        "table",
        {"kind": "random"},
        {"out_of_range": "drop", "rating_range": [2, 4]},
    ),
    "ratings off the scale clipped": (
        "table",
        {"kind": "random"},
        {"out_of_range": "clip", "rating_range": [2, 4]},
    ),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_removing_one_user_from_the_file_changes_no_other_persons_rows(
    name: str, seed: int, tmp_path: Path
) -> None:
    form, split, data = SPLITS[name]
    rows = log_of(seed)
    if "duplicates" in data:
        rows = [*rows, *(Row(r.user, r.item, 6 - r.rating, r.time + 500) for r in rows[::7])]
    sizes = Counter(row.user for row in rows)
    # one of the first, so that the numbers after it shift
    gone = [user for user in sorted(sizes, key=int) if sizes[user] > 9][seed]
    found = []
    for folder, kept in (("with", rows), ("without", [row for row in rows if row.user != gone])):
        chosen = scenario_of(written(tmp_path / folder, form, kept), form, split, data)
        dataset = load_dataset(chosen)
        found.append((dataset, dict(parts_of(load_split(chosen, dataset), dataset))))
    (dataset, whole), (smaller, less) = found
    assert dataset.catalogue.item_ids == smaller.catalogue.item_ids
    assert gone in {user for part in whole.values() for user in part}
    for part, rows_of in whole.items():
        rows_of.pop(gone, None)
        assert rows_of == less[part], part


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in SPLITS if "users" not in name])
def test_a_person_with_as_many_rows_as_others_together_moves_no_other_persons_rows(
    name: str, seed: int, tmp_path: Path
) -> None:
    """A third of all draws are one person's: a threshold that is a quantile of everybody's draws,
    or a count of them, moves so far that others' rows change parts."""
    form, split, data = SPLITS[name]
    items = [f"{3 * j + 1}" for j in range(25)]
    person = [Row("5", item, 1.0 + j % 5, 1_030_000 + j) for j, item in enumerate(items)]
    # every item has a row without the person, so that the catalogue stays
    rows = [Row("1", item, 1.0 + j % 5, 1_020_000 + j) for j, item in enumerate(items)]
    rows += log_of(seed, users=8)
    found = []
    for folder, kept in (("with", rows + person), ("without", rows)):
        chosen = scenario_of(written(tmp_path / folder, form, kept), form, split, data)
        dataset = load_dataset(chosen)
        found.append(dict(parts_of(load_split(chosen, dataset), dataset)))
    whole, less = found
    assert "5" in {user for part in whole.values() for user in part}
    for part, rows_of in whole.items():
        rows_of.pop("5", None)
        assert rows_of == less[part], part


@pytest.mark.parametrize("name", ["random", "held-out-users"])
def test_neither_the_order_of_the_rows_nor_numbering_moves_a_row(name: str, tmp_path: Path) -> None:
    form, split, data = SPLITS[name]
    rows = log_of(1)
    shuffled = [rows[place] for place in np.random.default_rng(5).permutation(len(rows))]
    found = []
    for folder, some in (("one", rows), ("other", shuffled)):
        chosen = scenario_of(written(tmp_path / folder, form, some), form, split, data)
        dataset = load_dataset(chosen)
        found.append(dict(parts_of(load_split(chosen, dataset), dataset)))
    assert found[0] == found[1]


SUMS: dict[str, dict[str, object]] = {
    "the default recipe": {"recipe": "default"},
    "at most some items of a user": {
        "recipe": "published",
        "model": {"weights": "constant", "max_items_per_user": 3, "encoder": "id"},
    },
    "items of the tail": {
        "recipe": "published",
        "model": {"max_items_per_user": 3, "sampling": "tail", "encoder": "id"},
    },
    "a share of the examples": {
        "recipe": "published",
        "model": {"resamples": 2, "example_share": 0.5, "weights": "uniform"},
    },
}


@pytest.mark.parametrize("kind", ["random", "held-out-users", "leave-last-out"])
@pytest.mark.parametrize("name", SUMS)
def test_removing_one_user_from_the_file_moves_no_rounds_sums_by_more_than_the_radius(
    name: str, kind: str, tmp_path: Path
) -> None:
    """The first user of the file leaves, so that every other user's number shifts."""
    rows = log_of(4)
    gone = min((row.user for row in rows), key=int)
    trains = []
    for folder, kept in (("with", rows), ("without", [row for row in rows if row.user != gone])):
        path = written(tmp_path / folder, "ml-1m", kept)
        content = {
            "data": {"path": str(path), "format": "ml-1m"},
            "split": {"kind": kind},
            **SUMS[name],
        }
        scenario = validated(content, source="the test")
        dataset = load_dataset(scenario)
        split = load_split(scenario, dataset)
        trains.append(split.train)
        if folder == "with":
            prepared = prepare(scenario, public_facts(scenario.seed, dataset, split))
    moved = 0.0
    for done in train(
        prepared.recipe,
        Loopback(
            trains[0], prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
        ),
        prepared.recipe.begin(),
    ):
        both = [sums_of(done.question, prepared.steps, data) for data in trains]
        blocks = iter(zip(*both, strict=True))
        for release in done.question.releases:
            squares = 0.0
            for spec in release.blocks:
                one, other = next(blocks)
                squares += float((((one - other) * spec.step) ** 2).sum())
            assert math.sqrt(squares) <= release.radius * (1 + 1e-9), (
                done.question.step,
                release.name,
            )
            moved = max(moved, math.sqrt(squares) / release.radius)
    assert moved > 0.1 or kind == "held-out-users", "the user is seen at all"


def sums_of(
    question: Question, steps: Mapping[str, ClientStep], data: Interactions
) -> tuple[np.ndarray, ...]:
    sums = ExactSums(question.blocks)
    for start in range(0, data.num_users, 16):
        sums.add(
            steps[question.step](
                question, data.users_subset(np.arange(start, min(start + 16, data.num_users)))
            )
        )
    return sums.blocks


CATALOGUES = {
    "a table with its items": ("table", {}, ()),
    "a table alone": ("table", {"features_path": ""}, ("the catalogue: no table of items",)),
    "films": ("ml-1m", {}, ()),
    "ratings without films": ("ml-1m", {}, ("the catalogue: no table of items",)),
    "click lists": ("clicks-lists", {}, ("the catalogue: no table of items",)),
}


@pytest.mark.parametrize("name", CATALOGUES)
def test_a_catalogue_that_is_read_off_everybodys_rows_is_said_not_to_be_covered(
    name: str, tmp_path: Path
) -> None:
    form, data, said = CATALOGUES[name]
    path = written(tmp_path / "data", form, log_of(1))
    if name == "ratings without films":
        (path / "movies.dat").unlink()
    chosen = scenario_of(
        path, form, {"kind": "given" if form == "clicks-lists" else "random"}, data
    )
    found = load_split(chosen, load_dataset(chosen)).not_covered
    assert [sentence.startswith(start) for sentence, start in zip(found, said, strict=True)] == [
        True
    ] * len(said)


@pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")  # of whoever holds the rows
def test_rows_on_items_that_the_table_of_items_does_not_name_leave_nothing(tmp_path: Path) -> None:
    """Neither an item, nor a person of such rows alone, nor a word on what is not covered: only
    whoever holds the rows is told."""
    others = [Row("3", "99999", 4.0, 5), Row("98765", "99998", 4.0, 6)]
    rows = log_of(1)
    (one, other) = (
        load_dataset(
            scenario_of(written(tmp_path / name, "table", more), "table", {"kind": "random"}, {})
        )
        for name, more in (("with", [*rows[:50], *others, *rows[50:]]), ("without", rows))
    )
    assert one.catalogue == other.catalogue
    assert one.provenance.not_covered == other.provenance.not_covered == ()
    for name in ("user_ptr", "items", "values", "times"):
        np.testing.assert_array_equal(
            getattr(one.interactions, name), getattr(other.interactions, name)
        )
    assert "2 rows on items that items.csv does not name" in str(one.provenance.report.notes)


def test_cuts_in_time_that_are_read_off_the_data_are_said_not_to_be_covered(tmp_path: Path) -> None:
    path = written(tmp_path / "data", "ml-1m", log_of(1))
    for cuts, covered in (
        ({}, False),
        ({"cuts": ["1970-01-12T16:00:00", "1970-01-12T20:30:00Z"]}, True),
    ):
        chosen = scenario_of(path, "ml-1m", {"kind": "temporal", **cuts}, {})
        found = load_split(chosen, load_dataset(chosen)).not_covered
        assert bool(found) is not covered
    assert chosen.split.cuts == (1_008_000, 1_024_200)


Read = tuple[list[str], list[str]]
"""History and labels of one reader, by news id."""


def readers_of(log: ClickLog, news: News, names: dict[int, str]) -> dict[str, dict[str, Read]]:
    """Of every part: who is in it, with history and labels."""
    found: dict[str, dict[str, Read]] = {}
    for name in ("train", "validation", "test"):
        part = getattr(log, name)
        mine = found[name] = {}
        for k, word in enumerate(part.user_words.tolist()):
            shown = np.isin(np.repeat(part.users, np.diff(part.candidate_ptr)), k) & part.clicked
            history = part.history[part.history_ptr[k] : part.history_ptr[k + 1]]
            mine[names[word]] = (
                [news.ids[j] for j in history],
                [news.ids[j] for j in part.candidates[shown]],
            )
    return found


def test_removing_one_user_from_the_log_moves_no_other_readers_part_history_or_labels(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(2)
    rows = [
        Row(str(5 * k + 2), str(3 * int(j) + 1), 5.0, 1_000 * k + n + 1)
        for k in range(80)
        for n, j in enumerate(rng.permutation(25)[:12])
    ]
    protocol = ClickLogProtocol(least_likes=6, history=6, labels=3, candidates=6)
    found = []
    for folder, kept in (("with", rows), ("without", [row for row in rows if row.user != "12"])):
        rated = read_rated_films(written(tmp_path / folder, "ml-1m", kept))
        ids = sorted({row.user for row in rows})
        names = dict(zip(id_words(ids).tolist(), ids, strict=True))
        found.append(
            readers_of(click_log(rated.ratings, protocol, streams=Streams(1)), rated.news, names)
        )
    whole, less = found
    assert any(part.pop("12", None) for part in whole.values())
    assert whole == less


def test_removing_one_user_from_behaviors_moves_no_other_readers_part(tmp_path: Path) -> None:
    news = [f"N{j}\tsports\tgolf\tTitle {j}\t\thttps://x\t[]\t[]" for j in range(6)]
    lines = [
        f"{n}\tU{n * 7}\t11/15/2019 10:22:32 AM\tN{n % 6}\tN{(n + 1) % 6}-1 N{(n + 2) % 6}-0"
        for n in range(60)
    ]
    found = []
    for folder, kept in (("with", lines), ("without", lines[:3] + lines[4:])):
        where = tmp_path / folder / "train"
        where.mkdir(parents=True)
        (where / "news.tsv").write_text("\n".join(news) + "\n")
        (where / "behaviors.tsv").write_text("\n".join(kept) + "\n")
        mind = read_mind(where)
        ids = [f"U{n * 7}" for n in range(60)]
        names = dict(zip(id_words(ids).tolist(), ids, strict=True))
        found.append(
            readers_of(mind.click_log(streams=Streams(3), held_out_users=True), mind.news, names)
        )
    whole, less = found
    assert any(part.pop("U21", None) for part in whole.values())
    assert whole == less
