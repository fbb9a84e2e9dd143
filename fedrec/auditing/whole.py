"""An attack on the whole command: from two files that differ in one person to everything that the
trainings on them release.

Each file is read, divided and prepared by the command's own code, once; then it is trained on many
times, with the noise that the scenario asks for, and the questions of each training are released
again and again, which costs less than another training and has the same law. The adversary knows
everything but the noise: both files, both divisions, the questions of a run, and so the exact sums
A (with) and B (without) of every block that was released. It sees the releases r.

What it learns of the noise. On a quarter of the runs it measures the covariance R of the noise
between all blocks of a run, number i of one with number i of another, in units of the declared
stds: it takes neither a declared std nor independence on trust. Noise that is missing, or that
blocks share, makes R singular; what it then hides is seen exactly.

The test. With d = A - B and z = r - (A + B) / 2, both over the declared stds, the score of a run of
the rest is the sum over i of d_i' R^-1 z_i: the likelihood ratio of Gaussians, which no test excels
(Neyman and Pearson). For independent noise of the declared stds it is normal with variance mu^2 and
means +- mu^2 / 2, where mu^2 = sum |A - B|^2 / std^2: what a plan promises of a person at the full
radius of every release. `bounds.separation_bound` makes an epsilon of the scores.

The spread. Of every block the standard deviation that was drawn over the one that was planned is
told, over all runs; a block that is off by more than a twentieth, and two standard errors, refutes
the claim whatever epsilon the test finds: a difference between two people may hardly touch it.

Large releases. One release of the first question is drawn once more at sizes above every chunk of
the sampler, over sums of zero: in pieces, each must have the planned spread, and none may be
another's. Noise that comes twice, in two runs, two blocks or two pieces, refutes the claim: noise
of 16 bits of entropy does among a few thousand runs. And every report of tens of thousands of
people must be within its radius.

Public to both runs: catalogue, scale, and the number of users, which is that of the file with the
person.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from fedrec.arrays import Float64s, Int64s
from fedrec.auditing.bounds import separation_bound
from fedrec.auditing.finding import Finding
from fedrec.data.kinds import KINDS, assumed
from fedrec.data.planted import PlantedShape, planted
from fedrec.factorization.facts import PublicFacts, public_facts
from fedrec.federation.messages import ClientStep, Question, Recipe, Release, Shared, train
from fedrec.federation.releases import noise_stds, parties, party_noise, release
from fedrec.federation.reports import ExactSums, within_radius
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams, noise_from
from fedrec.recipes import prepare
from fedrec.registry import require
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario
from fedrec.settings_tables.data import DataSettings

_FEW = 16
"""Two blocks that share fewer numbers are taken for independent: their covariance would be a
guess."""
_RIDGE = 1e-6  # of a number's declared noise variance: below, noise counts as none
# runs; and times 1 / mu^2, which is what keeps the error of an estimated mu in proportion
_LEAST_RUNS = 1_000
_EFFORT = 1_000
_OFF = 0.05
"""Of a block's standard deviation: what is left when it was measured exactly."""
_LARGE = 5_000_000  # numbers of a block: 76 sections of the sampler
_PIECE = 4_096  # a mean square of so many normal numbers is off by a sixth once in 10^13
_PIECE_OFF = 1 / 6  # see `_PIECE`
_CROWD = 40_960  # people: ten times the most whose rows are squared together
_TRAININGS = 40  # on each side: other runs release the same questions again

PERSON = "a-person"
_SHAPE = PlantedShape(users=60, items=24, events=60 * 7, least_events=4)
_OF_PERSON = 10  # events: enough for every split to leave some to train on
_RATINGS = (1.0, 5.0)  # the scale of the invented rows

Asked = tuple[Question, Release, tuple[Int64s, ...], tuple[Int64s, ...]]
"""A question, its release, and its exact sums with and without the person."""


@dataclass(frozen=True)
class World:
    """What the command makes of one file: the training data, and what it would train with."""

    scenario: Scenario
    train: Shared
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trainable:
    """What trains: a server's side, what runs on devices, and the plan that both obey."""

    recipe: Recipe
    steps: Mapping[str, ClientStep]
    plan: Plan


@dataclass(frozen=True)
class Seen:
    """One block of one run, over the declared stds: z (n,) = r - (A + B) / 2 and d (n,) = A - B."""

    z: Float64s
    d: Float64s
    name: str = "noise"


