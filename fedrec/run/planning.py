"""`fedrec plan`: bytes, cores, memory, money and error of a training before there is data, from
public sizes and a rehearsal.

The rehearsal trains the scenario's recipe at its true plan for so many users, on a few hundred
planted ones, whose sums are multiplied to stand for all. What a user costs is measured there and
multiplied by the users; what an item costs, by the items, where the catalogue has more than
`REHEARSED_ITEMS`. So bytes are those of the real messages, up to how well they compress; times are
of one core of this machine, now. The error is another matter: it hangs on the people, and planted
ones do not tell it (`Law`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, assumed
from fedrec.data.planted import planted, shape_of_sizes
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import coded
from fedrec.federation.messages import Question, Release, train
from fedrec.federation.protocol import Invitation
from fedrec.federation.releases import noise_stds, party_noise
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import invitation_bytes
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import RecipeScenario, Scenario

REHEARSED_USERS = 400
REHEARSED_ITEMS = 12_000
LEAST_ITEMS = 50
_FEW = 60
PARQUET_BYTES = 6.6
"""Of an event in partitions: MovieLens 1M took 3.6, planted ratings with times 6.6."""


RECEIVED = 1.16
"""What planted users make of the model compresses worse than what real ones do, by this in the
middle of the kept runs (benchmarks/results/plan.json): predictions are divided by it."""


@dataclass
class Rehearsal:
    """A `Link` of the rehearsed users, whose sums stand for `users`.

    Seconds are of the rehearsed."""

    devices: Loopback
    prepared: Prepared
    users: int
    streams: Streams
    rounds: list[dict[str, float]] = field(default_factory=list)

    def answer(self, question: Question) -> Release:
        """One round: everything is measured, and the answer carries the noise of the plan."""
        sent = self.devices.bytes_up
        sums, map_s = _least(lambda: self._summed(question))
        up = (self.devices.bytes_up - sent) / _REPEATS
        _, noise_s = _least(
            lambda: [
                np.asarray(drawn).sum()
                for drawn in party_noise(question, self.prepared.plan, self.streams)
            ]
        )
        stds = noise_stds(question, self.prepared.plan)
        rng = self.streams.numpy("plan-noise", round=question.round)
        by_block = {
            block.name: stds[spec.name] for spec in question.releases for block in spec.blocks
        }
        factor = self.users / self.devices.interactions.num_users
        values = {
            block.name: total * block.step * factor
            + by_block[block.name] * rng.standard_normal(total.shape)
            for block, total in zip(question.blocks, sums.blocks, strict=True)
        }
        held = sum(8.0 * (block.rows * block.columns + block.rows) for block in question.blocks)
        numbers = float(sum(block.rows * block.columns for block in question.blocks))
        self.rounds.append(
            {
                "bytes_up": up,
                "map_s": map_s,
                "noise_s": noise_s,
                "sums_bytes": held,
                "numbers": numbers,
            }
        )
        return Release(values, by_block)

    def _summed(self, question: Question) -> ExactSums:
        sums = ExactSums(question.blocks)
        for reports in self.devices.checked(question):
            sums.add(reports)
        return sums


_REPEATS = 2


def _least(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the least of two times of all threads: the first compiles kernels."""
    found = None
    times = list[float]()
    for _ in range(_REPEATS):
        started = time.process_time()
        found = work()
        times.append(time.process_time() - started)
    return found, min(times)


@dataclass(frozen=True)
class Prices:
    """In any currency: of an hour of one core, of a gigabyte that leaves the servers, and of one
    kept for a month."""

    core_hour: float = 0.04
    gigabyte: float = 0.05
    gigabyte_month: float = 0.02


