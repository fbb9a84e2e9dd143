"""One client's way through a training of news without an aggregator: it noises on the device, and
tells the server that and nothing else.

Order: the question is checked, and rehearsed on invented users; the ledger of clicks is charged for
the whole run, durably, before the first answer; what is asked, and of whom, is written into its
chain; the answer is made. The server is not trusted: nothing that it chooses decides when noise
repeats, what is charged, or what fails.

- Noise is keyed by this client's secret, the run, its terms, this client's data, the user and the
  question (labels of `local`, which a user tells once for the whole run: all but the question). The
  same question gets the same bytes, after a crash too; another one fresh noise.
- A run keeps its terms, its number of users, the number of this client's first and its data (a copy
  is kept, so that new clicks wait for the next run); a round is answered to one question, and each
  user answers as often as was paid for. The ledger knows, whatever else is lost, and refuses what
  differs.
- A question that cannot be answered for invented users is refused before private data is touched.
  Afterwards the noised values are all that depends on a history (`local_update`), a vector or
  gradient that is no number counting as zero.

What is left is time: how long an answer takes depends on how many clicks and impressions this
client's users have.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.errors import RefusedError
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.wire import pack_terms
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.messages import Ask, Reply, scenario_of
from fedrec.news.models import news_model
from fedrec.news.reports_training import collect, collected_arrays
from fedrec.news.rounds import LocalUpdate
from fedrec.news.sensitivity import opened
from fedrec.news.variant import costs_of, of, promise, rounds_of, schedule_of
from fedrec.news.variants.additive import plan_of
from fedrec.operations import logs
from fedrec.privacy import keystream
from fedrec.privacy.bounded_mean import BITS, TopicTable, diameter
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.keystream import derive
from fedrec.randomness import SecretStreams, Streams
from fedrec.settings import NewsScenario
from fedrec_client.answering import invented
from fedrec_client.click_ledger import ClickLedger, RunBinding
from fedrec_client.ledger import user_tokens
from fedrec_client.readers import PRIVATE_COLUMNS, LocalReaders, read_clicks, write_clicks
from fedrec_client.refusals import guarded
from fedrec_client.run_record import Notes, require_name

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class NewsTrust:
    """What a site's operator allows: runs whose guarantee is not established, and categories that
    need no protection."""

    not_established: bool = False
    open_categories: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Run:
    """A run as this client knows it: `data` by the run's item numbers; both digests in
    hexadecimal."""

    terms: Terms
    scenario: NewsScenario
    data: Impressions
    terms_digest: str
    data_digest: str


@dataclass(frozen=True)
class _Device:
    """What answers rounds. rehearsal: for invented users; update: for this client's, made (labels
    are drawn then) once it is paid for."""

    model: NewsModel
    rehearsal: LocalUpdate
    update: Callable[[], LocalUpdate]


class NewsParticipant:
    """The readers of one site towards any server.

    May be called from several threads; one call runs at a time."""

    def __init__(
        self,
        name: str,
        users: LocalReaders,
        ledger: ClickLedger,
        folder: Path,
        *,
        trust: NewsTrust | None = None,
        seed: int | None = None,
        renew: Callable[[], LocalReaders | None] | None = None,
    ) -> None:
        """`folder` keeps terms and what was asked. renew: as of `participant.Participant`.

        `seed` is of a rehearsal's noise: with None it is secret, as it must be."""
        self.name = name
        self.users = users
        self.ledger = ledger
        self._folder = folder
        self._notes = Notes(folder)
        self._trust = trust or NewsTrust()
        self._seed = seed
        # a question asked twice at once must be paid once and answered by the same report
        self._mutex = threading.Lock()
        self._run: _Run | None = None
        self._renew = renew
        self._names = tuple(
            token.tobytes().hex() for token in user_tokens(ledger.secret, users.user_ids)
        )
        self._made: tuple[str, int, _Device] | None = None

    def join(self, terms: Terms) -> Answer:
        """Keep the terms of a run; again with the same terms is the same."""
        return self._said(terms.run, lambda: self._join(terms)).answer

    def answer(self, invitation: Invitation) -> Answer:
        """Never: this client's limit is per click, and an aggregator's releases are per user."""
        return Answer(
            self.name,
            self.users.num_users,
            refusal=Refusal.WRONG_PLAN.value,
            cause="this client's unit is a click, not a user",
        )

    def tell(self, ask: Ask) -> Reply:
        """Answer for this client's users, or refuse; the same question again gets the same
        bytes."""
        return self._said(ask.run, lambda: self._tell(ask))

    def _join(self, terms: Terms) -> Reply:
        require_name(terms.run)
        self._look_again(terms.run)
        known = self._open(terms)
        bound = self.ledger.bound(terms.run)
        # also where the note of them is lost
        if bound is not None and bound.terms != known.terms_digest:
            raise _refused(
                Refusal.WRONG_PLAN,
                f"the terms of run {terms.run} changed",
                "A run keeps its terms; begin a new one.",
            )
        unknown = self.users.unknown_events(terms)
        self._notes.keep_translation(terms.run, self.users.num_users, *unknown)
        self._notes.keep_terms(terms)
        self._run = known
        return Reply(Answer(self.name, self.users.num_users))

    def _look_again(self, run: str) -> None:
        """A new run is of the clicks that people have now; one that began keeps its copy of
        them."""
        if (
            self._renew is not None
            and self._notes.terms(run) is None
            and not self._copy(run).exists()
            and (users := self._renew()) is not None
        ):
            self._names = tuple(
                token.tobytes().hex() for token in user_tokens(self.ledger.secret, users.user_ids)
            )
            self.users = users

    def _open(self, terms: Terms) -> _Run:
        scenario = scenario_of(terms.recipe)
        variant = of(scenario)
        if variant.unit != "click" or not variant.on_devices:
            raise _refused(
                Refusal.WRONG_PLAN,
                f"{variant.name} is nothing that this client answers",
                "A click is the unit here.",
            )
        if (
            not (promise(scenario).established and promise(scenario).private)
            and not self._trust.not_established
        ):
            remedy = (
                "privacy.allow_not_established = true takes part all the same; what it promises "
                "is then not proved."
            )
            raise _refused(
                Refusal.WRONG_PLAN, f"the guarantee of {variant.name} is not established", remedy
            )
        if strange := set(scenario.news.open_categories) - self._trust.open_categories:
            raise _refused(
                Refusal.WRONG_PLAN,
                f"this client protects {min(strange)!r}",
                "See privacy.open_categories.",
            )
        data = read_clicks(
            self._copy(terms.run), len(terms.items), self._names
        ) or self._with_a_click_each(scenario, terms)
        return _Run(
            terms,
            scenario,
            data,
            hashlib.sha256(pack_terms(terms)).hexdigest(),
            _digest(data, self._names),
        )

    def _copy(self, run: str) -> Path:
        return self._folder / "data" / f"{run}.safetensors"

    def _with_a_click_each(self, scenario: NewsScenario, terms: Terms) -> Impressions:
        """This client's data by the run's numbers. Where "no click" cannot be answered, an
        impression without one answers as if any candidate had been clicked, drawn: it neither fails
        nor stays silent, either of which would tell.
        """
        data = self.users.translate(terms)
        told = np.add.reduceat(data.clicked, data.candidate_ptr[:-1]) if len(data) else np.zeros(0)
        if told.all() or scenario.news.no_click == "report":
            return data
        clicked = data.clicked.copy()
        key = derive(self.ledger.secret, f"news-no-click/{terms.run}")
        for impression in np.flatnonzero(told == 0).tolist():
            start, stop = data.candidate_ptr[impression : impression + 2].tolist()
            clicked[
                start
                + int(
                    keystream.integers(1, below=stop - start, key=derive(key, f"{impression}"))[0]
                )
            ] = True
        return replace(data, clicked=clicked)

    def _known(self, run: str) -> _Run:
        if self._run is None or self._run.terms.run != run:
            terms = self._notes.terms(run)
            if terms is None:
                raise _refused(
                    Refusal.RUN_UNKNOWN,
                    "this client does not know the run's terms",
                    "The server tells them again.",
                )
            self._run = self._open(terms)
        return self._run

    def _tell(self, ask: Ask) -> Reply:
        known = self._known(ask.run)
        once = of(known.scenario).in_rounds is None
        first = ask.first_user.get(self.name, -1)
        if (ask.round == 0) != once or first < 0 or first + self.users.num_users > ask.users:
            raise _refused(
                Refusal.MALFORMED,
                "this is no question of the run's variant, or does not number this client's users",
            )
        digest = ask.digest()
        made = self._report(known, ask, digest) if once else self._gradient(known, ask, digest)
        return Reply(Answer(self.name, self.users.num_users, accepted=self.users.num_users), made)

    # --- additive: once ---

    def _report(self, known: _Run, ask: Ask, digest: str) -> Arrays:
        scenario = known.scenario
        H = known.scenario.news.history
        table = self._table(known, ask)
        strangers = _strangers(known)
        plan = plan_of(scenario)
        _rehearse(lambda: collect(strangers, table, plan, history=H, noise=_public(strangers)))
        self._pay(
            known, ask, digest, costs_of(scenario, 1), np.ones(self.users.num_users, bool), most=1
        )
        got = collect(known.data, table, plan, history=H, noise=self._noise(known, digest))
        return {
            name: array.astype(np.uint8) if array.dtype == bool else array
            for name, array in collected_arrays(got).items()
        }

    def _table(self, known: _Run, ask: Ask) -> TopicTable:
        """The rows are the server's; how far two of them are apart is measured here, and what is
        open is this client's to say."""
        rows = ask.public.get("topics")
        if (
            rows is None
            or rows.ndim != 2
            or rows.shape[0] != len(known.terms.items)
            or rows.dtype.kind != "i"
            or not rows.size
        ):
            raise _refused(
                Refusal.MALFORMED, "the question has no table of public rows, one for each item"
            )
        rows = rows.astype(np.int64)
        if int(np.abs(rows).max()) > 2**BITS or int((rows**2).sum(1).max()) > 4**BITS:
            raise _refused(Refusal.MALFORMED, "a public row is longer than 1")
        bare = TopicTable(rows, diameter(rows) * 2.0**-BITS)
        if not known.scenario.news.open_categories:
            return bare
        news, _ = self.users.catalogue(known.terms, seed=known.scenario.seed)
        return opened(bare, news, known.scenario.news.open_categories)

    # --- in rounds ---

    def _gradient(self, known: _Run, ask: Ask, digest: str) -> Arrays:
        parameters = ask.public.get("parameters")
        cohort = ask.public.get("cohort")
        if (
            parameters is None
            or cohort is None
            or cohort.ndim != 1
            or cohort.dtype.kind != "i"
            or len(np.unique(cohort)) != len(cohort)
        ):
            raise _refused(
                Refusal.MALFORMED, "the question has no parameters, or no cohort of different users"
            )
        mine = cohort.astype(np.int64) - ask.first_user[self.name]
        mine = mine[(mine >= 0) & (mine < self.users.num_users)]
        passes = schedule_of(known.scenario, ask.users).passes
        device = self._device(known, passes)
        try:
            device.model.load_vector(parameters)
        except ValueError as failure:
            raise _refused(
                Refusal.MALFORMED, f"the model is not this version's: {failure}"
            ) from None
        _rehearse(lambda: device.rehearsal(device.model, np.arange(3), ask.round))
        asked = np.isin(np.arange(self.users.num_users), mine)
        self._pay(known, ask, digest, costs_of(known.scenario, passes), asked, most=passes)
        update = device.update()
        if not len(mine) or not update.weight(mine):
            return {
                "gradient": np.zeros(len(parameters), np.float32),
                "weight": np.zeros(1, np.int64),
                "loss": np.zeros(1),
            }
        gradient, loss = update(
            device.model, mine, ask.round, "" if self._seed is not None else digest
        )
        return {
            "gradient": gradient,
            "weight": np.array([update.weight(mine)], np.int64),
            "loss": np.array([loss]),
        }

    def _device(self, known: _Run, passes: int) -> _Device:
        if self._made is None or self._made[:2] != (known.terms.run, passes):
            form = rounds_of(known.scenario)
            scenario = known.scenario
            strangers = _strangers(known)
            news, vectors = self.users.catalogue(known.terms, seed=scenario.seed)
            model = news_model(scenario, news, vectors, basis=form.basis(scenario))
            rehearsal = form.device(scenario, strangers, passes, _public(strangers))
            update = cache(lambda: form.device(scenario, known.data, passes, self._noise(known)))
            self._made = known.terms.run, passes, _Device(model, rehearsal, update)
        return self._made[2]

    # --- what both have in common ---

    def _noise(self, known: _Run, question: str = "") -> DeviceNoise:
        """Noise of the devices; of a rehearsal with a seed, what one process would draw for users
        of these names."""
        if self._seed is not None:
            return DeviceNoise(Streams(self._seed), self.users.user_ids)
        secret = derive(
            self.ledger.secret, f"news/{known.terms.run}/{known.terms_digest}/{known.data_digest}"
        )
        return DeviceNoise(SecretStreams(secret), self._names, question)

    def _pay(
        self,
        known: _Run,
        ask: Ask,
        digest: str,
        costs: Costs,
        users: npt.NDArray[np.bool_],
        *,
        most: int,
    ) -> None:
        """Charge the run and write down who answers what, before anything is drawn."""
        bound = RunBinding(
            known.terms_digest, known.data_digest, ask.users, ask.first_user[self.name]
        )
        # of each, the server is told how many
        labels = int(np.bincount(known.data.users, minlength=1).max())
        bound = replace(bound, history=known.scenario.news.history, labels=labels)
        if self.ledger.charge(ask.run, costs, bound):
            # of runs that were paid for: their number is limited
            write_clicks(self._copy(ask.run), known.data, self._names)
        self.ledger.answer(ask.run, ask.round, digest, users, most=most)

    def _said(self, run: str, attempt: Callable[[], Reply]) -> Reply:
        """What the server hears, whatever happens here: words that no click has any part in."""
        reply, code, cause = guarded(log, self._mutex, attempt, run=run)
        if reply is None:
            return Reply(Answer(self.name, self.users.num_users, refusal=code, cause=cause))
        logs.say(log, "told", run=run, users=reply.answer.users)
        return reply


