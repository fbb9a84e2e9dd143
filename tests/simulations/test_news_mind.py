"""MIND-format folders through every variant: impressions with several clicks, without one, and with
two candidates only."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.impressions import Impressions
from fedrec.errors import DataError, MalformedRowError, SettingsError
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.news.local_clients import LocalClients
from fedrec.news.trained import TrainedNews
from fedrec.news.variant import train_news
from fedrec.run.data.describing import describe, keys_of_news
from fedrec.run.data.news import NewsData, catalogue_of, load_news
from fedrec.settings import Scenario, load
from fedrec_server.public_news import read_public_news

TIME = "11/15/2019 10:22:32 AM"
TOPICS = ("sports", "finance", "health")
WORDS = {
    "sports": ["match", "goal", "league", "team", "coach", "stadium"],
    "finance": ["market", "bank", "shares", "profit", "rates", "stocks"],
    "health": ["doctor", "sleep", "diet", "heart", "virus", "clinic"],
}
NEWS = 90
CLICKLESS = 0.3  # share of impressions
FEW = ["news.users_per_round=6", "news.rounds=2"]


def news_lines(rng: np.random.Generator) -> list[str]:
    rows = []
    for j in range(NEWS):
        topic = TOPICS[j % 3]
        title = " ".join(rng.choice(WORDS[topic], size=5))
        entity = f'[{{"Label": "x", "WikidataId": "Q{j % 3}"}}]'
        rows.append(f"N{j}\t{topic}\t{topic}{j % 2}\t{title}\t\thttps://x\t{entity}\t[]")
    return rows


def behavior_lines(rng: np.random.Generator, users: int, impressions: int) -> list[str]:
    """Users click what is of their topic, all of it; about a third of the impressions shows nothing
    of it, or is not clicked."""
    rows = []
    for user in range(users):
        mine = np.flatnonzero(np.arange(NEWS) % 3 == user % 3)
        history = " ".join(f"N{j}" for j in rng.choice(mine, size=6, replace=False))
        for _ in range(impressions):
            shown = rng.choice(NEWS, size=rng.integers(2, 9), replace=False)
            clicked = (shown % 3 == user % 3) & (rng.random() > CLICKLESS)
            tokens = " ".join(f"N{j}-{int(y)}" for j, y in zip(shown, clicked, strict=True))
            rows.append(f"{len(rows)}\tU{user}\t{TIME}\t{history}\t{tokens}")
    return rows


@pytest.fixture(scope="module")
def mind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("MINDtiny")
    rng = np.random.default_rng(4)
    for name, users in (("MINDtiny_train", 120), ("MINDtiny_dev", 60)):
        folder = path / name
        folder.mkdir()
        (folder / "news.tsv").write_text("\n".join(news_lines(np.random.default_rng(3))) + "\n")
        (folder / "behaviors.tsv").write_text("\n".join(behavior_lines(rng, users, 6)) + "\n")
    return path


def scenario(path: Path, *more: str) -> Scenario:
    words = [
        "recipe=privaterec",
        "news.variant=additive",
        "data.format=mind",
        "privacy.noise=seeded",
        f"data.path={path}",
        "privacy.unit=click",
        "news.history=6",
        "news.basis=3",
    ]
    return load(None, [*words, "news.serving_epsilons=[inf]", *more])


def trained(chosen: Scenario) -> tuple[NewsData, TrainedNews]:
    data = load_news(chosen)
    catalogue = catalogue_of(chosen, data)
    (*_, done) = train_news(chosen, catalogue, LocalClients(chosen, catalogue, data.log.train))
    assert isinstance(done, TrainedNews)
    return data, done


def auc(chosen: Scenario, data: NewsData, done: TrainedNews) -> float:
    from fedrec.run.news_run import serving_guarantee

    scores = done.recommender.serve(
        data.log.test, guarantee=serving_guarantee(math.inf, chosen.privacy.delta), key=bytes(32)
    )
    return evaluate_impressions(scores, data.log.test).auc


def clicks_of(data: Impressions) -> np.ndarray:
    return np.add.reduceat(data.clicked.astype(int), data.candidate_ptr[:-1])


def test_the_made_up_folder_has_what_it_is_for(mind: Path) -> None:
    data = load_news(scenario(mind, "news.no_click=report")).log.train
    clicks = clicks_of(data)
    sizes = np.diff(data.candidate_ptr)
    assert set(np.unique(clicks)) >= {0, 1, 2, 3}
    assert sizes.min() == 2
    assert (clicks == sizes).any()


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["news.no_click=report"],
        ["news.open_categories=['sports']"],
        ["news.topics=categories"],
        ["news.variant=central", "privacy.unit=user"],
        ["news.variant=local", *FEW],
        ["news.variant=printed", *FEW],
        ["news.variant=dp-fedrec", *FEW],
        ["news.variant=fedrec", "privacy.epsilon=inf", *FEW],
        ["news.variant=centralized", "privacy.epsilon=inf"],
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_every_variant_trains_and_ranks_whatever_was_clicked(mind: Path, more: list[str]) -> None:
    chosen = scenario(mind, *more)
    data, done = trained(chosen)
    assert 0 <= auc(chosen, data, done) <= 1
    for array in done.parameters.values():
        assert np.isfinite(array).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [[], ["news.no_click=report"], ["news.open_categories=['sports']"]], ids=" ".join
)
def test_without_privacy_and_with_it_additive_finds_what_users_read(
    mind: Path, more: list[str]
) -> None:
    for epsilon in ("inf", "8"):
        chosen = scenario(mind, f"privacy.epsilon={epsilon}", *more)
        assert auc(chosen, *trained(chosen)) > 0.85


def test_impressions_without_a_click_are_left_out_or_answer_like_all_others(mind: Path) -> None:
    left_out, reporting = (
        load_news(scenario(mind, f"news.no_click={choice}")).log
        for choice in ("leave-out", "report")
    )
    assert (clicks_of(left_out.train) > 0).all()
    without = clicks_of(reporting.train) == 0
    assert len(left_out.train) == int((~without).sum())
    for part in (left_out.test, reporting.test):
        assert evaluate_impressions(np.zeros(len(part.candidates)), part).impressions == int(
            ((clicks_of(part) > 0) & (clicks_of(part) < np.diff(part.candidate_ptr))).sum()
        )
    chosen = scenario(mind, "news.no_click=report")
    data = load_news(chosen)
    catalogue = catalogue_of(chosen, data)
    from fedrec.news.trained import topics_of
    from fedrec.news.variant import promised
    from fedrec.privacy.click_accounting import plan_training

    plan = plan_training(promised(chosen), no_click=True)
    got = LocalClients(chosen, catalogue, data.log.train).reports(
        topics_of(chosen, catalogue), plan
    )
    assert len(got.labels.null) == len(data.log.train)
    assert got.labels.null.any()


def test_an_open_category_is_named_in_the_guarantee_and_a_wrong_one_is_refused(mind: Path) -> None:
    _, done = trained(scenario(mind, "news.open_categories=['sports']"))
    assert str(done.guarantee).endswith("clicks on open categories (sports) are not protected")
    with pytest.raises(SettingsError, match="no item has category 'weather'"):
        trained(scenario(mind, "news.open_categories=['weather']"))
    with pytest.raises(SettingsError, match="nothing to protect"):
        trained(scenario(mind, f"news.open_categories={list(TOPICS)}"))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["news.variant=local", "news.open_categories=['sports']"], "news.open_categories"),
        (["news.variant=local", "news.no_click=report"], "news.no_click"),
        (
            ["news.open_categories=['sports']", "news.no_click=report"],
            "a click in every impression",
        ),
        (["news.variant=additive", "news.word_vectors=x"], "news.word_vectors"),
        (["news.model=naml", "news.variant=local", "news.language_model=x"], "news.language_model"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(mind: Path, more: list[str], named: str) -> None:
    with pytest.raises(SettingsError) as failure:
        scenario(mind, *more)
    assert named in failure.value.cause


def test_unknown_news_are_refused_with_the_key_or_added_or_dropped(
    mind: Path, tmp_path: Path
) -> None:
    for name in ("train", "valid"):  # a layout that other tools use
        (tmp_path / name).mkdir()
        source = mind / ("MINDtiny_train" if name == "train" else "MINDtiny_dev")
        kept = (source / "news.tsv").read_text().splitlines()[:60]
        (tmp_path / name / "news.tsv").write_text("\n".join(kept) + "\n")
        (tmp_path / name / "behaviors.tsv").write_text((source / "behaviors.tsv").read_text())
    with pytest.raises(MalformedRowError) as failure:
        load_news(scenario(tmp_path))
    assert 'data.unknown_news = "add"' in failure.value.remedy
    added, dropped = (
        load_news(scenario(tmp_path, f"data.unknown_news={choice}")) for choice in ("add", "drop")
    )
    assert (len(added.news), len(dropped.news)) == (90, 60)
    assert 0 < len(dropped.log.train.candidates) < len(added.log.train.candidates)


def test_a_folder_without_dev_names_the_key_that_holds_users_out(mind: Path) -> None:
    with pytest.raises(DataError, match="no split dev") as failure:
        load_news(scenario(mind / "MINDtiny_train"))
    assert 'split.kind = "held-out-users"' in failure.value.remedy
    log = load_news(scenario(mind / "MINDtiny_train", "split.kind=held-out-users")).log
    # drawn by each user's id: about a tenth, and a tenth
    sizes = (log.train.num_users, log.validation.num_users, log.test.num_users)
    assert sum(sizes) == 120
    assert sizes[0] > 80
    assert min(sizes[1:]) >= 4


def test_a_part_of_mind_is_described_without_a_key_whatever_of_it_is_missing(
    mind: Path, tmp_path: Path
) -> None:
    """Train alone under the sample's name, with a news.tsv of three lines, and with none."""
    part = tmp_path / "MINDtiny_train-50"
    part.mkdir()
    (part / "behaviors.tsv").write_bytes((mind / "MINDtiny_train" / "behaviors.tsv").read_bytes())
    for lines in (0, 3):
        if lines:
            news = (mind / "MINDtiny_train" / "news.tsv").read_text().splitlines()[:lines]
            (part / "news.tsv").write_text("\n".join(news) + "\n")
        for folder in (part, tmp_path):
            words = [f"data.path={json.dumps(str(folder))}", *keys_of_news(str(folder), ())]
            told = describe(load(None, words))
            assert (told["format"], told["news"], told["news with a title"]) == (
                "mind",
                NEWS,
                lines,
            )
            assert told["train"]["users"] > told["test"]["users"] > 0
    assert "split.kind=held-out-users" not in keys_of_news(str(mind), ())


