"""One client's way through a training of news without an aggregator: it noises on the device, and tells the server that and nothing else.

Order: the run's terms and its guarantee are checked; the ledger of clicks is charged for the whole run, durably, before the first answer;
what was asked is written down; the answer is made. Noise comes from a secret of this client and the run, so that the same question, after
a crash too, gets the same bytes; and a round is answered to one question only, as two with the same noise would tell their difference.
In rounds each user answers as often as was paid for, whatever order the server asks in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.checkpoint import read_json, write_json
from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.errors import FedRecError, RefusedError
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.operations import logs
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.keystream import derive
from fedrec.privacy.selection import PureEvent
from fedrec.privaterec.additive import BITS, TopicTable, diameter
from fedrec.privaterec.federated import FORMS, promise, schedule_of
from fedrec.privaterec.messages import Ask, Reply, scenario_of
from fedrec.privaterec.models import news_model
from fedrec.privaterec.reports_training import collect, collected_arrays
from fedrec.privaterec.rounds import LocalUpdate, Places
from fedrec.privaterec.sensitivity import opened
from fedrec.privaterec.spending import Costs, plan_training
from fedrec.privaterec.trained import promised
from fedrec.settings import NEWS_UNITS, Scenario
from fedrec.streams import SecretStreams, Streams
from fedrec_client.click_ledger import ClickSpending
from fedrec_client.notes import Notes, require_name
from fedrec_client.participant import FAILED, LONGEST_CAUSE, public_words
from fedrec_client.readers import LocalReaders

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class NewsTrust:
    """What a site's operator allows: runs whose guarantee is not established, and categories that need no protection."""

    not_established: bool = False
    open_categories: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Run:
    """A run as this client knows it: `data` by the run's item numbers."""

    terms: Terms
    scenario: Scenario
    data: Impressions


@dataclass(frozen=True)
class _Device:
    """What answers rounds."""

    model: NewsModel
    update: LocalUpdate
    passes: int