def plan(
    scenario: Scenario,
    *,
    users: int,
    items: int,
    events: int,
    cores: int = 1,
    prices: Prices | None = None,
    without_privacy: float = 0.0,
    spread: float = 0.0,
) -> dict[str, Any]:
    """Plan a training on ratings or clicks. without_privacy, spread: as `expected`.

    Raises SettingsError for news, impossible sizes and impossible guesses."""
    if scenario.learns_news:
        raise SettingsError(
            "fedrec plan is for ratings and clicks", "fedrec account says what news cost."
        )
    if min(users, items, events, cores) < 1 or events < users:
        sizes = f"{users} users, {items} items, {events} events, {cores} cores"
        raise SettingsError(
            f"{sizes}: none may be 0, and each user has an event or more", "Correct them."
        )
    error = _error(scenario, users, without_privacy=without_privacy, spread=spread)
    _rehearsed(scenario, _FEW, _FEW, _FEW)  # compiles kernels
    data, rounds, prepared = _rehearsed(scenario, users, items, events)
    some_users = data.num_users
    some_items = data.num_items
    by_user = users / some_users
    by_item = items / some_items
    map_s = sum(r["map_s"] for r in rounds) * by_user
    driver_s = sum(r["noise_s"] + r["server_s"] for r in rounds) * by_item
    up = sum(r["bytes_up"] for r in rounds) / some_users
    down = sum(r["bytes_down"] for r in rounds) * by_item / RECEIVED
    sums = max(r["sums_bytes"] for r in rounds) * by_item
    cost = prices or Prices()
    core_hours = (map_s + driver_s) / 3600
    stored = events * PARQUET_BYTES / 1e9
    return {
        "training": {"users": users, "items": items, "events": events, "recipe": scenario.recipe},
        "guarantee": asdict(prepared.plan.guarantee),
        "rehearsed": {"users": some_users, "items": some_items, "events": len(data)},
        "rounds": len(rounds),
        "releases": len(prepared.plan.releases),
        "bytes_up_per_user": up,
        "bytes_down_per_user": down,
        "terabytes_up": up * users / 1e12,
        "terabytes_down": down * users / 1e12,
        "partitions_gb": stored,
        "core_hours": core_hours,
        "minutes": (map_s / cores + driver_s) / 60,
        "seconds_of_a_user": map_s / users,
        "driver_gb": (2 * sums + down * 8) / 1e9,
        "worker_gb": 0.3 + (2 * sums + down * 8) / 1e9,
        "money_simulated": core_hours * cost.core_hour + stored * cost.gigabyte_month,
        "money_deployed": down * users / 1e9 * cost.gigabyte + driver_s / 3600 * cost.core_hour,
        "error": error,
        "by_round": rounds,
    }


def _error(
    scenario: RecipeScenario, users: int, *, without_privacy: float, spread: float
) -> dict[str, Any] | None:
    """None where the formula says nothing: of other recipes, clicks, and data without features."""
    rated = KINDS[assumed(scenario.data.kind)].rated
    if not (scenario.recipe == "default" and rated and scenario.data.features):
        return None
    try:
        return asdict(
            expected(
                users=users,
                epsilon=scenario.privacy.epsilon,
                delta=scenario.privacy.delta,
                value_range=scenario.data.rating_range or (1.0, 5.0),
                spread=spread,
                without_privacy=without_privacy,
            )
        )
    except ValueError as failure:
        raise SettingsError(str(failure), "Correct --without-privacy or --spread.") from None


def _rehearsed(
    scenario: Scenario, users: int, items: int, events: int
) -> tuple[Interactions, list[dict[str, float]], Prepared]:
    some_items = min(items, REHEARSED_ITEMS) if items >= LEAST_ITEMS else LEAST_ITEMS
    some_users = min(users, REHEARSED_USERS)
    each = max(1, min(round(events / users), int(0.25 * some_items)))
    kind = assumed(scenario.data.kind)
    scale = scenario.data.rating_range or (1.0, 5.0)
    dataset = planted(
        shape_of_sizes(some_users, some_items, some_users * each, value_range=scale, kind=kind),
        seed=scenario.seed,
    )
    data: Interactions = dataset.interactions
    features = dataset.features if scenario.data.features else None
    facts = PublicFacts(
        users, some_items, data.kind, data.value_range, features, Streams(scenario.seed)
    )
    prepared = prepare(scenario, facts)
    devices = Loopback(
        data, prepared.steps, prepared.plan, Streams(scenario.seed), Ledger(prepared.plan.guarantee)
    )
    rehearsal = Rehearsal(devices, prepared, users, Streams(scenario.seed))
    told: Mapping[str, Any] = {}
    rounds = list[dict[str, float]]()
    started = time.process_time()
    for done in train(prepared.recipe, rehearsal, prepared.recipe.begin()):
        measured = rehearsal.rounds[-1]
        server_s = (
            time.process_time() - started - _REPEATS * (measured["map_s"] + measured["noise_s"])
        )
        down = round_bytes(scenario.run_id(), prepared.plan, done.question, told)
        rounds.append({**measured, "bytes_down": down, "server_s": max(server_s, 0.0)})
        told = done.question.public
        started = time.process_time()
    return data, rounds, prepared


def round_bytes(run: str, plan: Plan, question: Question, told: Mapping[str, Any]) -> float:
    """What a client receives in a round; told: public arrays of the round before."""
    return float(invitation_bytes(Invitation(run, plan, question, coded(question.public, told))))


