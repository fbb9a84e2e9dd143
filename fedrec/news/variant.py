"""Variant of news training as one value: what it protects, what each of its releases costs, and how
it trains.

`releases` is the only place where a variant is priced: `fedrec account`, the ledgers, the limit per
person, audits and reports read it. Variants of fedrec's own are modules of `fedrec.news.variants`,
loaded by name; a package names another one in its metadata:

    [project.entry-points."fedrec.news_variants"]
    my-variant = "my_package.news:VARIANT"

What needs PyTorch is loaded when it runs, so that a scenario can be read and priced without it.

Schedule of variants that train in rounds: how often each user answers, what each answer may
cost, and the paper's constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Literal

from fedrec.arrays import Float32s
from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.federation.messages import ClientStep, Recipe
from fedrec.news.checkpoints import NOTHING, DeviceNoise, Kept
from fedrec.news.rounds import FedAdam, Schedule
from fedrec.news.sensitivity import exempt
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit, non_private
from fedrec.privacy.mixtures import Event
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients
    from fedrec.news.rounds import LocalUpdate


GROUP = "fedrec.news_variants"
VARIANTS = (
    "additive",
    "local",
    "central",
    "central-encoder",
    "printed",
    "fedrec",
    "dp-fedrec",
    "centralized",
)
"""Fedrec's own, each a module of `fedrec.news.variants`."""

ENCODER = frozenset({"language_model", "serving_noise", "sizes", "word_vectors"})
"""Keys of `[news]` that variants read which train an encoder."""
PURE = "pure: holds with delta = 0, but for what the sampler rounds (fedrec/privacy/laplace.py)"
"""The note of a training whose every release is pure."""

Training = Callable[
    [NewsScenario, Catalogue, "NewsClients", Kept], Iterator[Progress | TrainedNews]
]
BASIS = 5
NEGATIVES = 4
"""B of the paper's experiments, and k of ours: its text says none."""
THETA = 0.5
GRADIENT_CLIP = 0.005
VECTOR_CLIP = 0.001
"""theta of attention (ours: the paper does not say), of DP-FedRec's gradients and of its user
vectors (Sec. 4)."""
LEARNING_RATE = 3e-3  # of FedAdam on the server, by judgement


@dataclass(frozen=True)
class Releases:
    """One kind of release, made `times` times, and paid by `seen_by`: what it costs each time."""

    event: Event
    seen_by: str
    times: int = 1


@dataclass(frozen=True)
class InRounds:
    """A variant whose devices answer in rounds (Alg. 3). passes: where the scenario leaves them
    open; basis: of its model; device: from the clicks of some users and their noise to what they
    send; sent: in words, and its noise on each number; clip: of what is noised whole.
    """

    passes: int
    basis: Callable[[NewsScenario], int]
    device: Callable[[NewsScenario, Impressions, int, DeviceNoise], LocalUpdate]
    sent: Callable[[NewsScenario, int], tuple[tuple[str, float], ...]]
    clip: Callable[[NewsScenario], float] | None = None
    random_basis: bool = False


@dataclass(frozen=True)
class Summed:
    """A variant whose reports an aggregator sums: what is public of a catalogue, the server's side
    of a scenario from that alone, and the steps of its devices by the name that a question gives.
    """

    public: Callable[[NewsScenario, Catalogue], tuple[TopicTable, Float32s]]
    made: Callable[[NewsScenario, TopicTable, Float32s], Recipe]
    steps: Callable[[NewsScenario], Mapping[str, ClientStep]]

    def recipe(self, scenario: NewsScenario, catalogue: Catalogue) -> Recipe:
        """The server's side."""
        return self.made(scenario, *self.public(scenario, catalogue))