class NewsParticipant:
    """The readers of one site towards any server. May be called from several threads; one call runs at a time."""

    def __init__(
        self,
        name: str,
        users: LocalReaders,
        ledger: ClickSpending,
        folder: Path,
        *,
        trust: NewsTrust | None = None,
        seed: int | None = None,
    ) -> None:
        """`folder` keeps terms and what was asked. `seed` is of a rehearsal's noise: with None it is secret, as it must be."""
        self.name, self.users, self.ledger, self._folder, self._notes = name, users, ledger, folder, Notes(folder)
        self._trust, self._seed, self._mutex = trust or NewsTrust(), seed, threading.Lock()
        self._run: _Run | None = None
        self._made: tuple[str, int, int, _Device] | None = None

    def join(self, terms: Terms) -> Answer:
        """Keep the terms of a run; again with the same terms is the same."""
        return self._said(terms.run, lambda: self._join(terms)).answer

    def answer(self, invitation: Invitation) -> Answer:
        """Never: this client's limit is per click, and an aggregator's releases are per user."""
        return Answer(self.name, self.users.num_users, refusal=Refusal.WRONG_PLAN.value, cause="this client's unit is a click, not a user")

    def tell(self, ask: Ask) -> Reply:
        """Answer for this client's users, or refuse; the same question again gets the same bytes."""
        return self._said(ask.run, lambda: self._tell(ask))

    def _join(self, terms: Terms) -> Reply:
        require_name(terms.run)
        known = self._open(terms)
        self._notes.keep_terms(terms)
        self._run = known
        unknown = self.users.unknown_events(terms)
        self._notes.keep_translation(terms.run, users=self.users.num_users, events=len(known.data), unknown_events=unknown)
        return Reply(Answer(self.name, self.users.num_users))

    def _open(self, terms: Terms) -> _Run:
        scenario = scenario_of(terms.recipe)
        variant = scenario.news.variant
        if NEWS_UNITS[variant] != "click" or variant == "centralized":
            raise _refused(Refusal.WRONG_PLAN, f"{variant} is nothing that this client answers", "A click is the unit here.")
        if not (promise(scenario).established and promise(scenario).private) and not self._trust.not_established:
            remedy = "privacy.allow_not_established = true takes part all the same; what it promises is then not proved."
            raise _refused(Refusal.WRONG_PLAN, f"the guarantee of {variant} is not established", remedy)
        if strange := set(scenario.news.open_categories) - self._trust.open_categories:
            raise _refused(Refusal.WRONG_PLAN, f"this client protects {min(strange)!r}", "See privacy.open_categories.")
        return _Run(terms, scenario, self.users.translate(terms))

    def _known(self, run: str) -> _Run:
        if self._run is None or self._run.terms.run != run:
            terms = self._notes.terms(run)
            if terms is None:
                raise _refused(Refusal.RUN_UNKNOWN, "this client does not know the run's terms", "The server tells them again.")
            self._run = self._open(terms)
        return self._run

    def _tell(self, ask: Ask) -> Reply:
        known = self._known(ask.run)
        additive = known.scenario.news.variant == "additive"
        first = ask.first_user.get(self.name, -1)
        if (ask.round == 0) != additive or first < 0 or first + self.users.num_users > ask.users:
            raise _refused(Refusal.MALFORMED, "this is no question of the run's variant, or does not number this client's users")
        made = self._report(known, ask, first) if additive else self._gradient(known, ask, first)
        return Reply(Answer(self.name, self.users.num_users, accepted=self.users.num_users), made)

    # --- additive: once ---

    def _report(self, known: _Run, ask: Ask, first: int) -> Arrays:
        scenario = known.scenario
        table = self._table(known, ask)
        plan = plan_training(promised(scenario), no_click=scenario.news.no_click == "report")
        label = (PureEvent("label", plan.label_epsilon),)
        self.ledger.charge(ask.run, Costs((GaussianEvent("report", plan.report_mu, "click", "replace"),), label))
        self._asked_once(ask, np.arange(self.users.num_users), most=1)
        got = collect(known.data, table, plan, history=scenario.news.history, noise=self._noise(ask.run), first_user=first)
        return {name: array.astype(np.uint8) if array.dtype == bool else array for name, array in collected_arrays(got).items()}

    def _table(self, known: _Run, ask: Ask) -> TopicTable:
        """The rows are the server's; how far two of them are apart is measured here, and what is open is this client's to say."""
        rows = ask.public.get("topics")
        if rows is None or rows.ndim != 2 or rows.shape[0] != len(known.terms.items) or rows.dtype.kind != "i" or not rows.size:
            raise _refused(Refusal.MALFORMED, "the question has no table of public rows, one for each item")
        rows = rows.astype(np.int64)
        if int(np.abs(rows).max()) > 2**BITS or int((rows**2).sum(1).max()) > 4**BITS:
            raise _refused(Refusal.MALFORMED, "a public row is longer than 1")
        bare = TopicTable(rows, diameter(rows) * 2.0**-BITS)
        if not known.scenario.news.open_categories:
            return bare
        news, _ = self.users.catalogue(known.terms, seed=known.scenario.seed)
        return opened(bare, news, known.scenario.news.open_categories)

    # --- in rounds ---

    def _gradient(self, known: _Run, ask: Ask, first: int) -> Arrays:
        parameters, cohort = ask.public.get("parameters"), ask.public.get("cohort")
        if parameters is None or cohort is None or cohort.ndim != 1 or cohort.dtype.kind != "i" or len(np.unique(cohort)) != len(cohort):
            raise _refused(Refusal.MALFORMED, "the question has no parameters, or no cohort of different users")
        at = np.flatnonzero((cohort >= first) & (cohort < first + self.users.num_users))
        mine = (cohort[at] - first).astype(np.int64)
        form, passes = FORMS[known.scenario.news.variant], schedule_of(known.scenario, ask.users).passes
        self.ledger.charge(ask.run, form.costs(known.scenario, passes))
        device = self._device(known, ask.run, passes, first)
        try:
            device.model.load_vector(parameters)
        except ValueError as failure:
            raise _refused(Refusal.MALFORMED, f"the model is not this version's: {failure}") from None
        self._asked_once(ask, mine, most=passes)
        if not len(mine) or not device.update.weight(mine):
            return {"gradient": np.zeros(len(parameters), np.float32), "weight": np.zeros(1, np.int64), "loss": np.zeros(1)}
        gradient, loss = device.update(device.model, mine, ask.round, Places(at, len(cohort)))
        return {"gradient": gradient, "weight": np.array([device.update.weight(mine)], np.int64), "loss": np.array([loss])}

    def _device(self, known: _Run, run: str, passes: int, first: int) -> _Device:
        if self._made is None or self._made[:3] != (run, passes, first):
            form, scenario = FORMS[known.scenario.news.variant], known.scenario
            news, vectors = self.users.catalogue(known.terms, seed=scenario.seed)
            model = news_model(scenario, news, vectors, basis=form.basis(scenario))
            update = form.device(scenario, known.data, passes, self._noise(run), first)
            self._made = run, passes, first, _Device(model, update, passes)
        return self._made[3]

    # --- what both have in common ---

    def _noise(self, run: str) -> Streams | SecretStreams:
        return SecretStreams(derive(self.ledger.secret, f"news/{run}")) if self._seed is None else Streams(self._seed)

    def _asked_once(self, ask: Ask, users: npt.NDArray[np.int64], *, most: int) -> None:
        """Write down what is answered, before it is. Raises RefusedError on another question in a round, or a user asked too often."""
        path, digest = self._folder / "asked" / f"{ask.run}.json", ask.digest()
        empty: dict[str, Any] = {"rounds": {}, "answers": [0] * self.users.num_users}
        notes: dict[str, Any] = read_json(path) if path.exists() else empty
        before = notes["rounds"].get(str(ask.round))
        if before == digest:
            return
        if before is not None:
            raise _refused(Refusal.ALREADY_REPORTED, f"round {ask.round} was answered already, to another question")
        for user in users.tolist():
            notes["answers"][user] += 1
        if max(notes["answers"], default=0) > most:
            raise _refused(Refusal.BUDGET, f"a user would answer more than {most} times, which is what was paid for")
        notes["rounds"][str(ask.round)] = digest
        write_json(path, notes)

    def _said(self, run: str, attempt: Callable[[], Reply]) -> Reply:
        """What the server hears, whatever happens here: words that no click has any part in."""
        try:
            with self._mutex:
                reply = attempt()
        except FedRecError as failure:
            code, cause = public_words(failure)
            logs.say(log, f"refused: {failure.cause}. {failure.remedy}", level=logging.WARNING, run=run, code=code)
            return Reply(Answer(self.name, self.users.num_users, refusal=code, cause=cause[:LONGEST_CAUSE]))
        except Exception as failure:  # a defect or a full disk; its words could hold anything
            logs.say_failure(log, "failed", failure, run=run)
            return Reply(Answer(self.name, self.users.num_users, refusal=FAILED, cause="the client failed; its log says where"))
        logs.say(log, "told", run=run, users=reply.answer.users)
        return reply


def _refused(code: Refusal, cause: str, remedy: str = "Nothing left: the server must ask otherwise.") -> RefusedError:
    return RefusedError(code.value, cause, remedy)
