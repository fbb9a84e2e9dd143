"""People are found again in other versions of a table, by a sketch that says nothing without its
key."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec import Dataset
from fedrec.errors import BudgetExceededError, SettingsError
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.run.data.budget import budget_of, default_folder, files_of
from fedrec.run.data.people import KEY, MOST, People, budgets_with, key_of, remember
from fedrec.settings import load

KEY_A, KEY_B = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def sketch(ids: Sequence[object], rows: Any = None, key: bytes = KEY_A) -> People:
    counts = np.full(len(ids), 5) if rows is None else np.asarray(rows)
    return People.of([str(one) for one in ids], counts, key=key)


def activity(people: int, seed: int) -> Any:
    return np.ceil(np.random.default_rng(seed).lognormal(3, 1, people)).astype(np.int64)


@pytest.mark.parametrize("people", [3, 40, 900, 5_000, 40_000])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_table_with_other_rows_of_the_same_people_is_recognised(
    people: int, share: float
) -> None:
    rows = activity(people, 1)
    here = sketch(range(people), rows)
    there = sketch(range(max(1, int(share * people))), rows[: max(1, int(share * people))] + 1)
    assert here.same_as(there)
    assert there.same_as(here)


@pytest.mark.parametrize("written", ["{}.0", "{:05d}", " {}", "{}\ufeff"])
@pytest.mark.parametrize("people", [40, 5_000])
def test_numbers_that_are_written_otherwise_are_the_same_people(people: int, written: str) -> None:
    """As a column with a gap comes out of pandas, say."""
    rows = activity(people, 1)
    here = sketch(range(people), rows)
    there = sketch([written.format(k) for k in range(people)], rows)
    assert here.same_as(there)
    assert not here.same_as(sketch([f"{k}.5" for k in range(people)], rows))
    assert np.array_equal(here.hashes, there.hashes)
    assert np.array_equal(here.rows, there.rows)


TWINS = (
    *("ann \u2460", "ann \u00b9", "ann \uff11", "Ann 1", "ANN 1", "\uff41nn 1"),
    *(
        "ann 1 ",
        " ann 1",
        "ann 1\u00a0",
        "ann 1\u3000",
        "ann\t1",
        "ann 1\x00",
        "ann  1",
        "ann 1\r\n",
    ),
    *("ann\u200b 1", "a\u200dnn 1", "an\u00adn 1", "\ufeffann 1", "ann 1\u200f", "\u202eann 1"),
    *("ann 1\ufe0f", "a\ufe00nn 1", "ann 1\U000e0101", "ann 1\U000e0020", "a\u2060nn 1"),
)


@pytest.mark.parametrize("other", TWINS)
def test_people_whose_ids_look_the_same_are_recognised(other: str) -> None:
    """In other letters, forms, blanks or directions: who is not recognised pays nothing."""
    assert np.array_equal(sketch(["ann 1"], [3]).hashes, sketch([other], [3]).hashes)


@pytest.mark.parametrize("other", TWINS)
def test_a_person_who_comes_back_under_a_twin_of_her_id_has_paid(other: str) -> None:
    """Beside others, in a table of its own, with other rows."""

    def fitted(name: str, rows: int) -> None:
        users = [f"{k}@x" for k in range(30)] if name == "ann 1" else [f"{k}@y" for k in range(30)]
        table = {"user": [*users, *([name] * rows)], "item": [f"i{k}" for k in range(30 + rows)]}
        settings = {"privacy.max_total_epsilon": 0.6}
        model = fedrec.Popularity(epsilon=0.5, settings=settings)
        model.fit(fedrec.Dataset.from_frame(table))

    fitted("ann 1", 5)
    with pytest.raises(BudgetExceededError):
        fitted(other, 3)


def test_two_people_of_one_number_are_one_with_the_rows_of_both() -> None:
    both = sketch(["7", "007", "8"], [1, 2, 4])
    assert len(both.hashes) == 2
    assert sorted(both.rows.tolist()) == [3, 4]


@pytest.mark.parametrize("people", [100, 900, 5_000, 40_000])
def test_other_people_are_not_taken_for_the_same(people: int) -> None:
    rows = activity(people, 1)
    here = sketch(range(people), rows)
    assert not here.same_as(sketch([f"u{k}" for k in range(people)], rows))
    # numbers from 1 on are ids of everybody's tables
    assert not here.same_as(sketch(range(people), activity(people, 2)))


def test_the_sketch_of_two_tables_is_that_of_the_people_of_both() -> None:
    """Which of them is cut, too: of one that is not whole the largest hash bounds what is compared."""
    for first, last in product((100, 700, 3_000), repeat=2):
        ids = [str(k) for k in range(first + last)]
        both = sketch(ids[:first]).with_more(sketch(ids[first // 2 :]))
        whole = sketch(ids)
        assert both.hashes.tolist() == whole.hashes.tolist()
        assert (both.whole, both.numbered) == (whole.whole, whole.numbered)
        assert both.whole == (first + last <= MOST)
    cut = sketch(range(3_000))
    kept = sketch([k for k in range(300) if sketch([k]).hashes[0] in cut.hashes])
    assert len(kept.hashes) > 50
    assert not cut.with_more(kept).whole
    assert not kept.with_more(cut).whole


def test_a_sketch_says_nothing_without_its_key_and_is_small(state: Path) -> None:
    people = sketch(range(5_000), activity(5_000, 1))
    sealed = people.sealed(KEY_A)
    assert len(sealed) <= 12 * MOST + 64
    again = People.opened(sealed, KEY_A)
    assert again.hashes.tolist() == people.hashes.tolist()
    assert again.rows.tolist() == people.rows.tolist()
    with pytest.raises(ValueError, match="not sealed under this key"):
        People.opened(sealed, KEY_B)
    assert people.hashes.tobytes()[:64] not in sealed
    assert people.sealed(KEY_A) != sealed  # nor whether two are the same
    assert not set(sketch(range(5_000), key=KEY_B).hashes) & set(people.hashes)


def test_the_key_is_its_user_s_alone_and_is_made_once(tmp_path: Path) -> None:
    os.umask(before := os.umask(0))
    del before
    key = key_of(tmp_path)
    assert key_of(tmp_path) == key
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    remember(sketch(range(9), key=key), tmp_path / "a.jsonl")
    assert stat.S_IMODE((tmp_path / "a.people").stat().st_mode) == 0o600
    assert budgets_with(sketch(range(9), key=key), tmp_path) == (tmp_path / "a.jsonl",)
    (tmp_path / "b.people").write_bytes(b"of another key")
    assert budgets_with(sketch(["else"], key=key), tmp_path) == ()
    with pytest.raises(SettingsError, match="sketch has another key"):
        budgets_with(sketch(["else"], key=key), tmp_path, certain=True)


@pytest.mark.slow
@pytest.mark.parametrize("people", [100, 900, 5_000])
def test_people_with_ids_of_their_own_are_the_same_whatever_rows_they_have(people: int) -> None:
    """Numbers from 1 on are everybody's ids: with other counts of rows, nobody can know."""
    for prefix, suffix, same in (
        ("", "", None),
        ("u", "", None),
        ("user-00", "", None),
        ("", "@example.org", True),
        ("7734", "00001", True),
    ):
        ids = [f"{prefix}{k}{suffix}" for k in range(people)]
        here = sketch(ids, activity(people, 1))
        again = People.opened(here.sealed(KEY_A), KEY_A)
        for one in (here, again, again.with_more(here)):
            other = sketch(ids, activity(people, 2))
            assert one.same_as(other) is same
            assert one.same_as(People.opened(other.sealed(KEY_A), KEY_A)) is same
            assert one.same_as(sketch(ids, activity(people, 1))) is True