@dataclass(frozen=True, kw_only=True)
class NewsVariant:
    """One way to train a news recommender.

    Args:
        name: In small letters, as in `news.variant`.
        train: From a scenario, the catalogue, clients and what is kept to the trained model.
        unit: Who is protected.
        noise_on: What carries the noise, which decides what an audit can measure.
        costs: Of one user's clicks, answered in so many passes.
        plan: Of sums at an aggregator, in place of `costs`.
        in_rounds: How devices answer, of a variant that trains in rounds.
        summed: Both halves, of a variant whose reports an aggregator sums.
        not_established: Why the guarantee is not proved; empty where it is.
        on_devices: False where the clicks themselves are collected.
        encoders: Whether it answers by a published model, `news.model`, rather than by public
            rows of topics.
        models: Values of `news.model` that it has.
        keys: Of `[news]`, those that only some variants read.

    >>> found = require("central")
    >>> found.unit, found.noise_on, found.private
    ('user', 'sums', True)
    """

    name: str
    train: Training
    unit: Unit = "click"
    noise_on: Literal["reports", "sums", "attention", "gradients", "nothing"]
    costs: Callable[[NewsScenario, int], Costs] | None = None
    plan: Callable[[NewsScenario], Plan] | None = None
    in_rounds: InRounds | None = None
    summed: Summed | None = None
    not_established: str = ""
    on_devices: bool = True
    encoders: bool = True
    models: frozenset[str] = frozenset({"nrms", "naml", "plm-nr"})
    keys: frozenset[str] = frozenset()

    @property
    def private(self) -> bool:
        """Whether it has any noise."""
        return self.noise_on != "nothing"

    def releases(self, scenario: NewsScenario, passes: int) -> tuple[Releases, ...]:
        """Everything that one training releases, and who pays it: clicks by role, or for both
        together where both see the same.

        Args:
            scenario: Of news.
            passes: How many times all users answer.

        Returns:
            One entry for each kind of release.
        """
        if self.plan is not None:
            plan = self.plan(scenario)
            events = (plan.event(release.name) for release in plan.releases)
            return _counted(
                (replace(event, name=event.name.partition("/")[0]) for event in events), "a user"
            )
        assert self.costs is not None
        costs = self.costs(scenario, passes)
        if costs.history == costs.labels or not costs.labels:
            return _counted(costs.history, "a click")
        return *_counted(costs.history, "a click of the history"), *_counted(
            costs.labels, "a click that is a label"
        )


def _counted(events: Iterator[Event] | tuple[Event, ...], seen_by: str) -> tuple[Releases, ...]:
    return tuple(Releases(event, seen_by, times) for event, times in Counter(events).items())


_REGISTERED: dict[str, NewsVariant] = {}


def register(variant: NewsVariant) -> NewsVariant:
    """Make a variant known by its name.

    Args:
        variant: Replaces a registered one of its name.

    Returns:
        The same variant.

    Raises:
        SettingsError: The name is one of fedrec's own.

    >>> from dataclasses import replace
    >>> register(replace(require("additive"), name="additive-2")).name
    'additive-2'
    """
    if variant.name in VARIANTS:
        raise SettingsError(
            f"news.variant {variant.name!r} is one of fedrec's own", "Choose another name."
        )
    _REGISTERED[variant.name] = variant
    return variant


def find(name: str) -> NewsVariant | None:
    """The variant of this name: fedrec's own, a registered one, or one with an entry point.

    Args:
        name: In small letters, as in `news.variant`.

    Returns:
        The variant, or None where there is none.

    Raises:
        SettingsError: An entry point cannot be loaded.

    >>> find("additive").noise_on
    'reports'
    """
    found: Any = None
    if name in VARIANTS:
        found = import_module(f"fedrec.news.variants.{name.replace('-', '_')}").VARIANT
    elif name in _REGISTERED:
        found = _REGISTERED[name]
    else:
        for point in metadata.entry_points(group=GROUP, name=name):
            found = point.load()
    return found if isinstance(found, NewsVariant) else None


def names() -> tuple[str, ...]:
    """Names of all variants.

    Returns:
        Fedrec's own first.

    >>> names()[:3]
    ('additive', 'local', 'central')
    """
    return tuple(
        dict.fromkeys(
            [*VARIANTS, *_REGISTERED, *(point.name for point in metadata.entry_points(group=GROUP))]
        )
    )