def _digest(data: Impressions, names: tuple[str, ...]) -> str:
    """SHA-256 of all users' data and pseudonyms. Private: it stays in the ledger."""
    hashed = hashlib.sha256("/".join(names).encode())
    for name in ("num_news", *PRIVATE_COLUMNS):
        array = np.asarray(getattr(data, name), order="C")
        hashed.update(f"/{name}/{array.dtype.str}/{array.shape}/".encode() + array.tobytes())
    return hashed.hexdigest()


def _strangers(known: _Run) -> Impressions:
    """Invented users, with and without a history, for a rehearsal."""
    made = invented(known.terms)
    assert isinstance(made, Impressions)
    return made


def _public(strangers: Impressions) -> DeviceNoise:
    """Noise of invented users: nobody hears it."""
    return DeviceNoise.numbered(Streams(0), strangers.num_users)


def _rehearse(step: Callable[[], object]) -> None:
    """Raises RefusedError where a question cannot be answered for invented users, whose failures
    are public."""
    try:
        with np.errstate(all="ignore"):
            step()
    except Exception as failure:
        words = f"this question cannot be answered ({type(failure).__name__}: {str(failure)[:200]})"
        raise _refused(Refusal.MALFORMED, words) from None


def _refused(
    code: Refusal, cause: str, remedy: str = "Nothing left: the server must ask otherwise."
) -> RefusedError:
    return RefusedError(code.value, cause, remedy)
