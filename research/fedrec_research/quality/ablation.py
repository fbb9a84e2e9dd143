"""Worth of each part of the default recipe: one part at a time is taken out or exchanged for what
it replaced.

Validation RMSE on MovieLens 1M, split seed 1; test is never read. Differences are paired by the
seed of the noise; their noise is the standard deviation of single differences, pooled over all
parts at one epsilon, over the square root of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import dp_accounting
import numpy as np
from dp_accounting import rdp

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.default_ratings import recipe as default
from fedrec.factorization.default_ratings.public_directions import public_content
from fedrec.factorization.default_ratings.settings import DefaultSettings, settings_for
from fedrec.factorization.empirical_bayes import ItemPosterior, regress
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.federation.messages import BlockReports, ClientStep, Question, Release, Reports
from fedrec.in_process import Loopback
from fedrec.numerics import segments
from fedrec.privacy.accounting import Ledger, epsilon_of
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import Scenario
from fedrec.storage import finite
from fedrec_research.quality.quality import DELTA, Method, scenario_of
from fedrec_research.runner import rmse
from fedrec_research.sealed import load_sealed
from fedrec_research.trials import Asked, Row

EPSILONS = (1.0, 5.0, 20.0)
SEEDS = (1, 2)
QUICK = ("default", "weights all alike", "users believe item vectors to be exact")


def _as_it_is(settings: DefaultSettings) -> DefaultSettings:
    return settings


def _whole(guarantee: Guarantee) -> Guarantee:
    return guarantee


@dataclass(frozen=True)
class Part:
    """What is done instead: to the settings, to the budget that may be spent, to features, to
    reports below the limit.

    `against` names the row that this one is compared with.
    """

    change: Callable[[DefaultSettings], DefaultSettings] = _as_it_is
    budget: Callable[[Guarantee], Guarantee] = _whole
    features: bool = True
    clip_only: bool = False
    against: str = "default"


def by_rdp(guarantee: Guarantee) -> Guarantee:
    """What is left of a budget that is calibrated by RDP (orders as they come): its exact
    epsilon."""
    accountant = rdp.RdpAccountant
    event = dp_accounting.GaussianDpEvent
    sigma = dp_accounting.calibrate_dp_mechanism(
        accountant, event, guarantee.epsilon, guarantee.delta
    )
    return Guarantee(epsilon_of(1 / float(sigma), guarantee.delta), guarantee.delta)


def by_am_ssp(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee by AM-SSP Thm 2, taken for the run as a whole: mu = epsilon / (2
    sqrt(log 1/delta))."""
    mu = guarantee.epsilon / (2 * math.sqrt(math.log(1 / guarantee.delta)))
    return Guarantee(epsilon_of(mu, guarantee.delta), guarantee.delta)


def raw(
    observed: Float64s,
    variance: Float64s,
    features: Float64s,
    *,
    sweeps: int = 0,
    start: float = 0.0,
    trust: float = 0.0,
) -> ItemPosterior:
    """Every item's own observation, cut to the scale."""
    return ItemPosterior(np.clip(observed, -2, 2), variance, math.inf, math.inf)


def fixed_prior(
    observed: Float64s,
    variance: Float64s,
    features: Float64s,
    *,
    sweeps: int = 0,
    start: float = 0.0,
    trust: float = 0.0,
) -> ItemPosterior:
    """Shrunk towards zero by a prior variance of .1 that knows neither data nor features."""
    kept = 0.1 / (0.1 + variance)
    return ItemPosterior(kept * observed, 0.1 * (1 - kept), 0.1, math.inf)


def certain(
    observed: Float64s,
    variance: Float64s,
    features: Float64s,
    *,
    sweeps: int = 10,
    start: float = 0.02,
    trust: float = 0.0,
) -> ItemPosterior:
    """Posterior means, believed to be exact."""
    return replace(
        regress(observed, variance, features, sweeps=sweeps, start=start, trust=trust),
        variance=np.zeros(len(observed)),
    )