@pytest.mark.parametrize("domain", ["", "@example.org"])
def test_a_limit_closes_where_every_night_has_its_own_rows(domain: str) -> None:
    """The rows of one night say nothing of those of the next; who is meant, ids alone tell."""
    settings = {"privacy.max_total_epsilon": 0.6}
    for night in range(3):
        counts = activity(200, night)
        rows = [(f"u{u}{domain}", f"i{i}") for u in range(200) for i in range(min(counts[u], 90))]
        users, items = zip(*rows, strict=True)
        data = fedrec.Dataset.from_frame({"user": list(users), "item": list(items)})
        model = fedrec.Popularity(epsilon=0.5, delta=1e-5, settings=settings)
        if not night:
            model.fit(data)
            continue
        with pytest.raises(BudgetExceededError if domain else SettingsError):
            model.fit(data)


def test_people_who_come_and_go_stay_one_budget(tmp_path: Path) -> None:
    """After 12 nights nobody of the first is there, and each night shared most with the last."""
    key = key_of(tmp_path)
    for night in range(12):
        tonight = sketch(range(10 * night, 10 * night + 100), key=key)
        assert budgets_with(tonight, tmp_path) == ((tmp_path / "a.jsonl",) if night else ())
        remember(tonight, tmp_path / "a.jsonl")


def frame(people: int, nights: int) -> dict[str, list[Any]]:
    """Everybody clicks something every night, and ten people join."""
    rows = [
        (f"u{user}", f"i{(user * 3 + night * 7) % 23}", night)
        for night in range(nights)
        for user in range(people + 10 * night)
    ]
    user, item, time = zip(*rows, strict=True)
    return {"user": list(user), "item": list(item), "time": list(time)}


