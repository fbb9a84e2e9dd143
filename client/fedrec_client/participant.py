"""One client's way through a run: it joins on terms it can keep, answers each round once, and says
no with a reason.

Order in a round: the plan and the question are checked, and that the aggregator's ledger still
holds what was seen of it; the own ledger is charged, durably; the reports are made and handed to
the aggregator in batches. A crash anywhere costs nothing twice: the same question again is charged
once, and its reports are the same bytes under the same ids, which the aggregator counts once. The
server gets an `Answer` and nothing else: counts, a stable code, and words that no user's event has
any part in. What the operator should know goes to the log.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedrec.arrays import UInt8s
from fedrec.data.interactions import Interactions
from fedrec.errors import (
    DataError,
    FedRecError,
    MalformedRowError,
    PrivacyError,
    RefusedError,
    SettingsError,
    UnreachableError,
)
from fedrec.federation.hostile_clients import ATTEMPTS, checks
from fedrec.federation.ledger_heads import follow
from fedrec.federation.messages import Question
from fedrec.federation.personal import announced, weight, weighted
from fedrec.federation.protocol import Answer, Invitation, Receipt, Refusal, ReportDesk, Terms
from fedrec.federation.rounds import ClientStep
from fedrec.federation.wire import question_digest, question_header, read_header, report_digest
from fedrec.news.messages import Ask, Reply
from fedrec.operations import logs
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_steps, guarantee_of
from fedrec.settings import validated
from fedrec_client.answering import Bounds, Private, require_answerable
from fedrec_client.delivery import Delivery
from fedrec_client.leaves import LeafDelivery, Leaves
from fedrec_client.leaves_of_three import LeavesOfThree, RangesDelivery
from fedrec_client.ledger import ClientLedger
from fedrec_client.pseudonyms import report_ids, user_tokens
from fedrec_client.run_record import Notes, require_name
from fedrec_client.three_way import SharedDelivery, ThreeWay, require_shareable

log = logging.getLogger(__name__)

UNREACHABLE, FAILED, UNSUITED = "unreachable", "failed", "unsuited"
"""Codes of answers besides `Refusal`: the aggregator did not answer; the client's own disk or
ledger failed; the run is about another kind of data, or another scale."""

TOKENS_PER_PIECE = 10_000
LONGEST_CAUSE = 500
"""Characters: a cause may quote a name that the server made up."""


class SiteUsers(Protocol):
    """The users of one site: `store.LocalUsers`, or `readers.LocalReaders` of news."""

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Their names here."""

    @property
    def num_users(self) -> int:
        """Users, with or without data."""

    def translate(self, terms: Terms) -> Private:
        """Their data by the run's item numbers.

        Raises DataError or RefusedError, never because of an event."""

    def unknown_events(self, terms: Terms) -> int:
        """How many events `translate` leaves out."""