@dataclass(frozen=True)
class Spread:
    """Spread of one block's noise over all runs: the standard deviation that was drawn over the
    planned one, and how many numbers it was measured on."""

    ratio: float
    numbers: int

    @property
    def right(self) -> bool:
        """Whether it is off by at most a twentieth and two standard errors: noise as planned fails
        this with probability below 1e-6, at 1,000 numbers or more."""
        return abs(self.ratio - 1) <= _OFF + 2 / math.sqrt(2 * self.numbers)


@dataclass(frozen=True)
class Scores:
    """Scores of runs with and without the person, those left out that the covariance was measured
    on; and the spread of each block's noise over all runs."""

    inside: Float64s
    outside: Float64s
    spreads: Mapping[str, Spread]
    repeated: int = 0
    """Blocks whose noise, all numbers of it, was that of another one."""

    def finding(self, attack: str, variant: str, claim: Guarantee, note: str) -> Finding:
        """The bound of these scores; refuted where a block's noise is not as planned."""
        bound = separation_bound(self.inside, self.outside, delta=claim.delta)
        wrong = [name for name, spread in self.spreads.items() if not spread.right]
        shown = {name: f"{name} {spread.ratio:.3f}" for name, spread in self.spreads.items()}
        told = f"noise drawn over planned: {', '.join(shown.values())}"
        if wrong:
            told = f"NOISE IS NOT AS PLANNED: {', '.join(shown[name] for name in wrong)}; {told}"
        if self.repeated:
            told = f"NOISE COMES TWICE: {self.repeated} blocks of all runs; {told}"
        return Finding(
            attack,
            variant,
            claim,
            bound.epsilon,
            bound.by,
            bound.confidence,
            bound.draws,
            refuted=bool(wrong or self.repeated),
            note=f"{note}; {told}",
            spreads={name: spread.ratio for name, spread in self.spreads.items()},
        )


def whole_finding(scenario: Scenario, *, runs: int = 0) -> Finding:
    """A lower bound of epsilon from `runs` trainings with the person and as many without; 0:
    `runs_for` the claim."""
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        rated = KINDS[assumed(scenario.data.kind)].rated
        clicks = not rated or "ratings" not in require(scenario.recipe).kinds
        (facts, inside), (_, outside) = (
            _world(scenario.model_copy(update={"data": data}))
            for data in planted_neighbours(scenario.seed, Path(folder), clicks=clicks)
        )
    made = prepare(inside.scenario, facts)
    prepared = Trainable(made.recipe, made.steps, made.plan)
    claim = prepared.plan.guarantee
    if not claim.private:
        return Finding(
            "whole command", scenario.recipe, claim, math.inf, "exact", 1.0, note="no noise"
        )
    if inside.items != outside.items:
        note = "the person changes the catalogue"
        return Finding(
            "whole command", scenario.recipe, claim, math.inf, "exact", 1.0, refuted=True, note=note
        )
    scores = likelihood_ratios(prepared, inside, outside, runs=runs or runs_for(claim))
    words = "from two files to all releases"
    found = scores.finding("whole command", scenario.recipe, claim, words)
    faults = list(_faults_at_large(prepared, inside))
    if not faults:
        return found
    return replace(found, refuted=True, note=f"{'; '.join(faults).upper()}; {found.note}")