def require(name: str) -> NewsVariant:
    """Finds a variant as `find` does.

    Args:
        name: In small letters, as in `news.variant`.

    Returns:
        The variant.

    Raises:
        SettingsError: There is no such variant.

    >>> require("additive").unit
    'click'
    """
    if (found := find(name)) is None:
        raise SettingsError(
            f"there is no variant {name!r} of news training", f"Use one of: {', '.join(names())}."
        )
    return found


def of(scenario: NewsScenario) -> NewsVariant:
    """The scenario's."""
    return require(scenario.news.variant)


def rounds_of(scenario: NewsScenario) -> InRounds:
    """Rounds of the scenario's variant.

    Raises SettingsError where it does not train in rounds on devices."""
    if (found := of(scenario).in_rounds) is None:
        raise SettingsError(
            f'news.variant = "{scenario.news.variant}" does not train in rounds on devices',
            "Choose one that does.",
        )
    return found


def costs_of(scenario: NewsScenario, passes: int) -> Costs:
    """What a training charges one user's clicks.

    Raises ValueError where the variant is priced per user, by its plan."""
    if (costs := of(scenario).costs) is None:
        raise ValueError(f"{scenario.news.variant} is priced per user already")
    return costs(scenario, passes)


def train_news(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, *, kept: Kept = NOTHING
) -> Iterator[Progress | TrainedNews]:
    """Train the scenario's variant over clients, yielding progress and, last, the trained model; on
    from what is kept.

    Raises PrivacyError where a ledger refuses, and what the clients raise.
    """
    return of(scenario).train(scenario, catalogue, clients, kept)


def promised(scenario: NewsScenario) -> Guarantee:
    """What training promises, in the unit of the variant."""
    privacy = scenario.privacy
    unit = of(scenario).unit
    neighbours: Neighbours = "add/remove" if unit == "user" else "replace"
    if privacy.epsilon == float("inf"):
        return non_private(privacy.delta, unit, neighbours)
    notes = (
        exempt(scenario.news.open_categories),
        PURE if scenario.news.attention_noise == "laplace" else "",
    )
    return Guarantee(
        privacy.epsilon,
        privacy.delta,
        unit,
        neighbours,
        note="; ".join(note for note in notes if note),
    )


def promise(scenario: NewsScenario) -> Guarantee:
    """The guarantee of `promised`, with what is not established of it."""
    found = promised(scenario)
    note = of(scenario).not_established
    if not note and found.private and scenario.news.accounting == "per-round":
        note = "each round is charged alone, as published"
    return replace(found, established=False, note=note) if note else found


def times_charged(scenario: NewsScenario, passes: int) -> int:
    """How many answers of a user share epsilon: all, or one where each round is charged alone."""
    return passes if scenario.news.accounting == "whole" else 1


def per_answer(guarantee: Guarantee, answers: int) -> Guarantee:
    """What each of so many Gaussian answers on the same data may cost, for all of them to have
    `guarantee`."""
    if not guarantee.private or answers == 1:
        return guarantee
    mu = mu_for(guarantee.epsilon, guarantee.delta) / math.sqrt(answers)
    return replace(guarantee, epsilon=epsilon_of(mu, guarantee.delta))


def schedule_of(scenario: NewsScenario, num_users: int) -> Schedule:
    """The variant's passes, or what `news.rounds` rounds come to, rounded up to whole ones: how
    often each user answers."""
    news = scenario.news
    in_rounds = of(scenario).in_rounds
    users = min(news.users_per_round or 64, num_users)
    a_pass = max(1, round(num_users / users))
    chosen = (
        math.ceil(news.rounds / a_pass) if news.rounds else in_rounds.passes if in_rounds else 1
    )
    return Schedule(
        chosen, users, FedAdam(learning_rate=news.learning_rate or LEARNING_RATE, tau=1e-6)
    )