class Participant:
    """The users of one site towards one aggregator and any server.

    May be called from several threads; one call runs at a time."""

    def __init__(
        self,
        name: str,
        users: SiteUsers,
        ledger: ClientLedger,
        desk: ReportDesk | ThreeWay | Leaves | LeavesOfThree,
        folder: Path,
        *,
        users_per_batch: int = 256,
        keep_sent: bool = False,
        allow_not_established: bool = False,
        bounds: Bounds | None = None,
        personal_epsilon: float = math.inf,
        renew: Callable[[], SiteUsers | None] | None = None,
    ) -> None:
        """desk: of the one aggregator, of its leaves, of three, or of their leaves; plans of the
        other kind are refused.

        `folder` keeps terms and what was sent.
        personal_epsilon: the most that one run may cost each user.
        renew: the users when a new run begins, None where they are as before (`renewal`).
        """
        self.name, self.users, self.ledger, self._desk, self._notes = (
            name,
            users,
            ledger,
            desk,
            Notes(folder),
        )
        self._users_per_batch, self._keep_sent = users_per_batch, keep_sent
        self._allow_not_established, self._bounds = allow_not_established, bounds or Bounds()
        self._personal_epsilon = personal_epsilon
        self._tokens, self._renew = user_tokens(ledger.secret, users.user_ids), renew
        self._known: tuple[Terms, Private] | None = None
        self._mutex = threading.Lock()

    def join(self, terms: Terms) -> Answer:
        """Keep the terms of a run and enrol every user at the aggregator; again with the same terms
        is the same."""
        return self._said(terms.run, None, lambda: self._join(terms))

    def answer(self, invitation: Invitation) -> Answer:
        """Report for every user, or refuse; the same invitation again sends the same reports."""
        return self._said(
            invitation.run, invitation.question.round, lambda: self._answer(invitation)
        )

    def tell(self, ask: Ask) -> Reply:
        """Never: what this client has goes to an aggregator, which adds the noise."""
        return Reply(
            Answer(
                self.name,
                self.users.num_users,
                refusal=Refusal.WRONG_PLAN.value,
                cause="this client's unit is a user",
            )
        )

    def _join(self, terms: Terms) -> Answer:
        require_name(terms.run)
        _require_sound(terms, self._bounds)
        self._look_again(terms.run)
        mine = self._translated(terms)
        self._notes.keep_terms(terms)
        self._known = terms, mine
        unknown = self.users.unknown_events(terms)
        self._notes.keep_translation(
            terms.run, users=mine.num_users, events=len(mine), unknown_events=unknown
        )
        if self.ledger.plan_of(terms.run) is None:  # once it is known, the plan decides
            promised = guarantee_of(validated(json.loads(terms.recipe), source="the run's recipe"))
            self.ledger.require_room_for(self._charged(terms, promised))
        self._see_the_aggregators_ledger()
        self._enroll()
        return Answer(self.name, self.users.num_users)

    def _look_again(self, run: str) -> None:
        """A new run asks what people hold now, and whoever has joined since."""
        if (
            self._renew is not None
            and self._notes.terms(run) is None
            and (users := self._renew()) is not None
        ):
            self.users, self._tokens, self._known = (
                users,
                user_tokens(self.ledger.secret, users.user_ids),
                None,
            )

    def _see_the_aggregators_ledger(self) -> None:
        """Raises RefusedError (`STALE_LEDGER`) where it, or this client's own, has gone back in
        time."""
        desk, charged = self._desk, len(self.ledger.entries)
        if isinstance(desk, ThreeWay | LeavesOfThree):
            desk.follow([self.ledger.of_aggregator(place) for place in range(3)], charged)
        else:
            follow(lambda since: desk.growth(since, charged), self.ledger)

    def _enroll(self) -> None:
        try:
            for start in range(0, len(self._tokens), TOKENS_PER_PIECE):
                self._desk.enroll(
                    [token.tobytes() for token in self._tokens[start : start + TOKENS_PER_PIECE]]
                )
        except RefusedError as failure:
            raise _from_the_aggregator(failure, "did not enrol this client's users") from None

    def _answer(self, invitation: Invitation) -> Answer:
        terms, mine = self._terms(invitation.run)
        question, plan = invitation.question, Plan.of(invitation.plan.content())
        header = question_header(question, run=invitation.run, plan=plan.digest())
        read_header(header)  # names and sizes, as if it had come as bytes
        step = _step(question, terms)
        self._require_plan(plan, question)
        own = weight(self._charged(terms, plan.guarantee).epsilon, plan.guarantee)
        require_answerable(question, step, terms, self._bounds)
        digest = question_digest(header)
        self._see_the_aggregators_ledger()
        named = report_digest(digest, invitation.quorum)
        self.ledger.charge(
            invitation.run,
            question.round,
            digest,
            plan,
            [release.name for release in question.releases],
            weight=own,
        )
        ids = report_ids(
            self.ledger.secret,
            self._tokens,
            run=invitation.run,
            round=question.round,
            digest=digest,
        )
        return self._deliver(
            self._delivery(invitation.run, question, plan, named, _weighed(step, own), mine, ids),
            header,
            invitation.quorum,
        )

    def _charged(self, terms: Terms, promised: Guarantee) -> Guarantee:
        """What the run costs each user here: its guarantee, or the announced limit that fits the
        users' own. Raises RefusedError.

        promised: by the terms before the plan is known, by the plan afterwards: terms may say
        anything. A limit counts at this client's delta: at a larger one any noise is of a small
        epsilon.
        """
        own, delta = self._personal_epsilon, self.ledger.limit.delta

        def fits(epsilon: float) -> bool:
            if promised.delta <= delta or own < epsilon:
                return own >= epsilon
            return own >= epsilon_of(mu_for(epsilon, promised.delta), delta)

        if math.isinf(own) or fits(promised.epsilon):
            return promised
        limits = validated(json.loads(terms.recipe), source="the run's recipe").privacy.limits
        if not (limit := announced(own, {a: of for a, of in limits.items() if fits(a)})):
            cause = (
                f"the run costs epsilon {promised.epsilon:g} at delta {promised.delta:g} and "
                "announces no limit that is at most this client's personal_epsilon"
            )
            raise _refused(
                Refusal.BUDGET,
                cause,
                "A run that announces such limits (privacy.personal_epsilons) would be answered.",
            )
        return replace(promised, epsilon=limit)

    def _terms(self, run: str) -> tuple[Terms, Private]:
        if self._known is None or self._known[0].run != run:
            terms = self._notes.terms(run)
            if terms is None:
                raise _refused(
                    Refusal.RUN_UNKNOWN,
                    "this client does not know the run's terms",
                    "The server tells them again.",
                )
            self._known = terms, self._translated(terms)
        return self._known

    def _translated(self, terms: Terms) -> Private:
        """The users' data by the run's numbers.

        What a step draws for a user, it draws by the user's pseudonym, which no server assigns."""
        mine = self.users.translate(terms)
        if isinstance(mine, Interactions) and mine.user_words is None:
            return replace(
                mine,
                user_words=np.ascontiguousarray(self._tokens[:, :8])
                .view("<u8")
                .ravel()
                .astype(np.uint64),
            )
        return mine

    def _require_plan(self, plan: Plan, question: Question) -> None:
        """What the plan itself says; whether the limit has room for it is the ledger's to
        decide."""
        guarantee = plan.guarantee
        if (guarantee.unit, guarantee.neighbours) != ("user", "add/remove"):
            raise _refused(
                Refusal.WRONG_PLAN,
                f"the plan protects {guarantee.compared}",
                "Here a user is the unit.",
            )
        mine = "three-party" if isinstance(self._desk, ThreeWay | LeavesOfThree) else "trusted"
        if plan.aggregation != mine:
            cause = (
                f"the plan's aggregation is {plan.aggregation}, this client takes part in {mine} "
                "only"
            )
            raise _refused(
                Refusal.WRONG_PLAN,
                cause,
                "The settings of this client name one aggregator, or three.",
            )
        if not guarantee.established and not self._allow_not_established:
            remedy = (
                "privacy.allow_not_established = true takes part all the same; what it promises "
                "is then not proved."
            )
            raise _refused(Refusal.WRONG_PLAN, "the plan's guarantee is not established", remedy)
        planned = {release.name for release in plan.releases}
        if unplanned := [
            release.name for release in question.releases if release.name not in planned
        ]:
            raise _refused(
                Refusal.WRONG_PLAN,
                f"the plan has no release {unplanned[0]!r}",
                "Nobody would account for it.",
            )
        if mine == "three-party":
            require_shareable(question, plan)

    def _delivery(
        self,
        run: str,
        question: Question,
        plan: Plan,
        named: str,
        step: ClientStep,
        mine: Private,
        ids: UInt8s,
    ) -> Delivery:
        keep = (
            (lambda number, batch: self._notes.keep_batch(run, question.round, number, batch))
            if self._keep_sent
            else None
        )
        about = (run, question, named, step, mine, ids, self._tokens)
        if isinstance(self._desk, ThreeWay | LeavesOfThree):

            def counted(where: str) -> Callable[[bytes], None]:
                if not checks(plan):
                    return SharedDelivery.keep_attempt
                return partial(self.ledger.keep_attempt, where, question.round, most=ATTEMPTS)

            own: dict[str, Any] = {"keep": keep, "plan": plan, "secret": self.ledger.secret}
            if isinstance(self._desk, LeavesOfThree):
                # by range: a user shares in the attempts of its own range alone
                count = lambda of: counted(f"{run}/{of}")  # noqa: E731
                return RangesDelivery(*about, **own, leaves=self._desk, count=count)
            return SharedDelivery(*about, **own, three=self._desk, keep_attempt=counted(run))
        if isinstance(self._desk, Leaves):
            return LeafDelivery(*about, keep=keep, leaves=self._desk)
        return Delivery(*about, self._desk, keep)

    def _deliver(self, delivery: Delivery, header: bytes, quorum: int) -> Answer:
        refusal, cause = "", ""
        try:
            delivery.hand_in(
                users_per_batch=self._users_per_batch, batch_bytes=self._bounds.batch_bytes
            )
        except (UnreachableError, RefusedError) as failure:
            refusal, cause = public_words(
                _from_the_aggregator(failure, "did not take this client's reports")
            )
            why = {
                "cause": failure.cause,
                "remedy": failure.remedy,
                "code": refusal,
                "run": delivery.run,
            }
            logs.say(
                log, "not-delivered", level=logging.WARNING, round=delivery.question.round, **why
            )
        answer = Answer(
            self.name, self.users.num_users, delivery.accepted, delivery.rejected, refusal, cause
        )
        receipt, round = Receipt(answer.accepted, answer.rejected), delivery.question.round
        try:
            self._notes.keep_receipt(
                delivery.run, round, header, quorum, receipt, delivery.batches, delivery.bytes_sent
            )
        except OSError as failure:
            # the reports are counted: that a note of them is missing changes nothing
            logs.say_failure(log, "receipt-not-kept", failure, run=delivery.run, round=round)
        return answer

    def _said(self, run: str, round: int | None, attempt: Callable[[], Answer]) -> Answer:
        """What the server hears, whatever happens here."""
        try:
            with self._mutex:
                answer = attempt()
        except FedRecError as failure:  # ours: its words hold no value of a user
            code, cause = public_words(failure)
            answer = Answer(
                self.name, self.users.num_users, refusal=code, cause=cause[:LONGEST_CAUSE]
            )
            why = {"cause": failure.cause, "remedy": failure.remedy}
            logs.say(log, "refused", level=logging.WARNING, run=run, round=round, code=code, **why)
        except Exception as failure:  # a defect or a full disk; its words could hold anything
            answer = Answer(
                self.name,
                self.users.num_users,
                refusal=FAILED,
                cause="the client failed; its log says where",
            )
            logs.say_failure(log, "failed", failure, run=run, round=round)
        else:
            event, failed = "joined" if round is None else "answered", answer.refusal or None
            logs.say(
                log,
                event,
                run=run,
                round=round,
                code=failed,
                users=answer.users,
                accepted=answer.accepted,
                rejected=answer.rejected,
            )
        return answer


