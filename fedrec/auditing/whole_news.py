"""An attack on the whole command for news: from two folders of MIND's files to everything that
leaves the devices.

Where the unit is a user (`central`, `central-encoder`), the folders differ in that user's lines,
and `whole` does the rest: the same trainings, the same measured noise, the same likelihood ratio of
all releases. Where it is a click, they differ in one click of one user's history, or in which
candidate that user clicked. What leaves the devices under `additive` and `local` are noised answers
and randomised labels, and the model is a function of these; of `dp-fedrec` it is that user's
gradient in every pass. They are made again and again by the registered variant's own code, and told
apart by the likelihood ratio, with the noise along the difference as it is measured.

The clicks exchanged are those of the catalogue whose public rows lie farthest apart: as far as
noise is calibrated to for `additive`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedrec.arrays import Float64s
from fedrec.auditing import one_click, whole
from fedrec.auditing.bounds import lower_bound
from fedrec.auditing.finding import Finding
from fedrec.auditing.whole import Seen, Trainable, World
from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions, News
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import SettingsError
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_clients import LocalClients
from fedrec.news.local_update import Behind, NoisedGradients
from fedrec.news.models import news_model
from fedrec.news.trained import Catalogue, item_vectors, topics_of
from fedrec.news.variant import of, promise, promised, rounds_of, schedule_of
from fedrec.privacy import bounded_mean
from fedrec.privacy.click_accounting import plan_training
from fedrec.randomness import Streams, noise_from
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.settings import NewsScenario, Scenario
from fedrec.settings_tables.data import DataSettings

Role = Literal["history", "label", "user"]

# small: thousands of trainings are told apart
_SHAPE = PlantedNewsShape(users=16, news=120, history_mean=3, impressions_mean=2, candidates=6)
_TRIED = 40  # ids of the person, until one belongs to the part that is trained on
_FROM = "from two folders of files"


@dataclass(frozen=True)
class Side:
    """One folder, read and divided: the scenario on it and what is trained on."""

    scenario: Scenario
    catalogue: Catalogue
    train: Impressions


def whole_news_findings(scenario: Scenario, *, runs: int = 0) -> Iterator[Finding]:
    """Lower bounds of epsilon from `runs` releases on each side; 0: as many as the claim asks for.

    Raises SettingsError."""
    variant = scenario.news.variant
    claim = promised(scenario)
    found = of(scenario)
    if not (found.private and claim.private and promise(scenario).established):
        raise SettingsError(
            f'news.variant = "{variant}" at epsilon {claim.epsilon:g} claims nothing',
            "Choose a private variant.",
        )
    if scenario.news.attention_noise == "laplace":
        raise SettingsError(
            (
                "the attack on the whole command knows Gaussian noise, and this scenario's is "
                "Laplace's"
            ),
            "Leave out --whole: noise as drawn is measured.",
        )
    count = runs or whole.runs_for(claim)
    if found.summed is not None:
        inside, outside = _sides(scenario, "user")
        scores = whole.likelihood_ratios(*_summed(inside, outside), runs=count)
        yield scores.finding("whole command", variant, claim, _FROM)
        return
    for role in ("history", "label"):
        inside, outside = _sides(scenario, role)
        name = f"whole command: {role}"
        if role == "label" and found.noise_on != "gradients":
            told = [np.array(list(_labels(side, count))) for side in (inside, outside)]
            bound = lower_bound(told[0], told[1], delta=claim.delta, gaussian=False)
            yield Finding(
                name,
                variant,
                claim,
                bound.epsilon,
                bound.by,
                bound.confidence,
                bound.draws,
                note=_FROM,
            )
            continue
        release = {"reports": _reports, "attention": _attention, "gradients": _gradients}[
            found.noise_on
        ]
        seen = [
            list(release(inside, outside, member=member, runs=count)) for member in (True, False)
        ]
        scores = whole.scores_of(*(iter(side) for side in seen), runs=count)
        yield scores.finding(name, variant, claim, _FROM)


# --- files ---


def _sides(scenario: Scenario, role: Role) -> tuple[Side, Side]:
    """Return both sides for the first id by which the person belongs to the part that is trained
    on."""
    planted = planted_news(_SHAPE, seed=scenario.seed)
    for number in range(_TRIED):
        with tempfile.TemporaryDirectory(prefix="audit-") as folder:
            pair = one_click.farthest(
                topics_of(
                    scenario,
                    Catalogue(
                        planted.news, item_vectors(scenario, planted.news, PublicFeatures({}))
                    ),
                )
            )
            clicks = [planted.news.ids[item] if item >= 0 else "" for item in pair]
            sides = []
            for inside in (True, False):
                place = Path(folder) / str(inside)
                for part in ("train", "dev"):
                    line = (
                        _person(f"person-{number}", role, clicks, planted.news, inside=inside)
                        if part == "train"
                        else []
                    )
                    _write(
                        place / part,
                        planted.news,
                        planted.log.train if part == "train" else planted.log.test,
                        line,
                    )
                # as `fedrec simulate` does, on this folder
                data = DataSettings(path=str(place), format="mind")
                here = scenario.model_copy(update={"data": data})
                read = load_news(here)
                sides.append(Side(here, catalogue_of(here, read), read.log.train))
        one, other = (side.train for side in sides)
        if any(not np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one)):
            return sides[0], sides[1]
    raise AssertionError("no id of the person belongs to the part that is trained on")


def _person(name: str, role: Role, clicks: Sequence[str], news: News, *, inside: bool) -> list[str]:
    """One history and one impression of six: the click is in the one or in the other; of the user's
    unit, the whole line."""
    if role == "user" and not inside:
        return []
    history = clicks[0 if inside or role != "history" else 1]
    clicked = 0 if inside or role != "label" else 1
    shown = [item for item in news.ids if item not in clicks][: _SHAPE.candidates]
    return [_line(name, history, [f"{item}-{int(at == clicked)}" for at, item in enumerate(shown)])]


def _line(user: str, history: str, shown: Sequence[str]) -> str:
    return "\t".join(["0", user, "11/15/2019 8:55:22 AM", history, " ".join(shown)])


def _write(folder: Path, news: News, log: Impressions, first: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    columns = zip(
        news.ids, news.categories, news.subcategories, news.titles, news.abstracts, strict=True
    )
    (folder / "news.tsv").write_text(
        "".join("\t".join([*row, "url", "[]", "[]"]) + "\n" for row in columns)
    )
    lines = list(first)
    for i, user in enumerate(log.users.tolist()):
        shown = slice(log.candidate_ptr[i], log.candidate_ptr[i + 1])
        history = " ".join(
            news.ids[j] for j in log.history[log.history_ptr[user] : log.history_ptr[user + 1]]
        )
        told = zip(log.candidates[shown].tolist(), log.clicked[shown].tolist(), strict=True)
        lines.append(
            _line(f"user-{user}", history, [f"{news.ids[j]}-{int(clicked)}" for j, clicked in told])
        )
    (folder / "behaviors.tsv").write_text("\n".join(lines) + "\n")


# --- what leaves the devices ---


def _sources(side: Side, *, member: bool, runs: int) -> Iterator[tuple[int, Scenario]]:
    """The scenario of each run: with a seed of its own where noise has seeds."""
    for seed in (
        Streams(side.scenario.seed)
        .numpy(f"audit/whole-news/{member}")
        .integers(2**31, size=runs)
        .tolist()
    ):
        yield seed, side.scenario.model_copy(update={"seed": seed})


def _along(values: Float64s, inside: Float64s, outside: Float64s, std: float) -> Seen:
    """The one number of a release that the difference is in, over the declared std."""
    d = (inside - outside).ravel()
    length = max(float(np.linalg.norm(d)), 1e-300)
    z = float((values - (inside + outside) / 2).ravel() @ d) / length
    return Seen(np.array([z / std]), np.array([length / std]))


def _reports(inside: Side, outside: Side, *, member: bool, runs: int) -> Iterator[list[Seen]]:
    mine = inside if member else outside
    topics = topics_of(inside.scenario, inside.catalogue)
    plan = plan_training(promised(inside.scenario))
    H = inside.scenario.news.history
    exact = [
        bounded_mean.coefficients(side.train.last_clicks(H), topics) for side in (inside, outside)
    ]
    for _, scenario in _sources(mine, member=member, runs=runs):
        got = LocalClients(scenario, mine.catalogue, mine.train).reports(topics, plan).coefficients
        yield [_along(got.values, exact[0], exact[1], got.noise_std)]


def _labels(side: Side, runs: int) -> Iterator[float]:
    """Whether the answer of the person names its first candidate, less whether it names the
    second."""
    plan = plan_training(promised(side.scenario))
    topics = topics_of(side.scenario, side.catalogue)
    for seed, scenario in _sources(side, member=bool(side.train.clicked[0]), runs=runs):
        if of(side.scenario).in_rounds is None:
            reported = (
                LocalClients(scenario, side.catalogue, side.train)
                .reports(topics, plan)
                .labels.reported[:2]
            )
        else:
            update = _device(scenario, side.train, seed)
            assert isinstance(update, Behind)
            reported = update.devices.labels[0, :2]
        yield float(reported[0]) - float(reported[1])


def _attention(inside: Side, outside: Side, *, member: bool, runs: int) -> Iterator[list[Seen]]:
    def released(update: Behind | NoisedGradients, model: object, round: int) -> Float64s:
        assert isinstance(update, Behind)
        return update.released(model, np.array([0]), round)  # type: ignore[arg-type]

    def bare(update: Behind | NoisedGradients) -> Behind | NoisedGradients:
        assert isinstance(update, Behind)
        return replace(update, plan=replace(update.plan, step=0.0))

    yield from _passes(inside, outside, released, bare, member=member, runs=runs)


def _gradients(inside: Side, outside: Side, *, member: bool, runs: int) -> Iterator[list[Seen]]:
    def released(update: Behind | NoisedGradients, model: object, round: int) -> Float64s:
        return np.asarray(update(model, np.array([0]), round)[0], np.float64)  # type: ignore[arg-type]

    def bare(update: Behind | NoisedGradients) -> Behind | NoisedGradients:
        assert isinstance(update, NoisedGradients)
        return replace(update, noise_std=0.0)

    yield from _passes(inside, outside, released, bare, member=member, runs=runs)


def _passes(
    inside: Side,
    outside: Side,
    released: Callable[[Behind | NoisedGradients, object, int], Float64s],
    bare: Callable[[Behind | NoisedGradients], Behind | NoisedGradients],
    *,
    member: bool,
    runs: int,
) -> Iterator[list[Seen]]:
    """The first user's answer in every pass of the schedule, at the model that training begins
    with."""
    scenario = inside.scenario
    users = inside.train.num_users
    form = rounds_of(scenario)
    passes = schedule_of(scenario, users).passes
    model = news_model(
        scenario, inside.catalogue.news, inside.catalogue.vectors, basis=form.basis(scenario)
    )
    both = [_device(scenario, side.train, scenario.seed) for side in (inside, outside)]
    exact = [
        [released(bare(update), model, round) for round in range(1, passes + 1)] for update in both
    ]
    mine = both[0 if member else 1]
    std = mine.plan.noise_std if isinstance(mine, Behind) else mine.noise_std
    for seed, _ in _sources(inside, member=member, runs=runs):
        update = replace(
            mine, noise=DeviceNoise.numbered(noise_from(scenario.privacy.noise, seed), users)
        )
        yield [
            _along(released(update, model, round), exact[0][round - 1], exact[1][round - 1], std)
            for round in range(1, passes + 1)
        ]


def _device(scenario: NewsScenario, train: Impressions, seed: int) -> Behind | NoisedGradients:
    form = rounds_of(scenario)
    passes = schedule_of(scenario, train.num_users).passes
    update = form.device(
        scenario,
        train,
        passes,
        DeviceNoise.numbered(noise_from(scenario.privacy.noise, seed), train.num_users),
    )
    assert isinstance(update, Behind | NoisedGradients)
    return update


def _summed(inside: Side, outside: Side) -> tuple[Trainable, World, World]:
    scenario = inside.scenario
    summed = of(scenario).summed
    assert summed is not None
    recipe = summed.recipe(scenario, inside.catalogue)
    return (
        Trainable(recipe, summed.steps(scenario), recipe.plan),
        World(scenario, inside.train),
        World(scenario, outside.train),
    )
