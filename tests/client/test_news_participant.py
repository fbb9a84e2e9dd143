"""A client of news: charged before it tells, the same bytes when asked again, and what it
refuses."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_randomized_response,
)

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import DataError, MalformedRowError, RefusedError, RunError
from fedrec.federation.protocol import Refusal, Terms
from fedrec.news import local_update
from fedrec.news.messages import Ask, news_recipe
from fedrec.news.models import news_model
from fedrec.news.person import training_costs
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, public_table
from fedrec.news.variant import costs_of, rounds_of
from fedrec.news.variant import require as variant_named
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent, epsilon_of_events
from fedrec.privacy.person import epsilon_of_person
from fedrec.privacy.selection import PureEvent
from fedrec.settings import Scenario, load
from fedrec.storage import UnreadableError
from fedrec_client.click_ledger import ClickLedger, RunBinding, of_person
from fedrec_client.news import NewsParticipant, NewsTrust, _digest
from fedrec_client.readers import (
    PRIVATE_COLUMNS,
    LocalReaders,
    read_clicks,
    read_news_shard,
    write_clicks,
    write_news_shard,
)
from fedrec_client.refusals import public_words
from fedrec_client.run_record import unknown_of
from tests.descriptors import none_left

SHAPE = PlantedNewsShape(
    users=40, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
LIMIT = Guarantee(5.0, 1e-5, "click", "replace")


@pytest.fixture(scope="module")
def readers() -> LocalReaders:
    planted = planted_news(SHAPE, seed=2)
    vectors = public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    train = planted.log.train
    return LocalReaders(train, planted.news, tuple(str(k) for k in range(train.num_users)), vectors)


@pytest.fixture(scope="module")
def asked_again() -> Scenario:
    """Three passes: each user answers three times, and is paid for."""
    return scenario("local", "news.rounds=3", "news.users_per_round=1000")


def scenario(variant: str = "additive", *more: str) -> Scenario:
    epsilon = "inf" if variant == "fedrec" else "5"
    keys = [
        f"news.variant={variant}",
        f"privacy.unit={variant_named(variant).unit}",
        f"privacy.epsilon={epsilon}",
        "news.users_per_round=16",
    ]
    return load(
        None,
        [
            "recipe=privaterec",
            "news.variant=additive",
            "data.format=planted-news",
            "news.history=12",
            "privacy.noise=seeded",
            *keys,
            *more,
        ],
    )


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

        def make(
            folder: Path | None = None,
            limit: Guarantee = LIMIT,
            max_user_epsilon: float = math.inf,
            **options: object,
        ) -> NewsParticipant:
            where = folder or tmp_path / f"site-{next(numbers)}"
            ledger = ClickLedger(
                where / "clicks.sqlite", limit=limit, max_user_epsilon=max_user_epsilon
            )
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
    assert {n: a.tobytes() for n, a in same.arrays.items()} == {
        n: a.tobytes() for n, a in told.arrays.items()
    }
    assert again.ledger.epsilon == spent
    assert len(again.ledger.runs) == 1


@pytest.mark.parametrize("place", ["fedrec_client.news.write_clicks", "fedrec_client.news.collect"])
def test_killed_between_its_charge_and_its_answer_it_tells_the_same_and_pays_once(
    place: str, readers: LocalReaders, client: Client, tmp_path: Path
) -> None:
    """After the charge and before the copy of the clicks, and before the noise: as kill -9 would,
    nothing of the process goes on. The undisturbed answer is that of a copy of its folder."""

    class KilledError(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    chosen = scenario()
    begun = client(tmp_path / "begun")
    begun.join(terms(chosen, readers))
    begun.ledger.close()
    shutil.copytree(tmp_path / "begun", tmp_path / "undisturbed")
    one = client(tmp_path / "begun")
    with pytest.MonkeyPatch.context() as patch:
        target = (one, "_noise") if place.endswith("collect") else (place,)
        patch.setattr(*target, killed)
        with pytest.raises(KilledError):
            one.tell(report(chosen, readers))
    one.ledger.close()
    again = client(tmp_path / "begun")
    told = [c.tell(report(chosen, readers)) for c in (again, client(tmp_path / "undisturbed"))]
    assert not told[0].answer.refusal
    assert told[0].arrays["coefficients"].tobytes() == told[1].arrays["coefficients"].tobytes()
    assert again.ledger.epsilon == pytest.approx(5.0, rel=1e-6)
    assert len(again.ledger.runs) == 1


def test_its_noise_is_its_own_secret(readers: LocalReaders, client: Client) -> None:
    chosen = scenario()
    told = []
    for _ in range(2):
        one = client()
        one.join(terms(chosen, readers))
        told.append(one.tell(report(chosen, readers)).arrays["coefficients"])
    assert (told[0] != told[1]).mean() > 0.99


def test_another_question_in_the_same_round_is_refused(
    readers: LocalReaders, client: Client
) -> None:
    chosen = scenario()
    one = client()
    one.join(terms(chosen, readers))
    ask = report(chosen, readers)
    assert not one.tell(ask).answer.refusal
    other = Ask(
        ask.run, 0, ask.users, ask.first_user, {"topics": ask.public["topics"][::-1].copy()}
    )
    told = one.tell(other)
    assert told.answer.refusal == Refusal.ALREADY_REPORTED
    assert not told.arrays


def test_a_second_run_past_the_limit_is_refused_before_anything_is_told(
    readers: LocalReaders, client: Client
) -> None:
    chosen = scenario()
    one = client()
    one.join(terms(chosen, readers))
    assert not one.tell(report(chosen, readers)).answer.refusal
    one.join(terms(chosen, readers, "r2"))
    told = one.tell(report(chosen, readers, "r2"))
    assert (told.answer.refusal, dict(told.arrays)) == (Refusal.BUDGET, {})
    assert len(one.ledger.runs) == 1


@pytest.mark.parametrize("variant", ["printed", "fedrec"])
def test_what_is_not_established_needs_leave(
    variant: str, readers: LocalReaders, client: Client
) -> None:
    chosen = scenario(variant)
    assert client().join(terms(chosen, readers)).refusal == Refusal.WRONG_PLAN
    endless = Guarantee(math.inf, 1e-5, "click", "replace")
    assert (
        not client(limit=endless, trust=NewsTrust(not_established=True))
        .join(terms(chosen, readers))
        .refusal
    )


def test_categories_are_protected_unless_this_client_says_otherwise(
    readers: LocalReaders, client: Client
) -> None:
    category = readers.news.categories[0]
    chosen = scenario("additive", f"news.open_categories=['{category}']")
    assert client().join(terms(chosen, readers)).refusal == Refusal.WRONG_PLAN
    assert (
        not client(trust=NewsTrust(open_categories=frozenset({category})))
        .join(terms(chosen, readers))
        .refusal
    )


@pytest.mark.parametrize(
    "topics",
    [
        np.zeros((3, 4), np.int64),
        np.full((500, 2), 2**20, np.int64),
        np.zeros((500, 2)),
        np.full((500, 2), -(2**40), np.int64),
    ],
    ids=["too few rows", "too long", "no integers", "overflow"],
)
def test_rows_that_would_break_the_bound_are_refused_before_the_charge(
    topics: np.ndarray, readers: LocalReaders, client: Client
) -> None:
    chosen = scenario()
    one = client()
    one.join(terms(chosen, readers))
    told = one.tell(Ask("r1", 0, readers.num_users, {"site": 0}, {"topics": topics}))
    assert told.answer.refusal == Refusal.MALFORMED
    assert not one.ledger.runs


def test_in_rounds_a_user_answers_as_often_as_was_paid_for(
    readers: LocalReaders, client: Client
) -> None:
    chosen = scenario("local")
    one = client()
    one.join(terms(chosen, readers))
    refused = one.tell(
        Ask(
            "r1",
            1,
            readers.num_users,
            {"site": 0},
            {"parameters": np.zeros(1, np.float32), "cohort": np.arange(4)},
        )
    )
    assert refused.answer.refusal == Refusal.MALFORMED
    assert one._made is not None
    parameters = one._made[2].model.parameters_vector()

    def ask(round: int, cohort: np.ndarray) -> str:
        return one.tell(
            Ask(
                "r1",
                round,
                readers.num_users,
                {"site": 0},
                {"parameters": parameters, "cohort": cohort},
            )
        ).answer.refusal

    assert not ask(1, np.arange(4))
    assert not ask(2, np.arange(4, 8))
    assert ask(3, np.array([9, 3])) == Refusal.BUDGET
    assert not ask(1, np.arange(4))
    assert one.ledger.epsilon == pytest.approx(5.0, rel=1e-6)


def parameters(chosen: Scenario, readers: LocalReaders) -> np.ndarray:
    assert readers.vectors is not None
    form = rounds_of(chosen)
    return news_model(
        chosen, readers.news, readers.vectors, basis=form.basis(chosen)
    ).parameters_vector()


def gradient(
    chosen: Scenario,
    readers: LocalReaders,
    round: int,
    *,
    first: int = 0,
    users: int = 100,
    cohort: object = None,
) -> Ask:
    named = np.arange(first, first + 4) if cohort is None else np.asarray(cohort)
    return Ask(
        "r1",
        round,
        users,
        {"site": first},
        {"parameters": parameters(chosen, readers), "cohort": named},
    )


def test_the_users_numbers_stay_those_of_the_first_question_so_that_labels_are_told_once(
    asked_again: Scenario, readers: LocalReaders, client: Client, tmp_path: Path
) -> None:
    """A server that could number users anew would have their labels randomised again, and a
    majority names them."""
    one = client(tmp_path / "kept")
    one.join(terms(asked_again, readers))
    assert not one.tell(gradient(asked_again, readers, 1)).answer.refusal
    for other in (
        gradient(asked_again, readers, 2, first=16),
        gradient(asked_again, readers, 2, users=101),
    ):
        told = one.tell(other)
        assert (told.answer.refusal, dict(told.arrays)) == (Refusal.WRONG_PLAN, {})
    one.ledger.close()
    for folder in ("terms", "data"):
        shutil.rmtree(tmp_path / "kept" / folder)
    again = client(tmp_path / "kept")
    again.join(terms(asked_again, readers))
    assert (
        again.tell(gradient(asked_again, readers, 2, first=16)).answer.refusal == Refusal.WRONG_PLAN
    )
    assert not again.tell(gradient(asked_again, readers, 2)).answer.refusal


def test_labels_of_a_run_are_the_same_answers_in_every_round_and_attention_is_fresh(
    asked_again: Scenario, readers: LocalReaders, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def watched(model, devices, users, released):  # type: ignore[no-untyped-def]
        seen.append((devices.labels.tobytes(), released.tobytes()))
        return honest(model, devices, users, released)

    honest = local_update.released_gradient
    monkeypatch.setattr(local_update, "released_gradient", watched)
    one = client()
    one.join(terms(asked_again, readers))
    for round in (1, 2):
        assert not one.tell(gradient(asked_again, readers, round)).answer.refusal
    # of this client's users, not of the rehearsal's
    mine = [pair for pair in seen if len(pair[0]) == len(seen[-1][0])]
    assert len(mine) == 2
    assert mine[0][0] == mine[1][0]
    assert mine[0][1] != mine[1][1]


def test_whatever_a_client_lost_but_its_ledger_a_question_with_two_items_exchanged_is_refused(
    readers: LocalReaders, client: Client, tmp_path: Path
) -> None:
    """Answered with the same noise it would tell who has one of the two in the history."""
    chosen = scenario()
    one = client(tmp_path / "kept")
    one.join(terms(chosen, readers))
    assert not one.tell(report(chosen, readers)).answer.refusal
    one.ledger.close()
    for folder in ("terms", "data"):
        shutil.rmtree(tmp_path / "kept" / folder)
    again = client(tmp_path / "kept")
    swapped = list(readers.news.ids)
    swapped[3], swapped[7] = swapped[7], swapped[3]
    changed = Terms("r1", news_recipe(chosen), "news", (0.0, 1.0), tuple(swapped))
    assert again.join(changed).refusal == Refusal.WRONG_PLAN
    assert again.tell(report(chosen, readers)).answer.refusal == Refusal.RUN_UNKNOWN
    assert not again.join(terms(chosen, readers)).refusal
    other = report(chosen, readers)
    other = Ask(
        other.run, 0, other.users, other.first_user, {"topics": other.public["topics"][::-1].copy()}
    )
    assert again.tell(other).answer.refusal == Refusal.ALREADY_REPORTED
    assert not again.tell(report(chosen, readers)).answer.refusal


@pytest.mark.parametrize(
    "named",
    [
        {"news": {"word_vectors": "FILE"}},
        {"news": {"word_vectors": "nowhere"}},
        {"news": {"model": "plm-nr", "language_model": "FOLDER"}},
        {"run": {"directory": "FOLDER"}},
        {"data": {"path": "FILE"}},
        {"data": {"features_path": "FILE"}},
        {"collective": {"users_file": "FILE"}},
    ],
    ids=["words", "no such file", "language model", "folder", "data", "features", "users"],
)
def test_a_server_that_names_files_of_the_client_is_told_nothing_of_them(
    named: dict[str, dict[str, str]], readers: LocalReaders, client: Client, tmp_path: Path
) -> None:
    """The words of an error would quote a line of the file, or say whether there is one."""
    word = readers.news.titles[0].split()[0].lower()
    (tmp_path / "private.txt").write_text(f"first 1\n{word} diagnosis\n")
    places = {"FILE": str(tmp_path / "private.txt"), "FOLDER": str(tmp_path)}
    chosen = scenario("local", "news.model=nrms")
    recipe = json.loads(news_recipe(chosen))
    for table, keys in named.items():
        recipe.setdefault(table, {}).update({k: places.get(v, v) for k, v in keys.items()})
    one = client()
    fewer = {name: recipe[name] for name in recipe if name != "seed"}
    fewer["data"] = {name: recipe["data"][name] for name in recipe["data"] if name != "format"}
    for sent in (fewer, recipe):
        changed = replace(terms(chosen, readers), recipe=json.dumps(sent))
        answer = one.join(changed)
        assert answer.refusal == Refusal.MALFORMED
        assert "names files" in answer.cause
    arrays = {"parameters": np.zeros(3, np.float32), "cohort": np.arange(2)}
    told = one.tell(Ask("r1", 1, readers.num_users, {"site": 0}, arrays)).answer
    for said in (answer.cause, told.cause):
        assert "diagnosis" not in said
        assert str(tmp_path) not in said
    assert one.ledger.epsilon == 0


def test_what_a_server_hears_of_a_malformed_file_quotes_nothing_of_it() -> None:
    failure = MalformedRowError(Path("/srv/clicks.tsv"), 7, "a user id", "diagnosis")
    assert not any(word in public_words(failure)[1] for word in ("srv", "7", "diagnosis"))


def test_a_recipe_says_nothing_of_the_servers_own_files() -> None:
    assert "/srv/mind" not in news_recipe(scenario("additive", "news.entity_vectors=/srv/mind.vec"))


def test_noise_belongs_to_the_run_its_terms_the_user_the_data_and_the_question(
    readers: LocalReaders, client: Client
) -> None:
    """Any of them changed, all draws are others: two answers with the same noise would tell their
    difference exactly."""
    one = client()
    chosen = scenario()
    run = one._open(terms(chosen, readers))
    fewer = readers.clicks.users_subset(np.arange(1, readers.num_users))
    others = [
        replace(run, terms=terms(chosen, readers, "r2")),
        replace(run, terms_digest="b" * 64),
        replace(run, data_digest=_digest(fewer, one._names[1:])),
    ]
    keys = [
        one._noise(run, "question").key(0, "news-report"),
        one._noise(run, "other").key(0, "news-report"),
    ]
    keys += [
        one._noise(run, "question").key(1, "news-report"),
        one._noise(run, "question").key(0, "news-labels"),
    ]
    keys += [one._noise(other, "question").key(0, "news-report") for other in others]
    assert len(set(keys)) == len(keys)


def test_clicks_that_come_during_a_run_wait_for_the_next(
    readers: LocalReaders, tmp_path: Path
) -> None:
    """Otherwise the same noise on other data would tell what is new, and a refusal that something
    is."""
    chosen = scenario()
    kept = tmp_path / "kept"
    told = []
    for clicks in (
        readers.clicks,
        replace(readers.clicks, history=readers.clicks.history[::-1].copy()),
    ):
        with closing(ClickLedger(kept / "clicks.sqlite", limit=LIMIT)) as ledger:
            one = NewsParticipant("site", replace(readers, clicks=clicks), ledger, kept)
            one.join(terms(chosen, readers))
            told.append(one.tell(report(chosen, readers)))
    assert not told[1].answer.refusal
    assert told[0].arrays["coefficients"].tobytes() == told[1].arrays["coefficients"].tobytes()
    assert told[0].arrays["reported"].tobytes() == told[1].arrays["reported"].tobytes()


def test_clicks_that_cannot_be_read_now_are_not_taken_for_none(
    readers: LocalReaders, tmp_path: Path
) -> None:
    names = tuple(readers.user_ids)
    write_clicks(tmp_path / "run", readers.clicks, names)
    items = readers.clicks.num_news
    assert read_clicks(tmp_path / "run", items, names) is not None
    with none_left(), pytest.raises(UnreadableError):
        read_clicks(tmp_path / "run", items, names)
    assert read_clicks(tmp_path / "none", items, names) is None


@pytest.mark.parametrize("variant", ["additive", "local", "dp-fedrec"])
def test_a_question_that_invented_users_cannot_answer_is_refused_before_the_charge(
    variant: str, readers: LocalReaders, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = scenario(variant)
    one = client()
    one.join(terms(chosen, readers))

    def broken(*_arguments: object, **_more: object) -> None:
        raise FloatingPointError("overflow")

    name = {
        "additive": "privacy.bounded_mean.report_each",
        "local": "news.local_update.released_weights",
        "dp-fedrec": "news.local_update.per_user_gradients",
    }
    monkeypatch.setattr(f"fedrec.{name[variant]}", broken)
    told = one.tell(
        report(chosen, readers) if variant == "additive" else gradient(chosen, readers, 1)
    )
    assert (told.answer.refusal, dict(told.arrays)) == (Refusal.MALFORMED, {})
    assert not one.ledger.runs


@pytest.mark.parametrize("variant", ["local", "dp-fedrec"])
def test_models_of_numbers_that_are_none_are_answered_as_any_other(
    variant: str, readers: LocalReaders, client: Client
) -> None:
    """Whether some user's vector overflows depends on its history: the answer is made all the same,
    of the noise alone."""
    chosen = scenario(variant)
    one = client()
    one.join(terms(chosen, readers))
    ask = gradient(chosen, readers, 1)
    hostile = np.where(
        np.arange(len(ask.public["parameters"])) % 3 == 0,
        np.float32(3e38),
        ask.public["parameters"],
    )
    told = one.tell(
        Ask(
            ask.run,
            1,
            ask.users,
            ask.first_user,
            {**ask.public, "parameters": hostile.astype(np.float32)},
        )
    )
    assert not told.answer.refusal
    assert set(told.arrays) == {"gradient", "weight", "loss"}


def test_clicks_on_news_that_the_catalogue_leaves_out_are_padding_and_move_no_other(
    readers: LocalReaders,
) -> None:
    chosen = scenario()
    shown = np.unique(readers.clicks.candidates)
    left_out = int(np.setdiff1d(readers.clicks.history, shown)[0])
    named = tuple(item for j, item in enumerate(readers.news.ids) if j != left_out)
    found = readers.translate(Terms("r1", news_recipe(chosen), "news", (0.0, 1.0), named))
    np.testing.assert_array_equal(found.history_ptr, readers.clicks.history_ptr)
    gone = readers.clicks.history == left_out
    assert gone.any()
    np.testing.assert_array_equal(found.history < 0, gone)
    assert [named[j] for j in found.history[~gone]] == [
        readers.news.ids[j] for j in readers.clicks.history[~gone]
    ]


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("impressions", [True, False])
def test_readers_none_of_whose_news_is_in_the_catalogue_are_not_charged(
    readers: LocalReaders, tmp_path: Path, impressions: bool, known: int
) -> None:
    """One known click is enough to take part, shown news or not."""
    clicks = readers.clicks if impressions else readers.clicks.select(np.arange(0))
    clicked = int(clicks.history[0])
    ids = [f"isbn-{item}" for item in readers.news.ids]
    if known:
        ids[clicked] = readers.news.ids[clicked]
    mine = replace(readers, clicks=clicks, news=replace(readers.news, ids=tuple(ids)))
    chosen = scenario()
    with closing(ClickLedger(tmp_path / "clicks.sqlite", limit=LIMIT)) as ledger:
        one = NewsParticipant("site", mine, ledger, tmp_path)
        assert one.join(terms(chosen, readers)).refusal == ("" if known else "unknown-item")
        assert bool(one.tell(report(chosen, readers)).answer.refusal) != bool(known)
        assert len(ledger.runs) == known
    unknown, events = unknown_of(tmp_path)
    assert events == len(clicks.history) + len(clicks.candidates)
    assert (unknown < events) == bool(known)


def test_an_impression_without_a_click_answers_as_the_others_do(
    readers: LocalReaders, tmp_path: Path
) -> None:
    """Neither a failure nor silence: both would tell that nothing was clicked."""
    clicked = readers.clicks.clicked.copy()
    first = slice(*readers.clicks.candidate_ptr[:2].tolist())
    clicked[first] = False
    without = replace(readers, clicks=replace(readers.clicks, clicked=clicked))
    for variant in ("additive", "local"):
        chosen = scenario(variant)
        with closing(ClickLedger(tmp_path / variant / "clicks.sqlite", limit=LIMIT)) as ledger:
            one = NewsParticipant("site", without, ledger, tmp_path / variant)
            one.join(terms(chosen, readers))
            told = one.tell(
                report(chosen, readers) if variant == "additive" else gradient(chosen, readers, 1)
            )
            assert not told.answer.refusal
            if variant == "additive":
                assert told.arrays["reported"][first].any()
                assert len(told.arrays["users"]) == len(readers.clicks)


def test_a_shard_survives_its_file_and_a_damaged_one_is_named(
    readers: LocalReaders, tmp_path: Path
) -> None:
    path = tmp_path / "site.safetensors"
    write_news_shard(path, readers)
    found = read_news_shard(path)
    assert found.news == readers.news
    assert found.user_ids == readers.user_ids
    # the hashes of ids divide a data set, and a shard is a part already
    for name in PRIVATE_COLUMNS:
        np.testing.assert_array_equal(getattr(found.clicks, name), getattr(readers.clicks, name))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="no shard of news"):
        read_news_shard(path)


def gaussians(*epsilons: float) -> tuple[GaussianEvent, ...]:
    return tuple(
        GaussianEvent("report", mu_for(epsilon, 1e-5), "click", "replace") for epsilon in epsilons
    )


def test_a_click_pays_for_its_label_in_one_run_and_for_the_history_in_another(
    tmp_path: Path,
) -> None:
    """Against privacy loss distributions, in other code: a label at 5, then reports at 5 that see
    the click in the history."""
    additive = Costs(gaussians(5.0), (PureEvent("label", 5.0),))
    reports_of_others = Costs(gaussians(5.0, 5.0), (PureEvent("label", 0.1),))
    with closing(
        ClickLedger(tmp_path / "clicks.sqlite", limit=Guarantee(50.0, 1e-5, "click", "replace"))
    ) as ledger:
        ledger.charge("a", additive)
        ledger.charge("b", reports_of_others)
        coin = pld_from_randomized_response(5.0)
        both = coin.compose(
            from_gaussian_mechanism(1 / math.hypot(*(event.mu for event in gaussians(5.0, 5.0))))
        )
        assert ledger.epsilon == pytest.approx(both.get_epsilon_for_delta(1e-5), rel=1e-3)
        history_alone = from_gaussian_mechanism(
            1 / math.hypot(*(event.mu for event in gaussians(5.0, 5.0, 5.0)))
        )
        assert ledger.epsilon > history_alone.get_epsilon_for_delta(1e-5) + 1


def pld_from_randomized_response(epsilon: float) -> PrivacyLossDistribution:
    return from_randomized_response(2 / (math.exp(epsilon) + 1), 2)


def test_gradients_of_whole_losses_are_charged_to_labels_too(tmp_path: Path) -> None:
    costs = costs_of(scenario("dp-fedrec"), 2)
    assert costs.labels == costs.history
    assert len(costs.labels) == 2
    label_first = Costs(gaussians(5.0), (PureEvent("label", 5.0),))
    with closing(
        ClickLedger(tmp_path / "clicks.sqlite", limit=Guarantee(50.0, 1e-5, "click", "replace"))
    ) as ledger:
        ledger.charge("labels", label_first)
        ledger.charge("gradients", costs)
        both = pld_from_randomized_response(5.0).compose(
            from_gaussian_mechanism(1 / gaussians(5.0)[0].mu)
        )
        assert ledger.epsilon == pytest.approx(both.get_epsilon_for_delta(1e-5), rel=1e-3)


@pytest.mark.parametrize("variant", ["additive", "local", "dp-fedrec"])
def test_a_run_past_the_limit_per_user_is_refused_before_anything_is_told(
    variant: str, readers: LocalReaders, client: Client
) -> None:
    """Decided by the scenario's longest history and the most impressions of anybody, whatever was
    clicked."""
    chosen = scenario(variant)
    labels = int(np.bincount(readers.clicks.users).max())
    whole = epsilon_of_person(
        training_costs(chosen, users=readers.num_users),
        1e-5,
        clicks=chosen.news.history,
        labels=labels,
    )
    clicks = readers.clicks
    nothing = replace(
        readers,
        clicks=replace(clicks, history=clicks.history[:0], history_ptr=0 * clicks.history_ptr),
    )
    causes = []
    for site in (readers, nothing):
        for limit, refused in ((0.99 * whole, True), (1.01 * whole, False)):
            one = client(max_user_epsilon=limit)
            one.users = site
            one.join(terms(chosen, readers))
            told = one.tell(
                report(chosen, readers) if variant == "additive" else gradient(chosen, readers, 1)
            )
            assert bool(told.answer.refusal) == refused == (not one.ledger.runs)
            causes += [told.answer.cause] if refused else []
    assert causes[0] == causes[1]
    assert "limit per user" in causes[0]


def test_the_limit_per_user_holds_over_all_runs_together(tmp_path: Path) -> None:
    costs = Costs(gaussians(5.0), (PureEvent("label", 5.0),))
    bound = RunBinding(history=20, labels=3)
    mu = gaussians(5.0)[0].mu
    with closing(
        ClickLedger(tmp_path / "clicks.sqlite", limit=Guarantee(50.0, 1e-5, "click", "replace"))
    ) as ledger:
        ledger.charge("a", costs, bound)
        ledger.charge("b", replace(costs, labels=()), bound)
        both = epsilon_of_person(Costs(costs.history * 2, costs.labels), 1e-5, clicks=20, labels=3)
        events = of_person([(entry.price, entry.bound) for entry in ledger.runs])
        assert epsilon_of_events(events, 1e-5) == pytest.approx(both, rel=1e-9)
        assert (
            epsilon_of(20 * mu * math.sqrt(2), 1e-5)
            < both
            < epsilon_of(20 * mu * math.sqrt(2), 1e-5) + 15.01
        )
    limited = {"limit": Guarantee(50.0, 1e-5, "click", "replace"), "max_user_epsilon": 1.01 * both}
    with closing(ClickLedger(tmp_path / "clicks.sqlite", **limited)) as ledger:  # type: ignore[arg-type]
        with pytest.raises(RefusedError, match="limit per user"):
            ledger.charge("c", costs, bound)
        assert len(ledger.runs) == 2


def test_a_run_that_does_not_say_how_much_it_sees_costs_a_person_everything(tmp_path: Path) -> None:
    with closing(
        ClickLedger(tmp_path / "clicks.sqlite", limit=LIMIT, max_user_epsilon=1e9)
    ) as ledger:
        with pytest.raises(RefusedError, match="limit per user"):
            ledger.charge("a", Costs(gaussians(1.0), ()))
        assert not ledger.runs


def test_labels_of_earlier_runs_are_not_forgotten(tmp_path: Path) -> None:
    """Three answers about one label add up, also in a ledger that is opened again."""
    for number in range(3):
        with closing(
            ClickLedger(tmp_path / "clicks.sqlite", limit=Guarantee(50.0, 1e-5, "click", "replace"))
        ) as ledger:
            ledger.charge(f"run-{number}", Costs((), (PureEvent("label", 2.0),)))
            assert ledger.epsilon == pytest.approx(2.0 * (number + 1), rel=1e-4)


def test_a_ledger_knows_who_answered_what_and_an_answer_that_is_struck_out_is_noticed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clicks.sqlite"
    everybody = np.ones(11, bool)
    with closing(ClickLedger(path, limit=LIMIT)) as ledger:
        ledger.charge("a", Costs(gaussians(1.0, 1.0), ()), RunBinding("t", "d", 20, 3))
        assert ledger.answer("a", 1, "question", everybody, most=2)
        assert not ledger.answer("a", 1, "question", everybody, most=2)
        with pytest.raises(RefusedError, match="another question"):
            ledger.answer("a", 1, "other", everybody, most=2)
        assert ledger.answer("a", 2, "other", np.arange(11) == 10, most=2)
    with closing(ClickLedger(path, limit=LIMIT)) as ledger:
        with pytest.raises(RefusedError, match="more than 2 times"):
            ledger.answer("a", 3, "third", np.arange(11) == 10, most=2)
        assert ledger.answer("a", 3, "third", np.arange(11) == 9, most=2)
        for other in (
            RunBinding("u", "d", 20, 3),
            RunBinding("t", "e", 20, 3),
            RunBinding("t", "d", 21, 3),
            RunBinding("t", "d", 20, 4),
        ):
            with pytest.raises(RefusedError, match="bound to"):
                ledger.charge("a", Costs(gaussians(1.0, 1.0), ()), other)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM entries WHERE number = 4")
    with pytest.raises(RunError, match="older than"):
        ClickLedger(path, limit=LIMIT)


def test_a_ledger_composes_runs_by_role_and_notices_a_changed_entry(tmp_path: Path) -> None:
    mu = mu_for(2.0, 1e-5)
    ledger = ClickLedger(tmp_path / "clicks.sqlite", limit=LIMIT)
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
    with sqlite3.connect(tmp_path / "clicks.sqlite") as database:
        database.execute(
            "UPDATE entries SET content = '{\"history\": [], \"labels\": []}' WHERE run = 'a'"
        )
    with pytest.raises(RunError, match="does not follow"):
        ClickLedger(tmp_path / "clicks.sqlite", limit=LIMIT)