def table(found: Mapping[str, Any]) -> str:
    """Return the plan as a table for a terminal."""
    sizes = found["training"]
    seen = found["rehearsed"]
    rows = [
        ("rounds", f"{found['rounds']}, {found['releases']} releases"),
        ("a user sends", _bytes(found["bytes_up_per_user"])),
        ("a user receives", _bytes(found["bytes_down_per_user"])),
        (
            "all users send, receive",
            f"{found['terabytes_up']:.3g} TB, {found['terabytes_down']:.3g} TB",
        ),
        ("a user computes", f"{1000 * found['seconds_of_a_user']:.3g} ms"),
        (
            "all together",
            (
                f"{found['core_hours']:.3g} core hours, {found['minutes']:.3g} minutes on the "
                "cores given"
            ),
        ),
        ("driver, worker", f"{found['driver_gb']:.2g} GB, {found['worker_gb']:.2g} GB"),
        ("partitions", f"{found['partitions_gb']:.3g} GB"),
        ("money, simulated on a cluster", f"{found['money_simulated']:.3g}"),
        (
            "money, deployed to devices",
            f"{found['money_deployed']:.3g}, mostly what is sent to them without a cache",
        ),
    ]
    if error := found["error"]:
        rows.append(
            (
                "test RMSE",
                f"{error['rmse']:.3f}, give or take {error['off']:.3f}, from {error['from_what']}",
            )
        )
    width = max(len(name) for name, _ in rows)
    of = f"{sizes['users']:,} users, {sizes['items']:,} items, {sizes['events']:,} events"
    first = f"{sizes['recipe']}, {Guarantee(**found['guarantee'])}: {of}"
    last = (
        f"measured on {seen['users']:,} planted users and {seen['items']:,} items, on one core "
        "of this machine"
    )
    return "\n".join([first, *(f"{name:{width}}  {value}" for name, value in rows), last])


def _bytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


@dataclass(frozen=True)
class Law:
    """The error that a training will have, from what is public or may be guessed: users, epsilon,
    the spread of ratings, and the error that a factorisation reaches without privacy.

    A person's report has a bounded norm, so that what a training hears of everything at once is mu
    times a power of the number of users, whatever a person rated. Let f be the RMSE without privacy
    and s the standard deviation of ratings, which is the RMSE of one number for all. Privacy then
    takes away a share of what learning gains, log(s / f), on a logarithmic scale:

        log(rmse / f) = log(s / f) * a * log(1 + exp(b) / (mu n^c))

    mu is that of the guarantee (Dong, Roth, Su 2022). a, b and c are fitted to kept runs of the
    default recipe (`python -m benchmarks plan`, benchmarks/results/plan.json), which are all of one
    kind of data: ratings of films, with public features of films. How far off it was for a data set
    that it had not been fitted to is `OFF`. Without features the same form was off by .024, so that
    nothing is said of them.
    """

    a: float
    b: float
    c: float

    def rmse(self, *, users: int, mu: float, spread: float, without_privacy: float) -> float:
        """At most the spread: that of one number for everything."""
        gain = math.log(spread / without_privacy)
        if math.isinf(mu):
            return without_privacy
        lost = self.a * float(np.logaddexp(0.0, self.b - math.log(mu) - self.c * math.log(users)))
        return without_privacy * math.exp(gain * min(lost, 1.0))


LAW = Law(a=0.1575, b=2.73, c=0.3557)
OFF = 0.013
"""On a scale of 1 to 5, for a source that it had not seen: the largest of the kept runs."""
FLOOR_SHARE = 0.80
FLOOR_OFF = 0.05
"""The error without privacy in spreads: the middle of the kept runs, and how far these lie from
it."""
SPREAD_SHARE = 0.275
"""The spread as a share of the scale: that of ratings of films."""


@dataclass(frozen=True)
class Expected:
    """An RMSE and how far off it may be, either way; in words what it rests on."""

    rmse: float
    off: float
    from_what: str


def expected(
    *,
    users: int,
    epsilon: float,
    delta: float,
    value_range: tuple[float, float],
    spread: float = 0.0,
    without_privacy: float = 0.0,
) -> Expected:
    """What test error to expect. spread and without_privacy: 0 where nobody knows them.

    Raises ValueError where the error without privacy is not below the spread."""
    low, high = value_range
    s = spread or SPREAD_SHARE * (high - low)
    f = without_privacy or FLOOR_SHARE * s
    if not 0 < f < s:
        raise ValueError(f"an error without privacy of {f:g} is not below the spread {s:g}")
    mu = mu_for(epsilon, delta) if math.isfinite(epsilon) else math.inf
    found = LAW.rmse(users=users, mu=mu, spread=s, without_privacy=f)
    unit = (high - low) / 4  # of the runs that it was fitted to
    off = OFF * unit
    words = ["" if without_privacy else "an error without privacy guessed from the spread"]
    words += ["" if spread else "a spread guessed from the scale"]
    if not without_privacy:
        off += FLOOR_OFF * s
    return Expected(found, off, " and ".join(filter(None, words)) or "what was given")
