"""What must hold at the end of a simulated run, computed from the auditor's record and from what
the parties left on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.federation.messages import BlockSpec, Question, Release, State, train
from fedrec.federation.protocol import Refusal
from fedrec.federation.releases import noise_stds
from fedrec.federation.wire import unpack_release
from fedrec.in_process import Loopback
from fedrec.privacy import gaussian
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared
from fedrec.storage import Checkpoints
from tests.simulation.auditor import (
    CHARGED_FIRST,
    COUNTED_ONCE,
    REASONS,
    RELEASED_ONCE,
    Auditor,
    Broken,
    Collected,
    Round,
)
from tests.simulation.reading import (
    ReleaseBook,
    client_book,
    exact_sums,
    release_book,
)
from tests.simulation.script import AGGREGATOR, ONE, Topology

EXACT_PLUS_NOISE = "what is released is the exact sum and noise that was drawn for it alone"
COHORT = "nothing is released for fewer users than the minimum cohort"
QUORUM = "no round is released below its quorum, and all say which that was"
CHARGED_ONCE = "no release is charged twice, and no limit is passed"
LEDGER_KEPT = "a ledger holds every head that was told of it"
NO_REPORT_ON_DISK = "no report is on the aggregator's disk"
SAME_MODEL = (
    "the model follows from the releases, and with everybody in every round it is the loopback's"
)
KEPT_AS_RELEASED = "the server's notes say what the aggregator's ledger says"

Draw = tuple[str, int]


@dataclass(frozen=True)
class RecordedNoise(Streams):
    """Fresh keys every time, from a seed, and a record of them all: name and round, and the key."""

    draws: list[tuple[Draw, bytes]] = field(default_factory=list)

    def key(self, name: str, *, round: int = 0) -> bytes:
        """As the system's: never the same twice."""
        fresh = super().key(f"{name}, draw {len(self.draws)}", round=round)
        self.draws.append(((name, round), fresh))
        return fresh


@dataclass(frozen=True)
class _ReplayedNoise(Streams):
    """The keys of one run's releases, by name and round."""

    keys: Mapping[Draw, bytes] = field(default_factory=dict)

    def key(self, name: str, *, round: int = 0) -> bytes:
        return self.keys[name, round]


@dataclass(frozen=True)
class Trained:
    """A run to judge: what it was to train, on whose data, and its server's folder. min_share: the
    smallest that its operator ever chose of the num_users who joined (0: nobody yet).
    """

    run: str
    prepared: Prepared
    data: Interactions
    folder: Path
    num_users: int
    min_share: float