def test_entity_vectors_join_what_is_known_of_an_item(mind: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "entity_embedding.vec"
    vectors.write_text("Q0\t1\t0\t\nQ1\t0\t1\t\n")
    plain = scenario(mind)
    more = scenario(mind, f"news.entity_vectors={vectors}")
    data = load_news(plain)
    narrow, wide = (catalogue_of(chosen, data).vectors for chosen in (plain, more))
    assert wide.shape[1] == narrow.shape[1] + 2
    beside = wide[:, -2:]
    assert (beside[0::3, 0] > 0).all()
    assert (beside[1::3, 1] > 0).all()
    assert (beside[2::3] == 0).all()
    # a server on its own knows the same
    assert read_public_news(mind, "mind", more).vectors.tobytes() == wide.tobytes()
    vectors.write_text("Q77\t1\t0\t\n")
    with pytest.raises(DataError, match=r"names none of the .* entities"):
        catalogue_of(more, data)


def test_of_several_clicks_one_is_kept_beside_others_that_are_none(mind: Path) -> None:
    from fedrec.news.checkpoints import DeviceNoise
    from fedrec.news.local_update import Devices
    from fedrec.randomness import Streams

    data = load_news(scenario(mind)).log.train
    devices = Devices.of(data, history=6, labels=None)
    few = devices.with_few(3, noise=DeviceNoise.numbered(Streams(0), data.num_users))
    assert (few.labels.sum(1) == 1).all()
    assert few.candidates.shape[1] == 4
    clicked = [
        {int(j) for j in row[flags]}
        for row, flags in zip(devices.candidates, devices.labels, strict=True)
    ]
    for row, flags, clicks in zip(few.candidates, few.labels, clicked, strict=True):
        assert set(row[flags].tolist()) <= clicks
        assert not set(row[~flags].tolist()) & clicks
    sources = [DeviceNoise.numbered(Streams(seed), data.num_users) for seed in range(20)]
    drawn = {int(devices.with_few(3, noise=noise).candidates[0][0]) for noise in sources}
    assert drawn <= clicked[0]
