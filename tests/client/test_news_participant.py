"""A client of news: charged before it tells, the same bytes when asked again, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import DataError, RefusedError, RunError
from fedrec.federation.protocol import Refusal, Terms
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.padding import PaddedEvent
from fedrec.privacy.selection import PureEvent
from fedrec.privaterec.messages import Ask, news_recipe
from fedrec.privaterec.spending import Costs
from fedrec.privaterec.topics import public_vectors
from fedrec.privaterec.trained import Catalogue, public_table
from fedrec.settings import NEWS_UNITS, Scenario, load
from fedrec_client.click_ledger import ClickSpending
from fedrec_client.news import NewsParticipant, NewsTrust
from fedrec_client.readers import LocalReaders, read_news_shard, write_news_shard

SHAPE = PlantedNewsShape(users=40, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0)
LIMIT = Guarantee(5.0, 1e-5, "click", "replace")


@pytest.fixture(scope="module")
def readers() -> LocalReaders:
    planted = planted_news(SHAPE, seed=2)
    vectors = public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    train = planted.log.train
    return LocalReaders(train, planted.news, tuple(str(k) for k in range(train.num_users)), vectors)


def scenario(variant: str = "additive", *more: str) -> Scenario:
    epsilon = "inf" if variant == "fedrec" else "5"
    keys = [f"news.variant={variant}", f"privacy.unit={NEWS_UNITS[variant]}", f"privacy.epsilon={epsilon}", "news.users_per_round=16"]
    return load(None, ["recipe=privaterec", "data.format=planted-news", "news.history=12", "privacy.noise=seeded", *keys, *more])


def terms(chosen: Scenario, readers: LocalReaders, run: str = "r1") -> Terms:
    return Terms(run, news_recipe(chosen), "news", (0.0, 1.0), readers.news.ids)


def report(chosen: Scenario, readers: LocalReaders, run: str = "r1") -> Ask:
    assert readers.vectors is not None
    rows = public_table(chosen.news.topics, chosen, Catalogue(readers.news, readers.vectors)).rows
    return Ask(run, 0, readers.num_users, {"site": 0}, {"topics": rows})


Client = Callable[..., NewsParticipant]


@pytest.fixture
def client(readers: LocalReaders, tmp_path: Path) -> Iterator[Client]:
    with ExitStack() as stack:
        numbers = iter(range(100))

        def make(folder: Path | None = None, limit: Guarantee = LIMIT, **options: object) -> NewsParticipant:
            where = folder or tmp_path / f"site-{next(numbers)}"
            ledger = ClickSpending(where / "clicks.sqlite", limit=limit)
            stack.callback(ledger.close)
            return NewsParticipant("site", readers, ledger, where, **options)  # type: ignore[arg-type]

        yield make


def test_asked_again_also_after_a_restart_it_tells_the_same_bytes_and_pays_nothing(
    readers: LocalReaders, client: Client, tmp_path: Path
) -> None:
    chosen = scenario()
    first = client(tmp_path / "kept")
    assert not first.join(terms(chosen, readers)).refusal
    told = first.tell(report(chosen, readers))
    assert told.answer.accepted == readers.num_users
    spent = first.ledger.epsilon
    assert spent == pytest.approx(5.0, rel=1e-6)
    first.ledger.close()
    again = client(tmp_path / "kept")
    same = again.tell(report(chosen, readers))
    assert {n: a.tobytes() for n, a in same.arrays.items()} == {n: a.tobytes() for n, a in told.arrays.items()}
    assert again.ledger.epsilon == spent
    assert len(again.ledger.entries) == 1


def test_its_noise_is_its_own_secret(readers: LocalReaders, client: Client) -> None:
    chosen, told = scenario(), []
    for _ in range(2):
        one = client()
        one.join(terms(chosen, readers))
        told.append(one.tell(report(chosen, readers)).arrays["coefficients"])
    assert (told[0] != told[1]).mean() > 0.99


def test_another_question_in_the_same_round_is_refused(readers: LocalReaders, client: Client) -> None:
    chosen, one = scenario(), client()
    one.join(terms(chosen, readers))
    ask = report(chosen, readers)
    assert not one.tell(ask).answer.refusal
    other = Ask(ask.run, 0, ask.users, ask.first_user, {"topics": ask.public["topics"][::-1].copy()})
    told = one.tell(other)
    assert told.answer.refusal == Refusal.ALREADY_REPORTED
    assert not told.arrays


def test_a_second_run_past_the_limit_is_refused_before_anything_is_told(readers: LocalReaders, client: Client) -> None:
    chosen, one = scenario(), client()
    one.join(terms(chosen, readers))
    assert not one.tell(report(chosen, readers)).answer.refusal
    one.join(terms(chosen, readers, "r2"))
    told = one.tell(report(chosen, readers, "r2"))
    assert (told.answer.refusal, dict(told.arrays)) == (Refusal.BUDGET, {})
    assert len(one.ledger.entries) == 1


@pytest.mark.parametrize("variant", ["printed", "fedrec"])
def test_what_is_not_established_needs_leave(variant: str, readers: LocalReaders, client: Client) -> None:
    chosen = scenario(variant)
    assert client().join(terms(chosen, readers)).refusal == Refusal.WRONG_PLAN
    endless = Guarantee(math.inf, 1e-5, "click", "replace")
    assert not client(limit=endless, trust=NewsTrust(not_established=True)).join(terms(chosen, readers)).refusal


def test_categories_are_protected_unless_this_client_says_otherwise(readers: LocalReaders, client: Client) -> None:
    category = readers.news.categories[0]
    chosen = scenario("additive", f"news.open_categories=['{category}']")
    assert client().join(terms(chosen, readers)).refusal == Refusal.WRONG_PLAN
    assert not client(trust=NewsTrust(open_categories=frozenset({category}))).join(terms(chosen, readers)).refusal


@pytest.mark.parametrize(
    "topics",
    [np.zeros((3, 4), np.int64), np.full((500, 2), 2**20, np.int64), np.zeros((500, 2)), np.full((500, 2), -(2**40), np.int64)],
    ids=["too few rows", "too long", "no integers", "overflow"],
)
def test_rows_that_would_break_the_bound_are_refused_before_the_charge(topics: np.ndarray, readers: LocalReaders, client: Client) -> None:
    chosen, one = scenario(), client()
    one.join(terms(chosen, readers))
    told = one.tell(Ask("r1", 0, readers.num_users, {"site": 0}, {"topics": topics}))
    assert told.answer.refusal == Refusal.MALFORMED
    assert not one.ledger.entries


def test_in_rounds_a_user_answers_as_often_as_was_paid_for(readers: LocalReaders, client: Client) -> None:
    chosen, one = scenario("local"), client()
    one.join(terms(chosen, readers))
    P = 1
    refused = one.tell(Ask("r1", 1, readers.num_users, {"site": 0}, {"parameters": np.zeros(P, np.float32), "cohort": np.arange(4)}))
    assert refused.answer.refusal == Refusal.MALFORMED
    assert one._made is not None
    parameters = one._made[3].model.parameters_vector()

    def ask(round: int, cohort: np.ndarray) -> str:
        return one.tell(Ask("r1", round, readers.num_users, {"site": 0}, {"parameters": parameters, "cohort": cohort})).answer.refusal

    assert not ask(1, np.arange(4))
    assert not ask(2, np.arange(4, 8))
    assert ask(3, np.array([9, 3])) == Refusal.BUDGET
    assert not ask(1, np.arange(4))
    assert one.ledger.epsilon == pytest.approx(5.0, rel=1e-6)


def test_a_shard_survives_its_file_and_a_damaged_one_is_named(readers: LocalReaders, tmp_path: Path) -> None:
    path = tmp_path / "site.safetensors"
    write_news_shard(path, readers)
    found = read_news_shard(path)
    assert found.news == readers.news
    assert found.user_ids == readers.user_ids
    for name, column in vars(readers.clicks).items():
        np.testing.assert_array_equal(getattr(found.clicks, name), column)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="no shard of news"):
        read_news_shard(path)


def test_a_ledger_composes_runs_by_role_and_notices_a_changed_entry(tmp_path: Path) -> None:
    mu = mu_for(2.0, 1e-5)
    ledger = ClickSpending(tmp_path / "clicks.sqlite", limit=LIMIT)
    costs = Costs((GaussianEvent("report", mu, "click", "replace"),), (PureEvent("label", 1.0),))
    padded = Costs((PaddedEvent("attention", mu, 0.2),), ())
    assert ledger.charge("a", costs)
    assert not ledger.charge("a", costs)
    assert ledger.epsilon == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(RefusedError, match="changed"):
        ledger.charge("a", padded)
    assert ledger.charge("b", padded)
    assert 2.0 < ledger.epsilon < 5.0
    ledger.close()
    import sqlite3

    with sqlite3.connect(tmp_path / "clicks.sqlite") as database:
        database.execute("UPDATE runs SET costs = '{\"history\": [], \"labels\": []}' WHERE run = 'a'")
    with pytest.raises(RunError, match="chain is broken"):
        ClickSpending(tmp_path / "clicks.sqlite", limit=LIMIT)