@dataclass
class Verdict:
    """`complete`: runs whose every round counted every user, so that they were compared with the
    loopback. `released`: rounds; `unexplained`: releases or blocks of them that are not the exact
    sum and recorded noise."""

    auditor: Auditor
    noise: RecordedNoise
    limit: Guarantee
    topology: Topology = ONE
    may_stop: bool = False
    complete: set[str] = field(default_factory=set)
    released: int = 0
    unexplained: int = 0
    _used: dict[bytes, str] = field(default_factory=dict)
    _keys: dict[str, dict[Draw, bytes]] = field(default_factory=dict)

    def judge(self, clients: Sequence[str], runs: Sequence[Trained]) -> list[Broken]:
        """Everything that does not hold."""
        try:
            book = release_book(self._aggregator)
        except ValueError as failure:
            return [*self.auditor.broken, Broken(LEDGER_KEPT, str(failure))]
        found = [
            *self.auditor.broken,
            *self._about_rounds(book),
            *self._about_budgets(book, clients),
            *self._about_the_disk(book),
        ]
        for run in runs:
            found += self._about_training(run, book)
        return found

    @property
    def _aggregator(self) -> Path:
        return self.auditor.folder / AGGREGATOR

    # --- releases ---

    def _about_rounds(self, book: ReleaseBook) -> Iterator[Broken]:
        for where in self.auditor.served.keys() - book.released().keys():
            yield Broken(
                CHARGED_FIRST, f"round {where[1]} of {where[0]} left and is not in the ledger"
            )
        times = Counter((e["run"], e["round"]) for e in book.entries if e["kind"] == "released")
        for where, entry in book.released().items():
            if times[where] > 1:
                yield Broken(
                    RELEASED_ONCE,
                    f"the ledger holds {times[where]} releases of round {where[1]} of {where[0]}",
                )
            self.released += 1
            yield from self._about_release(where, entry)

    def _about_release(self, where: Round, entry: Mapping[str, Any]) -> Iterator[Broken]:
        name = f"round {where[1]} of {where[0]}"
        content = self._content(where)
        if (
            hashlib.sha256(content).hexdigest() != entry["release_sha256"]
            or self.auditor.served.get(where, content) != content
        ):
            self.unexplained += 1
            yield Broken(
                RELEASED_ONCE, f"the file of {name} is not what its entry says, or not what left"
            )
            return
        collected = next(
            (
                one
                for one in self.auditor.attempts.get(where, [])
                if one.attempt == entry["attempt"]
            ),
            None,
        )
        if collected is None:
            self.unexplained += 1
            yield Broken(
                COUNTED_ONCE,
                f"{name} was released from attempt {entry['attempt']}, which nobody saw opened",
            )
            return
        if entry["reported"] != len(collected.counted):
            yield Broken(
                COUNTED_ONCE,
                (
                    f"{name} was released for {entry['reported']} users, "
                    f"{len(collected.counted)} were accepted"
                ),
            )
        if _told_away(entry["rejected"]) != _told_away(collected.rejected):
            yield Broken(
                REASONS,
                (
                    f"{name} was released with {entry['rejected']}, clients were told "
                    f"{dict(collected.rejected)}"
                ),
            )
        if len(collected.counted) < self.auditor.min_cohort:
            yield Broken(COHORT, f"{name} was released for {len(collected.counted)} users")
        if (
            len(collected.counted) < collected.opening.quorum
            or entry["quorum"] != collected.opening.quorum
        ):
            yield Broken(
                QUORUM,
                (
                    f"{name}: {len(collected.counted)} users, opened with "
                    f"{collected.opening.quorum}, noted {entry['quorum']}"
                ),
            )
        yield from self._about_sums(where, name, collected, content)

    def _about_sums(
        self, where: Round, name: str, collected: Collected, content: bytes
    ) -> Iterator[Broken]:
        plan = self.auditor.plans[where[0]]
        release = unpack_release(content, collected.releases)
        stds = noise_stds(Question(where[1], "", {}, collected.releases), plan)
        sums = iter(exact_sums(collected.counted.values(), collected.blocks))
        for spec in collected.releases:
            for block in spec.blocks:
                drawn_as = (f"noise/{spec.name}/{block.name}", where[1])
                total = next(sums)
                key = self._key_of(
                    drawn_as, total, block, stds[spec.name], release, isometric=spec.isometric
                )
                if key is None:
                    self.unexplained += 1
                    yield Broken(
                        EXACT_PLUS_NOISE,
                        (
                            f"block {block.name} of {name} is not the exact sum of "
                            f"{len(collected.counted)} users and noise"
                        ),
                    )
                elif self._used.setdefault(key, f"{name}, {block.name}") != f"{name}, {block.name}":
                    yield Broken(
                        EXACT_PLUS_NOISE,
                        f"block {block.name} of {name} has the noise of {self._used[key]}",
                    )
                else:
                    self._keys.setdefault(where[0], {})[drawn_as] = key

    def _key_of(
        self,
        drawn_as: Draw,
        total: npt.NDArray[np.int64],
        block: BlockSpec,
        std: float,
        release: Release,
        *,
        isometric: bool,
    ) -> bytes | None:
        """The recorded key with which the exact sum gives what was released."""
        for key in (key for name, key in self.noise.draws if name == drawn_as):
            how = {"step": block.step, "std": std, "key": key}
            noise = (
                gaussian.symmetric_noise(total.shape, isometric=isometric, **how)
                if block.form.matrix
                else gaussian.row_noise(total.shape, **how)
            )
            if ((total + noise) * block.step).tobytes() == release.values[block.name].tobytes():
                return key
        return None

    def _content(self, where: Round) -> bytes:
        path = self._aggregator / "releases" / where[0] / f"round-{where[1]:03d}.safetensors"
        return path.read_bytes() if path.exists() else b""

    # --- ledgers ---

    def _about_budgets(self, book: ReleaseBook, clients: Sequence[str]) -> Iterator[Broken]:
        charges = book.charges()
        for (run, name), times in Counter((run, name) for run, _, name, _ in charges).items():
            if times > 1:
                yield Broken(
                    CHARGED_ONCE, f"the aggregator charged release {name} of {run} {times} times"
                )
        if self._passes_limit(mu for *_, mu in charges):
            yield Broken(CHARGED_ONCE, "the aggregator's charges pass its limit")
        for client in clients:
            spent = client_book(self.auditor.folder / client)
            names = Counter((entry.run, name) for entry in spent for name, _ in entry.releases)
            if names and max(names.values()) > 1:
                yield Broken(CHARGED_ONCE, f"{client} charged a release twice")
            if self._passes_limit(mu for entry in spent for _, mu in entry.releases):
                yield Broken(CHARGED_ONCE, f"the charges of {client} pass its limit")
        if lost := self.auditor.heads - book.heads:
            yield Broken(LEDGER_KEPT, f"{len(lost)} heads that were told are not in the chain")

    def _passes_limit(self, mus: Iterator[float]) -> bool:
        return math.sqrt(math.fsum(mu**2 for mu in mus)) > mu_for(
            self.limit.epsilon, self.limit.delta
        ) * (1 + 1e-8)

    def _about_the_disk(self, book: ReleaseBook) -> Iterator[Broken]:
        content = b"".join(
            path.read_bytes() for path in self._aggregator.rglob("*") if path.is_file()
        )
        if any(one in content for one in self.auditor.report_ids()):
            yield Broken(NO_REPORT_ON_DISK, "the id of a report is in the aggregator's folder")

    # --- the server ---

    def _about_training(self, trained: Trained, book: ReleaseBook) -> Iterator[Broken]:
        kept = [_as_bytes(state) for state in Checkpoints(trained.folder / "checkpoints").all()]
        entries = [
            book.released()[where] for where in sorted(book.released()) if where[0] == trained.run
        ]
        if len(kept) > len(entries):
            yield Broken(
                SAME_MODEL, f"{trained.run} has {len(kept)} checkpoints and {len(entries)} releases"
            )
            return
        if self._replayed(trained, [entry["reported"] for entry in entries[: len(kept)]]) != kept:
            yield Broken(SAME_MODEL, f"the states of {trained.run} do not follow from its releases")
        yield from _about_notes(trained, entries[: len(kept)])
        least = trained.num_users * Fraction(trained.min_share)
        for entry in entries:
            if Fraction(entry["reported"]) * (1 + Fraction(1, 10**9)) < least:
                yield Broken(
                    QUORUM,
                    (
                        f"round {entry['round']} of {trained.run}: {entry['reported']} users, "
                        f"{float(least):g} must report"
                    ),
                )
        if kept and not self.unexplained and self._is_complete(trained, len(kept)):
            self.complete.add(trained.run)
            if self._loopback(trained, len(kept)) != kept:
                yield Broken(
                    SAME_MODEL,
                    f"{trained.run} had everybody in every round, and is not the loopback's",
                )

    def _replayed(self, trained: Trained, reported: Sequence[int]) -> list[dict[str, bytes]]:
        """States that follow from what is kept of the releases, each of which stands for everybody
        who joined."""
        recipe = trained.prepared.recipe
        states = list[dict[str, bytes]]()
        state = recipe.begin()
        for round, users in enumerate(reported):
            question = recipe.ask(state)
            assert question is not None
            released = unpack_release(self._content((trained.run, round)), question.releases)
            if users != trained.num_users:
                for_all = {
                    name: trained.num_users / users if name in {"counts", "mean"} else 1.0
                    for name in released.values
                }
                values = {name: array * for_all[name] for name, array in released.values.items()}
                released = Release(
                    values, {name: std * for_all[name] for name, std in released.noise_std.items()}
                )
            state = recipe.tell(state, question, released)
            states.append(_as_bytes(state))
        return states

    def _is_complete(self, trained: Trained, rounds: int) -> bool:
        last = [self.auditor.attempts[trained.run, round][-1] for round in range(rounds)]
        return all(len(one.counted) == trained.data.num_users and not one.tampered for one in last)

    def _loopback(self, trained: Trained, rounds: int) -> list[dict[str, bytes]]:
        prepared = trained.prepared
        noise = _ReplayedNoise(0, self._keys[trained.run])
        plan: Plan = prepared.plan
        link = Loopback(trained.data, prepared.steps, plan, noise, Ledger(plan.guarantee))
        done = train(prepared.recipe, link, prepared.recipe.begin())
        return [_as_bytes(next(done).state) for _ in range(rounds)]


def _about_notes(trained: Trained, entries: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """The server's line of every round against the aggregator's entry of it."""
    path = trained.folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line, entry in zip(lines, entries, strict=False):
        if any(
            line[name] != entry[name]
            for name in (
                "round",
                "attempt",
                "quorum",
                "reported",
                "clipped",
                "rejected",
                "release_sha256",
            )
        ):
            yield Broken(KEPT_AS_RELEASED, f"round {entry['round']} of {trained.run}")
    if len(lines) < len(entries):
        yield Broken(
            KEPT_AS_RELEASED, f"{len(lines)} lines for {len(entries)} rounds of {trained.run}"
        )


def _told_away(rejected: Mapping[str, int]) -> dict[str, int]:
    """Without those who came too late: who comes after the release is not in its entry."""
    return {
        code: users for code, users in rejected.items() if users and code != Refusal.ROUND_CLOSED
    }


def _as_bytes(state: State) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in state.items()}
