"""The server's whole training of news, whatever carries it: gather clients, ask, keep everything,
save the model.

Its folder holds `run.json`, `clients.json` (who has which users), what `news.checkpoints` keeps,
for `central` the `releases`, and at the end `model/`. Started again, it goes on after the last step
to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedrec import __version__
from fedrec.arrays import Int64s
from fedrec.certificates.writing import certify_news
from fedrec.data.impressions import Impressions
from fedrec.errors import RefusedError, RunError, SettingsError, UnreachableError
from fedrec.federation.messages import Link
from fedrec.federation.protocol import (
    Answer,
    Invitation,
    Refusal,
    ReleaseEndpoint,
    RoundStatus,
    Terms,
)
from fedrec.federation.round_driver import AggregatedLink, Patience
from fedrec.news.checkpoints import Kept
from fedrec.news.messages import Arrays, Ask, NewsBroadcast, Reply, news_recipe
from fedrec.news.reports_training import Collected, collected_of, joined
from fedrec.news.rounds import Course, FedAdam
from fedrec.news.trained import Catalogue, Progress, TrainedNews, public_table
from fedrec.news.variant import of, rounds_of, schedule_of, train_news
from fedrec.output_folders import clear, finish
from fedrec.privacy.bounded_mean import TopicTable, noise_std, within_reach
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import TrainingPlan
from fedrec.settings import NewsScenario, Scenario
from fedrec.storage import read_json, write_arrays, write_json
from fedrec_server.cohorts import UNREACHABLE, EveryClient
from fedrec_server.gathering import NOBODY_ENROLS, Gathering, gather
from fedrec_server.received import (
    bounded_gradients,
    bounded_impressions,
    longest_noised,
    require_gradient,
    require_reports,
    sound,
)
from fedrec_server.run_record import RunNotes, keep_release, only_one, open_notes
from fedrec_server.run_settings import RunSettings

_NOT_YET = {UNREACHABLE, Refusal.BUSY.value}


def run_news(
    scenario: Scenario,
    catalogue: Catalogue,
    endpoint: ReleaseEndpoint | None,
    clients: NewsBroadcast,
    folder: Path,
    run: RunSettings,
) -> Iterator[Progress | TrainedNews]:
    """Train to the end in `folder`, or on from where it stopped; the last thing is the model, which
    then lies in `folder/model` too.

    endpoint: the aggregator's, for `central` alone. Raises as `rounds.run_rounds`.
    """
    check(scenario, endpoint)
    with only_one(folder):
        recipe = news_recipe(scenario)
        notes = open_notes(folder, {"news": recipe, "items": list(catalogue.news.ids)}, run.run)
        terms = Terms(notes.run, recipe, "news", (0.0, 1.0), catalogue.news.ids)
        roster = NewsRoster(clients, folder / "clients.json")
        begun = roster.known
        try:
            gather(terms, endpoint or _NoEndpoint(), roster, run.gathering)
        except UnreachableError:  # after a restart the steps themselves say who is missing
            if not begun:
                raise
        asked = RemoteNewsClients(
            scenario,
            catalogue,
            terms,
            roster,
            endpoint,
            folder,
            notes,
            run.gathering,
            run.patience,
            run.absent_s,
        )
        for done in train_news(scenario, catalogue, asked, kept=Kept(folder)):
            if isinstance(done, TrainedNews):
                noise = "devices" if endpoint is None else "aggregator"
                save_model(folder / "model", scenario.news.variant, done, noise=noise)
                certify_news(
                    folder / "model",
                    scenario,
                    catalogue,
                    folder,
                    run=notes.run,
                    noise=noise,
                    statements=run.statements,
                )
            else:
                write_json(folder / "progress.json", asdict(done))
            yield done


def check(scenario: NewsScenario, endpoint: object | None) -> None:
    """Raises SettingsError on a scenario that cannot run between real parties."""
    variant = of(scenario)
    if not variant.on_devices:
        raise SettingsError(
            f'news.variant = "{variant.name}" has no devices: it collects the clicks',
            "Use fedrec simulate.",
        )
    if scenario.news.word_vectors or scenario.news.language_model:
        raise SettingsError(
            "files of word vectors or language models are not sent to clients",
            "Leave them out, or use fedrec simulate.",
        )
    if variant.plan is not None and endpoint is None:
        raise SettingsError(
            f'news.variant = "{variant.name}" needs an aggregator',
            "Give the server's settings an aggregator table.",
        )


def save_model(folder: Path, variant: str, trained: TrainedNews, *, noise: str) -> None:
    """Arrays and manifest of a released model."""
    clear(folder, "model")
    write_arrays(folder / "model.safetensors", trained.parameters)
    about = {
        "recipe": "privaterec",
        "variant": variant,
        "fedrec": __version__,
        "noise": noise,
    }
    write_json(
        folder / "manifest.json",
        about | {"guarantee": asdict(trained.guarantee), "spent": trained.spent},
    )
    finish(folder, "model")


@dataclass
class NewsRoster:
    """A broadcast that remembers how many users each client brought when the run began: their
    numbers never change afterwards."""

    clients: NewsBroadcast
    path: Path
    users: dict[str, int] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the run began before; then `users` are those of that time."""
        if self.path.exists() and not self.users:
            self.users = {str(name): int(count) for name, count in read_json(self.path).items()}
        return bool(self.users)

    @property
    def first_user(self) -> dict[str, int]:
        """The number of each client's first user, clients in the order of their names, `client-2`
        before `client-10`."""
        names = sorted(self.users, key=lambda name: (len(name), name))
        starts = np.cumsum([0, *(self.users[name] for name in names)]).tolist()
        return dict(zip(names, starts[:-1], strict=True))

    @property
    def num_users(self) -> int:
        """Number of users of all clients."""
        return sum(self.users.values())

    def begin(self) -> None:
        """Keep who is there: from now on this is everybody."""
        if not self.path.exists():
            write_json(self.path, self.users)

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Implements `Broadcast.join`."""
        answers = self.clients.join(terms)
        if not self.path.exists():
            self.users |= {
                answer.client: answer.users
                for answer in answers
                if not answer.refusal and answer.users
            }
        return answers

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """Implements `Broadcast.ask`."""
        return self.clients.ask(invitation)

    def tell(self, ask: Ask) -> list[Reply]:
        """Implements `NewsBroadcast.tell`."""
        return self.clients.tell(ask)


@dataclass(frozen=True)
class RemoteNewsClients:
    """A `news.clients.NewsClients` of clients elsewhere."""

    scenario: Scenario
    catalogue: Catalogue
    terms: Terms
    roster: NewsRoster
    endpoint: ReleaseEndpoint | None
    folder: Path
    notes: RunNotes
    gathering: Gathering
    patience: Patience
    absent_s: float

    @property
    def num_users(self) -> int:
        """See `NewsClients`."""
        self.roster.begin()
        return self.roster.num_users

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> Collected:
        """See `NewsClients`.

        The devices get the public rows and open categories by themselves (`TopicTable.told`)."""
        rows = public_table(self.scenario.news.topics, self.scenario, self.catalogue).rows.astype(
            np.int32
        )
        std = noise_std(topics, self.scenario.news.history, mu=plan.report_mu)
        users = self.roster.users
        parts = []
        told = sound(
            self._told(0, {"topics": rows}),
            lambda name, arrays: require_reports(
                name, arrays, users=users[name], items=len(rows), topics=topics.topics
            ),
        )
        for _, arrays in bounded_impressions(told, users):
            told_apart = {
                key: array.astype(bool) if key in {"reported", "null"} else array
                for key, array in arrays.items()
            }
            told_apart["coefficients"] = within_reach(arrays["coefficients"], topics, noise_std=std)
            parts.append(collected_of(told_apart, plan, noise_std=std, told=topics.told))
        return joined(parts)

    def step(self, course: Course, users: Int64s, rule: FedAdam) -> tuple[Course, float]:
        """See `rounds.Step`. Raises RunError where nobody has anything to learn from."""
        public: Arrays = {
            "parameters": course.parameters.astype(np.float32),
            "cohort": users.astype(np.int64),
        }
        length = len(course.parameters)
        told = sound(
            self._told(course.moments.rounds + 1, public),
            lambda name, arrays: require_gradient(name, arrays, length=length),
        )
        bounded = bounded_gradients(told, self._asked(users), longest=self._longest(length))
        return averaged_step(course, [arrays for _, arrays in bounded], rule)

    def _asked(self, users: Int64s) -> dict[str, int]:
        """How many of a round's users each client has."""
        first = self.roster.first_user
        count = self.roster.users
        return {
            name: int(((users >= start) & (users < start + count[name])).sum())
            for name, start in first.items()
        }

    def _longest(self, numbers: int) -> Callable[[int], float] | None:
        """How long a client's gradient can be, where the variant clips it and adds noise to it."""
        form = rounds_of(self.scenario)
        if form.clip is None:
            return None
        _, std = form.sent(self.scenario, schedule_of(self.scenario, self.num_users).passes)[0]
        return longest_noised(form.clip(self.scenario), std, numbers)

    def link(self, plan: Plan, released: Sequence[str]) -> Link:
        """See `NewsClients`."""
        assert self.endpoint is not None  # `check`
        self.roster.begin()
        every = EveryClient(
            self.roster,
            self.absent_s,
            self.gathering.pause_s,
            self.gathering.sleep,
            self.gathering.clock,
        )
        return AggregatedLink(
            self.terms,
            plan,
            self.endpoint,
            every,
            self.patience,
            self.notes.ledger_head,
            self._saw,
            keep=partial(keep_release, self.folder),
        )

    def data(self) -> Impressions:
        """See `NewsClients`."""
        raise SettingsError("clicks stay on devices", "Choose a variant that trains on devices.")

    def _saw(self, status: RoundStatus, _: Sequence[Answer]) -> None:
        """Keep the head of the aggregator's ledger: after a restart, one that does not know it has
        gone back in time."""
        replace(self.notes, ledger_head=status.ledger_head).keep(self.folder)

    def _told(self, round: int, public: Arrays) -> list[tuple[str, Arrays]]:
        """What clients told, in the order of their users; asked again until all have answered or
        `absent_s` is over.

        Raises RefusedError with the first refusal where nobody takes part.
        """
        ask = Ask(self.terms.run, round, self.num_users, self.roster.first_user, public)
        deadline = self.gathering.clock() + self.absent_s
        heard = dict[str, Reply]()
        while True:
            for reply in self.roster.tell(ask):
                if reply.answer.client in self.roster.users:
                    heard[reply.answer.client] = reply
            codes = {
                name: heard[name].answer.refusal if name in heard else UNREACHABLE
                for name in self.roster.users
            }
            if Refusal.RUN_UNKNOWN.value in codes.values():  # a client lost its notes
                self.roster.join(self.terms)
            elif not _NOT_YET & set(codes.values()):
                break
            if self.gathering.clock() >= deadline:
                break
            self.gathering.sleep(self.gathering.pause_s)
        told = [(name, heard[name].arrays) for name in self.roster.first_user if not codes[name]]
        if not told:
            raise _nobody(round, [reply.answer for reply in heard.values()])
        return told


