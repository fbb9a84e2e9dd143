"""Real parties as processes of their own, what may be done to them while they train, and the
loopback whose bytes they must end in."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.data.interactions import Catalogue, Interactions
from fedrec.factorization.facts import public_facts
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Job, loopback
from fedrec.run.news_run import NewsJob
from fedrec.settings import load
from fedrec.storage import read_json
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import Parties, PartyFiles
from fedrec_simulations.runtimes.in_process import parties_of
from fedrec_simulations.runtimes.processes import follow, start
from tests.simulation.deployed import line_of
from tests.waiting import HANG_S

State = dict[str, bytes]


@dataclass(frozen=True)
class StageFiles(PartyFiles):
    """Files of a rehearsal whose logs lie apart: a full disk leaves room for the words about it.

    `more`: further settings, by party."""

    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def log(self, party: str) -> Path:
        return self.root / "logs" / f"{party}.log"

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        more = self.more.get(name, {})
        super()._write(
            name,
            {**content, **{key: _with(content.get(key), value) for key, value in more.items()}},
        )


def _with(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, Mapping) and isinstance(new, Mapping) else new


@dataclass
class Rehearsal:
    """One training by real processes, from outside: what they say, who they are, and what the
    server keeps."""

    parties: Parties
    files: PartyFiles
    company: Supervisor

    def start(self) -> None:
        start(self.files, self.company)

    def states(self) -> Iterator[State]:
        """After every round, as the server keeps it."""
        for carried in follow(self.parties, self.files, self.company):
            yield as_bytes(carried.state)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """What `condition` returns once it is something; who dies meanwhile is started again."""
        return self.company.wait_for(lambda: condition() or None, what=what, timeout_s=HANG_S)

    def said(self, party: str, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Lines of a party's log that begin with `event` and have these fields."""
        path = self.files.log(party)
        lines = (
            [line_of(text) for text in path.read_text(errors="replace").splitlines()]
            if path.exists()
            else []
        )
        return [
            line
            for line in lines
            if str(line.get("event", "")).startswith(event) and fields.items() <= line.items()
        ]

    def words(self, party: str) -> str:
        """All of a party's log."""
        return self.files.log(party).read_text(errors="replace")

    def reporters(self, round: int) -> set[str]:
        """Clients whose reports of a round the aggregator has counted."""
        return {
            line["sender"]
            for line in self.said("aggregator", "report", round=round)
            if line["accepted"]
        }

    def pid(self, name: str) -> int:
        """Of a party; 0 for none."""
        return self.company.pid(name)

    def kill(self, *names: str) -> None:
        """With -9, all at once, each known by the id of its process."""
        pids = [self.pid(name) for name in names]
        assert all(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def is_planned(self) -> bool:
        """Whether the clients have joined and the first question is about to be asked."""
        notes = run_folder(self.files.state("server")) / "run.json"
        return notes.exists() and read_json(notes)["plan"] is not None

    def rounds(self) -> list[dict[str, Any]]:
        """The lines the server keeps, one a round."""
        return [
            json.loads(line)
            for line in (run_folder(self.files.state("server")) / "rounds.jsonl")
            .read_text()
            .splitlines()
        ]

    def charges(self) -> list[str]:
        """Names of the releases that the aggregator's ledger was charged for, once it has ended."""
        with closing(ReleaseLedger(self.files.state("aggregator"), limit=None)) as ledger:
            return [charge.release for charge in ledger.spends().charges]


def as_bytes(state: Any) -> State:
    return {name: array.tobytes() for name, array in state.items()}


@dataclass(frozen=True)
class Play:
    """The smallest training of the papers' recipe: two rounds."""

    job: Job
    catalogue: Catalogue

    @cached_property
    def states(self) -> list[State]:
        """Of the loopback, with all users."""
        return self.states_of(self.job.data)

    def states_of(self, users: Interactions) -> list[State]:
        """Of the loopback if these users alone took part."""
        job = replace(self.job, data=users)
        return [as_bytes(carried.state) for carried in loopback(job)]

    def first_state_of(self, users: Interactions) -> State:
        """Of a run of everybody in whose first round these users alone took part: they stand for
        all."""
        recipe = self.job.prepared.recipe
        plan = self.job.prepared.plan
        link = Loopback(
            users, self.job.prepared.steps, plan, self.job.noise, Ledger(plan.guarantee)
        )
        question = recipe.ask(recipe.begin())
        assert question is not None
        answer = link.answer(question).standing_for(
            self.job.data.num_users, reported=users.num_users
        )
        return as_bytes(recipe.tell(recipe.begin(), question, answer))


@pytest.fixture(scope="session")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    scenario = load(
        None, ["data.preset=small", "privacy.noise=seeded", "recipe=published", "model.steps=1"]
    )
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    return Play(
        Job(
            scenario,
            facts,
            split.train,
            prepare(scenario, facts),
            tmp_path_factory.mktemp("nothing"),
        ),
        dataset.catalogue,
    )


@pytest.fixture
def stage(play: Play, tmp_path: Path) -> Iterator[Callable[..., Rehearsal]]:
    """Makes rehearsals of two clients, of `news` or else of the play, and stops their parties when
    the test ends.

    `files` and `company` are the classes to use.
    """
    with ExitStack() as stack:
        numbers = count()

        def make(
            *,
            data: Interactions | None = None,
            files: Callable[..., PartyFiles] = StageFiles,
            company: Supervisor | None = None,
            news: NewsJob | None = None,
            plays: Play = play,
            **options: Any,
        ) -> Rehearsal:
            job = replace(
                news or plays.job,
                folder=tmp_path / f"run-{next(numbers)}",
                **({} if data is None else {"data": data}),
            )
            parties = parties_of(job, plays.catalogue, 2)
            company = company or Supervisor()
            made = Rehearsal(parties, files(job, parties.holdings, **options), company)
            stack.callback(made.company.stop)
            return made

        yield make
