"""`fedrec demo --deployment`: a deployment from its certificates to the second answer, and what is
left to check of it.

    train on 80% of the ratings -> serve -> ask -> the other ratings arrive -> train again from the
        last model -> ask again

One party is killed in the middle of a round. All checks are made on what the parties kept, after
they have ended.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fedrec.cli import recommend as asking
from fedrec.cli.supervisor import Supervisor
from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec.factorization.released import load as load_model
from fedrec.randomness import Streams
from fedrec.settings import Scenario, load
from fedrec.shipped import path_of
from fedrec.storage import finite
from fedrec_simulations.demo import evidence
from fedrec_simulations.demo.parties import SERVER, Deployment
from fedrec_simulations.demo.shown import Screen
from fedrec_simulations.demo.trial import SITES, TRAININGS, K, Trial


@dataclass(frozen=True)
class Strike:
    """Who is killed, in which training and round, both counted from 0."""

    party: str
    training: int
    round: int


def run(overrides: tuple[str, ...], *, seed: int, keep: Path | None, quiet: bool) -> dict[str, Any]:
    """All of it; what `--json` prints.

    Raises FedRecError, after it has printed the end of the log of whoever failed."""
    started = time.perf_counter()
    screen = Screen(quiet=quiet)
    scenario = load(path_of("deployment"), ("privacy.noise=seeded", *overrides))
    if scenario.learns_news:
        raise SettingsError(
            "the demonstration of a deployment is of ratings or clicks",
            'Leave recipe = "privaterec" out.',
        )
    with _told_to_end(), _folder(keep) as folder:
        company = Supervisor()
        try:
            done = _Demo(scenario, folder, company, screen, seed).carry_out()
        except FedRecError:
            _show_logs(company, screen)
            raise
        except KeyboardInterrupt:
            screen.note("interrupted: every process is ended")
            raise SystemExit(130) from None
        finally:
            with _undisturbed():
                company.stop()
        content, parties = done.checked()
        content |= {
            "folder": str(keep) if keep else "",
            "seconds": round(time.perf_counter() - started, 1),
        }
        content = dict(finite({**content, "verdict": _verdict(content)}))
        screen.show(content, parties)
    if not content["holds"]:
        raise RunError(
            content["verdict"],
            "Run it with --keep DIR and look at the logs there; report it as a defect.",
        )
    return content


class _Demo:
    """The steps, and what is noted on the way."""

    def __init__(
        self, scenario: Scenario, folder: Path, company: Supervisor, screen: Screen, seed: int
    ) -> None:
        self._trial = Trial(scenario, folder.resolve())
        self._screen = screen
        with screen.step("people are invented, and what is to be trained is tried in one process"):
            self._there = self._trial.deployment(company)
            self._strike = strike(
                seed, self._there, [self._trial.alone(number).rounds for number in range(TRAININGS)]
            )
        self._trainings = list[dict[str, Any]]()
        self._answers = list[dict[str, Any]]()
        self._lines = list[dict[str, Any]]()

    def carry_out(self) -> _Demo:
        """Everything that needs the parties."""
        there = self._there
        screen = self._screen
        people = self._trial.people
        earlier = len(people.earlier)
        later = len(people.split.train) - len(people.earlier)
        words = (
            f"certificates, settings, {people.earlier.num_users:,} people with {earlier:,} "
            "ratings; "
        )
        who = (
            "three aggregators (not yet reviewed from outside)"
            if there.files.of_three
            else "aggregator"
        )
        with screen.step(f"{words}{who}, server and {SITES} sites start"):
            there.start()
        self._train(0)
        with screen.step("serving starts"):
            url = there.serve()
        self._ask(url, 0)
        with screen.step(f"{later:,} more ratings arrive; the second training begins"):
            there.train_again(self._trial.files(1))
        self._train(1)
        with screen.step("serving takes the new model over"):
            there.wait_until_served(there.runs[-1].version)
        self._ask(url, 1)
        return self

    # --- steps ---

    def _train(self, training: int) -> None:
        there = self._there
        chosen = self._strike
        started = time.perf_counter()
        ordinal = ("first", "second")[training]
        with self._screen.rounds(
            f"the {ordinal} training", self._trial.alone(training).rounds
        ) as bar:
            rounds = there.rounds()
            number = 0
            while True:
                if (training, number) == (chosen.training, chosen.round):
                    struck = time.perf_counter()
                    there.kill_in_round(chosen.party, number)
                    again_s = time.perf_counter() - struck
                    bar.say(
                        f"kill -9 {chosen.party}, in the middle of round {number + 1}: "
                        f"another process plays it after {again_s:.0f} s"
                    )
                if next(rounds, None) is None:
                    break
                number += 1
                bar.done(there.lines()[-1]["reported"])
        self._trainings.append(
            {
                "seconds": round(time.perf_counter() - started, 1),
                "check": evidence.training(there, training),
            }
        )
        self._lines += there.lines()

    def _ask(self, url: str, training: int) -> None:
        """Ask as a person whose device holds a history and a ledger; at last the same list ranked
        on the device, for comparison."""
        history = self._trial.history(training)
        device = self._trial.device(self._there, url)
        with self._screen.step("a person asks"):
            for local in (False, True) if training == TRAININGS - 1 else (False,):
                content = asking.run(history, device, asking.Choices(k=K, local=local))[1]
                self._answers.append(content)

    # --- afterwards ---

    def checked(self) -> tuple[dict[str, Any], list[evidence.Seen]]:
        """Content for programs, and what each party saw; the parties have ended."""
        there = self._there
        chosen = self._strike
        seeded = self._trial.scenario.privacy.noise == "seeded"
        with self._screen.step(
            "one process trains the same, to compare" if seeded else "what the parties kept is read"
        ):
            trainings = [self._trained(number) for number in range(TRAININGS)]
            same = (
                all(self._trial.same_bytes(there, number) for number in range(TRAININGS))
                if seeded
                else None
            )
        paid = [answer for answer in self._answers if answer["guarantee"] is not None]
        training = evidence.spent_on_training(there)
        serving = paid[-1]["spent"]
        content = {
            "trained": [run.version for run in there.runs],
            "trainings": trainings,
            "answers": self._answers,
            "spent": {
                "training": training,
                "serving": {"unit": "per click (replace)", **serving, "answers": len(paid)},
            },
            "killed": {
                "party": chosen.party,
                "signal": 9,
                "training": chosen.training + 1,
                "round": chosen.round + 1,
            },
            "same_bytes": same,
            "noise": self._trial.scenario.privacy.noise,
            "aggregation": self._trial.scenario.privacy.aggregation,
            "hostile_clients": self._trial.scenario.privacy.hostile_clients,
        }
        versions = [answer["version"] for answer in paid]
        holds = {
            "everybody was counted in every round": not any(
                one["check"].faults for one in self._trainings
            ),
            "the ledgers agree": training["ledgers_agree"],
            "each answer is of the newest model": versions == content["trained"]
            and len(set(versions)) == TRAININGS,
            "the models are the same bytes": same is not False,
        }
        return {**content, "checks": holds, "holds": all(holds.values())}, evidence.seen(
            there, self._answers, self._lines
        )

    def _trained(self, number: int) -> dict[str, Any]:
        entry = self._there.runs[number]
        noted = self._trainings[number]
        model = load_model(self._there.folder(number) / "model")[0]
        check: evidence.Training = noted["check"]
        return {
            "run": entry.run,
            "version": entry.version,
            "rounds": check.rounds,
            "users": check.counted,
            "metrics": self._trial.people.metrics(model, number),
            "seconds": noted["seconds"],
        }


def strike(seed: int, there: Deployment, rounds: Sequence[int]) -> Strike:
    """Who is killed in which round, by the seed. rounds: of each training."""
    rng = Streams(seed).numpy("demo/strike")
    party = str(
        rng.choice(
            [*there.files.aggregators, SERVER, *(shard.name for shard in there.files.shards)]
        )
    )
    training = int(rng.integers(len(rounds)))
    return Strike(party, training, int(rng.integers(rounds[training])))


def _verdict(content: dict[str, Any]) -> str:
    if content["holds"]:
        trained = len(content["trained"])
        people = content["trainings"][-1]["users"]
        return (
            f"It held: {trained} trainings of {people:,} people and a kill -9 later, nothing is "
            "lost, doubled or smaller than promised."
        )
    return (
        "It did NOT hold that "
        f"{' and that '.join(words for words, holds in content['checks'].items() if not holds)}."
    )


def _show_logs(company: Supervisor, screen: Screen) -> None:
    """Show the logs of whoever ended badly; where nobody did, of everybody."""
    for party, log in company.fallen() or company.logs():
        screen.failed(party, str(log), evidence.tail(log))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A new folder that stays, or one that goes."""
    if keep is None:
        scratch = Path(tempfile.mkdtemp(prefix="fedrec-demo-"))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SettingsError(f"{keep} is there already", "Name a new folder for --keep.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep the parties from being ended."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the body as Ctrl-C does, so that it stops its parties."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