class _NoEndpoint:
    """In place of an aggregator where there is none: whoever joined takes part."""

    def enrolled(self) -> int:
        return NOBODY_ENROLS


def _nobody(round: int, answers: Sequence[Answer]) -> RefusedError:
    said = (
        "; ".join(f"{answer.client}: {answer.refusal} ({answer.cause})" for answer in answers)
        or "nobody answered"
    )
    code = next((answer.refusal for answer in answers if answer.refusal), UNREACHABLE)
    return RefusedError(
        code,
        f"no client takes part in round {round}: {said}",
        "Start the missing clients and run the server again.",
    )


def averaged_step(course: Course, told: Sequence[Arrays], rule: FedAdam) -> tuple[Course, float]:
    """The course after a step down the mean of "gradient" weighted by "weight", float64, and the
    mean "loss". Raises RunError where nobody told any."""
    if not told:
        raise RunError(
            "no user of the round has anything to learn from",
            "Give data with labelled impressions.",
        )
    weights = [float(each["weight"][0]) for each in told]
    gradients = [each["gradient"].astype(np.float64) for each in told]
    gradient = np.average(gradients, axis=0, weights=weights)
    loss = np.average([float(each["loss"][0]) for each in told], weights=weights)
    return course.moved(gradient, rule), float(loss)