def _shares(settings: DefaultSettings, **given: float) -> DefaultSettings:
    """Other shares for counts or biases; the steps take the difference."""
    changed = replace(settings, **given)  # type: ignore[arg-type]
    left = 1 - changed.counts - changed.biases - changed.pairs - changed.tastes
    steps = sum(settings.steps)
    return replace(changed, steps=tuple(s / steps * left for s in settings.steps))


def _growth(settings: DefaultSettings, factor: float) -> DefaultSettings:
    steps = [factor**t for t in range(len(settings.steps))]
    return replace(settings, steps=tuple(sum(settings.steps) * s / sum(steps) for s in steps))


PARTS: Mapping[str, Part] = {
    "default": Part(),
    "no public features": Part(features=False),
    "no steps: biases and content only": Part(lambda s: replace(s, steps=())),
    "no Gram of pairs": Part(lambda s: _shares(s, pairs=0.0)),
    "biases learned in the steps, not first": Part(lambda s: _shares(s, biases=1e-4)),
    "calibrated by RDP": Part(budget=by_rdp),
    "calibrated by AM-SSP Theorem 2": Part(budget=by_am_ssp),
    "weights all alike": Part(lambda s: replace(s, weight_exponent=0.0)),
    "weights n^-1/2": Part(lambda s: replace(s, weight_exponent=0.5)),
    "reports clipped, not scaled to norm 1": Part(clip_only=True),
    "noised sums not shrunk": Part(lambda s: replace(s, read=raw)),
    "shrunk by one fixed prior": Part(lambda s: replace(s, read=fixed_prior)),
    "users believe item vectors to be exact": Part(lambda s: replace(s, read=certain)),
    "the same budget at every step": Part(lambda s: _growth(s, 1.0)),
    "budget 1:2:4 over the steps": Part(lambda s: _growth(s, 2.0)),
    "2% of the budget for counts": Part(lambda s: _shares(s, counts=0.02)),
    "last solve in the learned directions only": Part(lambda s: replace(s, served=s.learned)),
    "no features, and iid noise on the taste Gram": Part(
        lambda s: replace(s, isometric=False), features=False, against="no public features"
    ),
}


def run(asked: Asked) -> Row:
    """Every part at every epsilon; of a small part two parts at epsilon 5."""
    epsilons, names = ((5.0,), QUICK) if asked.quick else (EPSILONS, tuple(PARTS))
    seeds = asked.seeds_of(SEEDS)
    rows = asked.by_seed(
        {(e, name): (train, asked.path, name, e) for e, name in product(epsilons, names)}, seeds
    )
    protocol = {
        "split": "random 80/10/10, seed 1",
        "noise_seeds": list(seeds),
        "delta": DELTA,
        "read": "validation",
    }
    found = [_compared(e, {name: rows[e, name] for name in names}) for e in epsilons]
    return dict(finite({"protocol": protocol, "epsilons": found}))


def train(data: str, name: str, epsilon: float, seed: int) -> Row:
    """One training of the default recipe with one part exchanged: its validation RMSE."""
    part = PARTS[name]
    promised = Guarantee(epsilon, DELTA)
    facts = _facts(data, seed, part.features)
    sealed = load_sealed(_scenario(data, part.features))[1]
    events = sealed.train
    chosen = settings_for(
        promised, users=facts.num_users, items=facts.num_items, features=facts.features is not None
    )
    settings = part.change(chosen)
    plan = calibrate(part.budget(promised), settings.shares)
    content = _content(data, settings.feature_dimension) if part.features else None
    recipe = default.DefaultRecipe(plan, settings, facts, content)
    steps = default.CLIENT_STEPS
    if part.clip_only:
        steps = {kind: _clipped(step) for kind, step in steps.items()}
    ledger = Ledger(plan.guarantee)
    users = max(events.num_users, 1)
    link = Loopback(events, steps, plan, Streams(seed), ledger, users_per_batch=users)
    state = recipe.begin()
    while (question := recipe.ask(state)) is not None:
        answer = link.answer(question)
        read = _refilled(question, answer, events) if part.clip_only else answer
        state = recipe.tell(state, question, read)
    error = rmse(recipe.model(state), sealed.validation)
    return {"rmse": error, "spent_epsilon": plan.guarantee.epsilon}


