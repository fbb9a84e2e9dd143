"""The server's whole run, whatever carries it: gather clients, fix the plan, ask round after round,
keep everything, save the model.

Its folder holds `run.json` (`run_record`), `releases/`, `rounds.jsonl`,
`checkpoints/`, and at the end `model/`. Started again, it goes on after the last checkpoint to the
same bytes: a round that was released but not kept is asked for again, which costs nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from fedrec.certificates.model_files import Told, model_files
from fedrec.certificates.writing import (
    FactorizationInputs,
    ReleasedRound,
    certify,
)
from fedrec.data.features import PublicFeatures
from fedrec.data.kinds import KINDS
from fedrec.errors import RunError, SettingsError, UnreachableError
from fedrec.factorization.facts import Earlier
from fedrec.factorization.rankers import Model
from fedrec.federation.messages import RoundDone, State, told_before, train
from fedrec.federation.protocol import Answer, Broadcast, ReleaseEndpoint, RoundStatus, Terms
from fedrec.federation.round_driver import AggregatedLink
from fedrec.output_folders import clear
from fedrec.preparing import until
from fedrec.privacy.calibration import Plan
from fedrec.public_data import PublicData
from fedrec.recipes import Prepared, client_recipe, prepare
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.settings import RecipeScenario, Scenario
from fedrec.storage import Checkpoints, finite, release_file, write_bytes, write_files
from fedrec_server.cohorts import Cohorts, EveryClient, require_sampled
from fedrec_server.gathering import gather
from fedrec_server.quorum_log import QuorumLog
from fedrec_server.run_record import RunNotes, keep_release, only_one, open_notes
from fedrec_server.run_settings import RunSettings


@dataclass(frozen=True)
class RoundLine:
    """One line of `rounds.jsonl`: what was released, what the aggregator counted, what the clients
    said.

    joined: users of the run; asked: those of the round's clients; quorum: who of them had to
    report. bytes_down: of the question, for a client that answered the one before
    (`wire.invitation_bytes`); whoever did not gets all of its arrays. release_bytes: of what came
    back. question: its digest. seconds: since the last round ended.
    A round that was released before a restart has no `answers`: nobody was asked again.
    """

    round: int
    step: str
    releases: tuple[str, ...]
    attempt: int
    enrolled: int
    joined: int
    asked: int
    quorum: int
    reported: int
    clipped: int
    rejected: Mapping[str, int]
    answers: tuple[Answer, ...]
    bytes_down: int
    release_bytes: int
    release_sha256: str
    question: str
    seconds: float


@dataclass(frozen=True)
class KeptRound:
    """A round that is over and kept: its line, and the state it led to."""

    line: RoundLine
    state: State


@dataclass(frozen=True)
class RoundSettings:
    """Choices of a training of ratings or clicks beside its run's.

    cohort: share of the users whom every round asks (`cohorts`); below 1 `clients` must be able to
    ask some, `cohorts.AsksSome`. planned: told the plan before anybody is asked; what it returns is
    what a bundle says of the run, None where none will be made. tell: gets words on a round that
    misses its quorum (`Patience.min_share`), which waits, and ends the run where it is short too
    often. checkpoints: how many of the newest are kept, at least 2; 0 for all. earlier: what it
    begins with of an earlier release, the same whenever the run goes on. serving: the model that
    people compare the new one with, the same too. week: of a stream, to whose end it trains.
    """

    cohort: float = 1.0
    planned: Callable[[Plan], Origin | None] = lambda plan: None
    tell: Callable[[str], None] = lambda words: None
    checkpoints: int = 0
    earlier: Earlier | None = None
    serving: Model | None = None
    week: int = 0


def run_rounds(
    scenario: Scenario,
    public: PublicData,
    endpoint: ReleaseEndpoint,
    clients: Broadcast,
    folder: Path,
    run: RunSettings,
    chosen: RoundSettings = RoundSettings(),
) -> Iterator[KeptRound]:
    """Train to the end in `folder`, or on from where it stopped, yielding after every round; then
    the model lies in `folder/model`.

    After a restart the clients are waited for again, and then it goes on with those who are there.
    Raises SettingsError or RunError where the run cannot begin or is not the folder's,
    UnreachableError where clients or the aggregator stay away, RefusedError where the aggregator
    refuses, with the code of `protocol.Refusal`.
    """
    # weeks of a stream are those in which clients are asked
    everything = public = replace(public, period=None)
    public = public if scenario.data.features else public.without_features()
    check(scenario, public)
    cohort = chosen.cohort
    gathering = run.gathering
    week = chosen.week
    if bool(week) != bool(scenario.privacy.horizon):
        raise SettingsError(
            "privacy.horizon: weeks of a stream are trainings of `fedrec server --every`",
            "Train it by that command, or leave the horizon out.",
        )
    if cohort < 1:
        require_sampled(scenario.recipe, public.kind)
    with only_one(folder):
        recipe = client_recipe(scenario)
        trains = {  # all that decides the result, but for who takes part
            **json.loads(recipe),
            "seed": scenario.seed,
            "features": scenario.data.features,
            "public": public.digest(),
        }
        notes = open_notes(folder, trains, run.run)
        terms = Terms(notes.run, recipe, public.kind, public.value_range, public.items)
        every = EveryClient(
            clients, run.absent_s, gathering.pause_s, gathering.sleep, gathering.clock
        )
        cohorts = every.cohorts = Cohorts(notes.run, cohort) if cohort < 1 else None
        resumed = notes.plan is not None
        num_users = notes.num_users or gather(terms, endpoint, every, gathering)
        counted = cohorts.planned(num_users) if cohorts else num_users
        facts = public.facts(num_users=counted, seed=scenario.seed)
        facts = replace(facts, earlier=chosen.earlier, serving=chosen.serving)
        prepared = prepare(scenario, facts)
        notes = notes.planned(prepared.plan, num_users=num_users)
        notes.keep(folder)
        if week:
            prepared = replace(prepared, recipe=until(prepared.recipe, week))
        origin = chosen.planned(prepared.plan)
        kept = _Kept(folder, notes, chosen.checkpoints)
        quorum = QuorumLog(run.patience.quorum(facts.num_users), facts.num_users, chosen.tell)
        state = kept.checkpoints.latest() or prepared.recipe.begin()
        if resumed and prepared.recipe.ask(state) is not None:
            # the rounds themselves say who is missing, and what it cost
            with suppress(UnreachableError):
                gather(terms, endpoint, every, gathering)
        link = AggregatedLink(
            terms,
            prepared.plan,
            endpoint,
            every,
            run.patience,
            notes.ledger_head,
            kept.watch,
        )
        link.keep = partial(keep_release, folder)
        link.num_users = num_users
        link.watch_short = quorum.short
        link.watch_waiting = quorum.waiting
        if cohorts:
            link.asked = cohorts.num_users
            link.planned_users = facts.num_users
            cohorts.say(chosen.tell)
        link.told = told_before(prepared.recipe, state, kept.checkpoints.at)
        yield from kept.rounds(prepared, link, state)
        state = kept.checkpoints.latest() or state
        items = PublicItems.of_features(
            public.items, public.titles, everything.features or PublicFeatures({})
        )
        # only the aggregator knows where it drew the noise
        noise = origin.noise if origin else "aggregator"
        told = Told(noise, origin, items.listed, took_part=kept.took_part())
        plan = prepared.plan
        users = facts.num_users
        files = model_files(scenario, public, users, prepared.recipe, state, plan, {}, told)
        clear(folder / "model", "model")
        write_files(folder / "model", files)
        certify(
            folder / "model",
            scenario,
            FactorizationInputs(public, facts.num_users, facts.earlier, facts.serving),
            kept.released(),
            run=notes.run,
            plan=plan,
            noise=noise,
            statements=run.statements(notes.run, len(kept.took_part())),
        )


def check(scenario: RecipeScenario, public: PublicData) -> None:
    """What is wrong before anybody is asked.

    Raises SettingsError on a scenario that cannot run between real parties."""
    if scenario.privacy.unit == "example":
        raise SettingsError(
            (
                'privacy.unit = "example" cannot run with real clients: a report stands for a '
                "whole user"
            ),
            'Set privacy.unit = "user", or use fedrec simulate to reproduce the paper.',
        )
    if scenario.data.kind in KINDS and scenario.data.kind != public.kind:
        raise SettingsError(
            f'data.kind = "{scenario.data.kind}", but the public data announces {public.kind}',
            (
                f'Set data.kind = "{public.kind}", or announce {scenario.data.kind} in the '
                "server's public table."
            ),
        )


@dataclass
class _Kept:
    """What one run writes round by round, each file whole or absent; `heard` is what the link tells
    of the round in progress.

    newest: so many checkpoints are kept, 0 for all; going on needs two.
    """

    folder: Path
    notes: RunNotes
    newest: int = 0
    heard: tuple[RoundStatus, Sequence[Answer]] | None = field(default=None)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    def watch(self, status: RoundStatus, answers: Sequence[Answer]) -> None:
        self.heard = (status, answers)

    def rounds(self, prepared: Prepared, link: AggregatedLink, state: State) -> Iterator[KeptRound]:
        lines = self._lines()[: int(state["round"])]
        self._prune()  # what a crash left
        started = time.perf_counter()
        for done in train(prepared.recipe, link, state):
            line = self._line(
                done, link.bytes_down, time.perf_counter() - started, asked=link.num_users
            )
            lines.append(json.dumps(finite(asdict(line))))
            self._keep(done.state, lines, link.ledger_head)
            yield KeptRound(line, done.state)
            started = time.perf_counter()

    def released(self) -> Iterator[ReleasedRound]:
        """Every release, in order."""
        for line in map(json.loads, self._lines()):
            content = release_file(self.folder, int(line["round"])).read_bytes()
            yield ReleasedRound(content, line["reported"], line["question"])

    def took_part(self) -> list[dict[str, int]]:
        """How many of how many reported in each round."""
        rounds = map(json.loads, self._lines())
        return [
            {
                name: int(one.get(name, 0))
                for name in ("round", "reported", "asked", "joined", "quorum")
            }
            for one in rounds
        ]

    def _line(self, done: RoundDone, bytes_down: int, seconds: float, *, asked: int) -> RoundLine:
        assert self.heard is not None
        status, answers = self.heard
        return RoundLine(
            round=done.question.round,
            step=done.question.step,
            releases=tuple(release.name for release in done.question.releases),
            attempt=status.attempt,
            enrolled=status.enrolled,
            joined=self.notes.num_users,
            asked=asked,
            quorum=status.quorum,
            reported=status.reported,
            clipped=status.clipped,
            rejected=dict(status.rejected),
            answers=tuple(answers),
            bytes_down=bytes_down,
            release_bytes=sum(array.nbytes for array in done.answer.values.values()),
            release_sha256=status.release_sha256,
            question=status.digest,
            seconds=seconds,
        )

    def _keep(self, state: State, lines: Sequence[str], ledger_head: str) -> None:
        """The checkpoint last: a crash before it leaves a line too many, which going on drops, and
        a head that the ledger knows."""
        write_bytes(self.folder / "rounds.jsonl", "".join(f"{line}\n" for line in lines).encode())
        self.notes = replace(self.notes, ledger_head=ledger_head)
        self.notes.keep(self.folder)
        self.checkpoints.save(state, round=int(state["round"]))
        self._prune()

    def _prune(self) -> None:
        if self.newest:
            self.checkpoints.prune(self.newest)

    def _lines(self) -> list[str]:
        path = self.folder / "rounds.jsonl"
        try:
            return path.read_text().splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as failure:
            raise RunError(
                f"{path} cannot be read: {failure}",
                "Move it away: the rounds themselves are in checkpoints.",
            ) from None