def _require_sound(terms: Terms, bounds: Bounds) -> None:
    """Terms this version can keep: a known recipe whose reports are per user, a scale, a catalogue
    of a size that can be held."""
    client_steps(terms.recipe, terms.kind)
    if validated(json.loads(terms.recipe), source="the run's recipe").privacy.unit != "user":
        raise _refused(
            Refusal.WRONG_PLAN,
            "the run's reports are per example, not per user",
            "Such a recipe runs in simulation only.",
        )
    low, high = terms.value_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _refused(
            Refusal.MALFORMED,
            f"{low:g} to {high:g} is not a scale",
            "The server's operator must correct it.",
        )
    if not terms.items or sum(map(len, terms.items)) > bounds.public_bytes:
        raise _refused(
            Refusal.TOO_LARGE,
            "the catalogue is empty, or larger than this client holds",
            "The server's operator must correct it.",
        )


def _step(question: Question, terms: Terms) -> ClientStep:
    steps = client_steps(terms.recipe, terms.kind)
    if question.step not in steps:
        raise _refused(
            Refusal.MALFORMED,
            f"{question.step!r} is no step of the run's recipe",
            "Use the same version of fedrec everywhere.",
        )
    return steps[question.step]


def _weighed(step: ClientStep, own: float) -> ClientStep:
    """The step, its reports counting `own` of one."""
    if own == 1:
        return step
    return lambda question, mine: weighted(
        made := step(question, mine), np.full(made.num_users, own), question.blocks
    )


def _from_the_aggregator(
    failure: UnreachableError | RefusedError, what: str
) -> UnreachableError | RefusedError:
    """The aggregator's words are for this client; the server gets its code."""
    if isinstance(failure, UnreachableError):
        return failure
    return RefusedError(
        failure.code, f"the aggregator {what}", f"{failure.cause}. {failure.remedy}"
    )


def public_words(failure: FedRecError) -> tuple[str, str]:
    """A stable code and words that no user's data has any part in: what the server may hear of a
    failure."""
    match failure:
        case RefusedError():
            return failure.code, failure.cause
        case UnreachableError():
            return UNREACHABLE, "the aggregator did not answer"
        case PrivacyError():
            return Refusal.WRONG_PLAN, failure.cause
        case SettingsError():
            return Refusal.MALFORMED, failure.cause
        case MalformedRowError():
            return UNSUITED, "a file of this client is malformed"  # its words quote the file
        case DataError():
            return UNSUITED, failure.cause
        case _:
            return FAILED, "the client's ledger or state folder cannot be used"


def _refused(code: Refusal, cause: str, remedy: str) -> RefusedError:
    return RefusedError(code.value, cause, remedy)