def _compared(epsilon: float, rows: Mapping[str, list[Row]]) -> Row:
    each = {name: np.array([row["rmse"] for row in found]) for name, found in rows.items()}
    differences = {name: each[name] - each[PARTS[name].against] for name in rows}
    seeds = len(rows["default"])
    singles = [d for name, d in differences.items() if name != "default"]
    parts = {
        name: {
            "rmse": float(each[name].mean()),
            "each": each[name].tolist(),
            "against": PARTS[name].against,
            "difference": float(differences[name].mean()),
            "spent_epsilon": found[0]["spent_epsilon"],
        }
        for name, found in rows.items()
    }
    noise = math.nan
    if seeds > 1:
        noise = math.sqrt(float(np.var(singles, axis=1, ddof=1).mean()) / seeds)
    return {"epsilon": epsilon, "noise": noise, "parts": parts}


def _scenario(data: str, features: bool) -> Scenario:
    return scenario_of(data, Method("default", features, 1.0), 1)


def _facts(data: str, seed: int, features: bool) -> PublicFacts:
    scenario = _scenario(data, features)
    return replace(public_facts(scenario.seed, *load_sealed(scenario)), streams=Streams(seed))


@cache
def _content(data: str, dimension: int) -> Float64s | None:
    """Return the content of the data's features, computed once: it depends on neither budget nor
    seed."""
    return public_content(_facts(data, 0, True), dimension=dimension)


# --- clip-only reports: the comparison to scaling every user to exactly its budget ---


def _clipped(step: ClientStep) -> ClientStep:
    """Users whose weights are below the limit stay below it, as where weights are only clipped
    (Ada-DPALS eq. 12)."""

    def report(question: Question, mine: Interactions) -> Reports:
        exact = step(question, mine)
        fill = _fill(question, mine)
        if np.all(fill == 1):  # a Gram of pairs has no coefficient a rating
            return exact
        per_event = np.repeat(fill, np.diff(mine.user_ptr))
        users = len(fill)
        blocks = [
            b if len(b.coefficients) == users != len(mine) else _shrunk(b, per_event)
            for b in exact.blocks
        ]
        return replace(exact, blocks=tuple(blocks))

    return report


def _shrunk(block: BlockReports, per_event: Float64s) -> BlockReports:
    return replace(block, coefficients=np.trunc(block.coefficients * per_event).astype(np.int32))


def _fill(question: Question, mine: Interactions) -> Float64s:
    """(num_users,) how much of its budget a user fills.

    The limit is the median user's norm: read from the data, in favour of clipping."""
    if "omega" not in question.public or "items" in question.public:
        return np.ones(mine.num_users)
    norms = np.sqrt(
        segments.squares(
            mine.user_ptr, np.asarray(question.public["omega"], np.float64)[mine.items]
        )
    )
    return np.minimum(1.0, norms / max(float(np.median(norms)), 1e-12))


def _refilled(question: Question, answer: Release, data: Interactions) -> Release:
    """Sums and noise over the mean fill of an event, so that the server reads both on the scale it
    expects."""
    mean = float(np.average(_fill(question, data), weights=np.diff(data.user_ptr)))
    sparse = {block.name: mean if block.rows > 1 else 1.0 for block in question.blocks}
    values = {name: value / sparse[name] for name, value in answer.values.items()}
    return Release(values, {name: std / sparse[name] for name, std in answer.noise_std.items()})