def _faults_at_large(prepared: Trainable, world: World) -> Iterator[str]:
    """What is wrong with noise of large blocks, and with reports of a crowd."""
    question = prepared.recipe.ask(prepared.recipe.begin())
    if question is None:
        return
    stds = noise_stds(question, prepared.plan)
    shapes = [(-(-_LARGE // block.columns), block.columns) for block in question.blocks]
    for party in parties(noise_from(world.scenario.privacy.noise, 0), prepared.plan):
        blocks = [(spec, block) for spec in question.releases for block in spec.blocks]
        drawn = party_noise(question, prepared.plan, party, shapes)
        seen = set[bytes]()
        for (spec, block), noise in zip(blocks, drawn, strict=True):
            share = block.form.relative_std(block.width, isometric=spec.isometric)
            std = stds[spec.name] / math.sqrt(len(parties(Streams(0), prepared.plan)))
            z = (noise * (block.step / std) / share).ravel()
            pieces = z[: len(z) // _PIECE * _PIECE].reshape(-1, _PIECE)
            spread = np.mean(pieces**2, axis=1)
            if np.abs(spread - 1).max() > _PIECE_OFF:
                yield f"noise of {block.name} is not as planned in a large block"
            before = len(seen)
            seen |= {hashlib.sha256(piece.tobytes()).digest() for piece in pieces}
            if len(seen) - before < len(pieces):
                yield f"noise of {block.name} comes twice in large blocks"
    # the rows of everybody, over and over
    crowd = world.train.users_subset(np.arange(_CROWD) % world.train.num_users)
    over = sum(
        int(np.count_nonzero(~within_radius(reports, question.releases)))
        for reports in _loopback(prepared, crowd, Streams(0)).reports(question)
    )
    if over:
        yield f"reports of {over:,} of {crowd.num_users:,} people are longer than their radius"


def runs_for(claim: Guarantee) -> int:
    """Trainings on each side by which the bound of a claim that is kept tightly lies above half of
    it."""
    # upwards: fewer trainings would bound less than was asked
    return max(_LEAST_RUNS, math.ceil(_EFFORT / mu_for(claim.epsilon, claim.delta) ** 2))


def likelihood_ratios(prepared: Trainable, inside: World, outside: World, *, runs: int) -> Scores:
    """Scores of so many runs on each side."""
    sides = [_runs(prepared, inside, outside, member=member, runs=runs) for member in (True, False)]
    return scores_of(sides[0], sides[1], runs=runs)


def scores_of(inside: Iterator[list[Seen]], outside: Iterator[list[Seen]], *, runs: int) -> Scores:
    """Return the scores of runs however made, the first quarter of which measures the noise."""
    learn = max(2, runs // 4)
    squares = defaultdict[str, float](float)
    numbers = Counter[str]()
    drawn = Counter[bytes]()

    def measured(side: Iterator[list[Seen]], sign: float) -> Iterator[list[Seen]]:
        for run in side:
            for block in run:
                noise = block.z + sign * block.d
                squares[block.name] += float((noise**2).sum())
                numbers[block.name] += len(noise)
                if len(noise) >= _FEW:  # to six digits: sums of the two sides round otherwise
                    drawn[hashlib.sha256((noise.round(6) + 0.0).tobytes()).digest()] += 1
            yield run

    signed = [(measured(side, sign), sign) for side, sign in ((inside, -0.5), (outside, 0.5))]
    learnt = [(run, sign) for side, sign in signed for run in islice(side, learn)]
    # a recipe may ask otherwise where its releases say otherwise
    forms = {_form(run) for run, _ in learnt}
    covariances = {
        form: _covariance([(run, sign) for run, sign in learnt if _form(run) == form])
        for form in forms
    }
    scores = [
        np.array([_score(run, covariances.get(_form(run), np.eye(len(run)))) for run in side])
        for side, _ in signed
    ]
    spreads = {
        name: Spread(math.sqrt(squares[name] / count), count) for name, count in numbers.items()
    }
    return Scores(scores[0], scores[1], spreads, drawn.total() - len(drawn))


def _form(run: Sequence[Seen]) -> tuple[int, ...]:
    return tuple(len(block.z) for block in run)


def _covariance(runs: Sequence[tuple[Sequence[Seen], float]]) -> Float64s:
    """(blocks, blocks) of the noise: z less its expectation, which is `sign` times -d, in the
    numbers that two blocks both have."""
    blocks = len(runs[0][0])
    found = np.empty((blocks, blocks))
    for b, c in itertools.combinations_with_replacement(range(blocks), 2):
        n = min(len(runs[0][0][b].z), len(runs[0][0][c].z))
        if b != c and n < _FEW:
            found[b, c] = found[c, b] = 0.0
            continue
        products = [
            np.mean(np.prod([(run[k].z + sign * run[k].d)[:n] for k in (b, c)], axis=0))
            for run, sign in runs
        ]
        found[b, c] = found[c, b] = np.mean(products)
    return found


def _score(run: Sequence[Seen], covariance: Float64s) -> float:
    """Sum over i of d_i' R^-1 z_i over the blocks that have a number i."""
    sizes = [len(block.z) for block in run]
    total = 0.0
    start = 0
    for stop in sorted(set(sizes)):
        here = [k for k, size in enumerate(sizes) if size >= stop]
        R = covariance[np.ix_(here, here)] + _RIDGE * np.eye(len(here))
        z, d = (np.array([getattr(run[k], name)[start:stop] for k in here]) for name in ("z", "d"))
        total += float((d * np.linalg.solve(R, z)).sum())
        start = stop
    return total


def _world(scenario: Scenario) -> tuple[PublicFacts, World]:
    """Read and divide, as `fedrec simulate` does."""
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    return public_facts(scenario.seed, dataset, split), World(
        scenario, split.train, dataset.catalogue.item_ids
    )


def _runs(
    prepared: Trainable, inside: World, outside: World, *, member: bool, runs: int
) -> Iterator[list[Seen]]:
    """Trainings, and for each the same questions released again, with fresh noise every time."""
    scenario = inside.scenario
    mine = inside if member else outside
    seeds = Streams(scenario.seed).numpy(f"audit/whole/{member}").integers(2**62, size=runs)
    for part in np.array_split(seeds, min(runs, _TRAININGS)):
        own = _link(prepared, mine, noise_from(scenario.privacy.noise, int(part[0])))
        done = list(train(prepared.recipe, own, prepared.recipe.begin()))
        sums = [
            (_sums(prepared, inside, each.question), _sums(prepared, outside, each.question))
            for each in done
        ]
        yield _seen(
            prepared,
            [(each.question, each.answer, A, B) for each, (A, B) in zip(done, sums, strict=True)],
        )
        for seed in part[1:]:
            noise = noise_from(scenario.privacy.noise, int(seed))
            again = list[Asked]()
            for each, (A, B) in zip(done, sums, strict=True):
                ledger = Ledger(prepared.plan.guarantee)
                answer, _ = release(
                    each.question, A if member else B, prepared.plan, ledger, noise=noise
                )
                again.append((each.question, answer, A, B))
            yield _seen(prepared, again)


def _link(prepared: Trainable, world: World, noise: Streams | SystemStreams) -> Loopback:
    return _loopback(prepared, world.train, noise)


def _loopback(prepared: Trainable, people: Shared, noise: Streams | SystemStreams) -> Loopback:
    return Loopback(people, prepared.steps, prepared.plan, noise, Ledger(prepared.plan.guarantee))


def _sums(prepared: Trainable, world: World, question: Question) -> tuple[Int64s, ...]:
    sums = ExactSums(question.blocks)
    for reports in _link(prepared, world, Streams(0)).reports(question):
        sums.add(reports)
    return sums.blocks


def _seen(prepared: Trainable, run: Sequence[Asked]) -> list[Seen]:
    found = list[Seen]()
    for question, answer, inside, outside in run:
        stds = noise_stds(question, prepared.plan)
        sums = zip(inside, outside, strict=True)
        for spec in question.releases:
            for block in spec.blocks:
                A, B = (part * block.step for part in next(sums))
                std = stds[spec.name] * block.form.relative_std(
                    block.width, isometric=spec.isometric
                )
                found.append(
                    Seen(
                        ((answer.values[block.name] - (A + B) / 2) / std).ravel(),
                        ((A - B) / std).ravel(),
                        f"{spec.name}/{block.name}",
                    )
                )
    return found


def planted_neighbours(seed: int, folder: Path, *, clicks: bool) -> Iterator[DataSettings]:
    """Write two files into `folder`, with the person and without, and yield where each is.

    The person is the first of the file and all its ratings are the highest, so that its reports are
    as long as they may be; every item it names is named by others too, so that the catalogue is the
    same without it. Ids are words, as in a file that somebody brings.
    """
    rows = _rows(seed)
    for name, kept in (("with", rows), ("without", [row for row in rows if row[0] != PERSON])):
        path = folder / f"{name}.csv"
        header, width = ("user,item,timestamp", 3) if clicks else ("user,item,timestamp,rating", 4)
        path.write_text(
            "\n".join([header, *(",".join(map(str, row[:width])) for row in kept)]) + "\n"
        )
        yield DataSettings(
            path=str(path),
            format="table",
            columns={name: name for name in ("user", "item", "timestamp", "rating")[:width]},
            rating_range=None if clicks else _RATINGS,
        )


def _rows(seed: int) -> list[tuple[str, str, int, int]]:
    """(user, item, time, rating) of everybody, the person first; times rise within a user and are
    spread over all."""
    events = planted(replace(_SHAPE), seed=seed).interactions
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(10**9, 10**9 + 10**8, len(events) + _OF_PERSON))
    order = rng.permutation(len(times))
    common = np.argsort(-np.bincount(events.items, minlength=events.num_items), kind="stable")[
        :_OF_PERSON
    ]
    columns = [
        np.concatenate([np.full(_OF_PERSON, -1), events.users]),
        np.concatenate([common, events.items]),
    ]
    values = np.concatenate([np.full(_OF_PERSON, _RATINGS[1]), events.values])
    return [
        (
            PERSON if user < 0 else f"user-{user:03d}",
            f"item-{item:03d}",
            int(times[place]),
            int(value),
        )
        for user, item, place, value in zip(*columns, order, values, strict=True)
    ]