def test_a_nightly_job_on_a_growing_table_is_one_budget_and_stops_at_its_limit() -> None:
    """A limit of what three nights cost: the fourth is refused, whatever grew."""
    mu = mu_for(0.5, 1e-5)
    settings = {"privacy.max_total_epsilon": epsilon_of(mu * 3**0.5, 1e-5) + 1e-6}
    said = list[str]()
    for night in range(1, 5):
        data = fedrec.Dataset.from_frame(frame(120, night))
        model = fedrec.Popularity(epsilon=0.5, delta=1e-5, settings=settings)
        if night == 4:
            with pytest.raises(BudgetExceededError, match="max_total_epsilon"):
                model.fit(data)
        else:
            said += model.fit(data).guarantee.spent
    assert [words.rpartition(" in ")[2] for words in said] == [
        "1 training",
        "2 trainings",
        "3 trainings",
    ]
    assert len([*default_folder().glob("*.jsonl")]) == 1


def test_other_people_have_a_budget_of_their_own() -> None:
    settings = {"privacy.max_total_epsilon": 0.6}
    for prefix in ("u", "v"):
        table = frame(100, 1)
        table["user"] = [prefix + user for user in table["user"]]
        fedrec.Popularity(epsilon=0.5, delta=1e-5, settings=settings).fit(
            fedrec.Dataset.from_frame(table)
        )
    assert len([*default_folder().glob("*.jsonl")]) == 2


def test_a_limit_where_people_cannot_be_recognised_needs_a_named_file(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    pl.DataFrame({"user": ["a"], "item": ["b"]}).write_csv(path)
    privacy = load(None, ["privacy.max_total_epsilon=5"]).privacy
    with pytest.raises(SettingsError, match=r"needs privacy\.budget_file"):
        budget_of(privacy, files_of(str(path)))


def walked(steps: int, folder: Path, seed: int) -> int:
    """Trainings of random tables under one limit; how many were allowed. The model is a dictionary
    from a person to the squares of mu that she has paid."""
    limit, delta = 2.0, 1e-5
    paid = dict[str, float]()
    rng = np.random.default_rng(seed)
    allowed = 0
    for step in range(steps):
        if step % 100 == 0:  # other people: the first ones have spent all
            world = [f"{step}/{k}@example.org" for k in range(40)]
            paid.clear()
        start, length = int(rng.integers(0, 40)), int(rng.integers(1, 40))
        table = [world[(start + k) % 40] for k in range(length)]
        rng.shuffle(table)  # sorted otherwise, and other items
        data = Dataset.from_frame(
            {"user": table, "item": [f"{step}/{k % 3}" for k in range(length)]}
        )
        privacy = load(None, [f"privacy.max_total_epsilon={limit}"]).privacy
        budget = budget_of(privacy, data.source.provenance.files, data.source)
        assert budget is not None
        mu = mu_for(float(rng.choice([0.1, 0.3, 0.9, 1.9])), delta)
        before = max(paid.get(person, 0.0) for person in table)
        said = budget.spent()
        assert not before or said[0].epsilon >= epsilon_of(before**0.5, delta) - 1e-9
        try:
            budget.charge(f"training {step}", "system", [GaussianEvent("release", mu)])
        except BudgetExceededError:
            continue
        allowed += 1
        for person in table:
            paid[person] = paid.get(person, 0.0) + mu**2
        assert epsilon_of(max(paid.values()) ** 0.5, delta) <= limit + 1e-6
    return allowed


def test_a_limit_holds_for_people_whatever_tables_they_are_in(tmp_path: Path) -> None:
    """2,000 steps: python -c "import test_people, pathlib, tempfile;
    test_people.walked(2000, pathlib.Path(tempfile.mkdtemp()), 1)" in a state folder of its own."""
    assert walked(60, tmp_path, 1) >= 2
    settings = {"privacy.max_total_epsilon": 2.0}

    def fitted(tables: Sequence[str], epsilon: float) -> Any:
        rows = [(f"{name}{user}@x", f"i{user % 5}") for name in tables for user in range(60)]
        user, item = zip(*rows, strict=True)
        data = Dataset.from_frame({"user": list(user), "item": list(item)})
        return fedrec.Popularity(epsilon=epsilon, settings=settings).fit(data).guarantee.spent

    fitted("a", 1.8)
    fitted("b", 0.1)
    with pytest.raises(BudgetExceededError):
        fitted("ab", 1.5)
    (said,) = fitted("ab", 0.3)
    assert 1.8 < float(said.split()[1]) < 2
    with pytest.raises(BudgetExceededError):
        fitted("a", 1.5)
    fitted("b", 1.5)  # they have paid less
