"""One client's way through a run: it joins on terms it can keep, answers each round once, and says
no with a reason.

Order in a round: the plan and the question are checked, and that the aggregator's ledger still
holds what was seen of it; the own ledger is charged, durably, and the aggregator told of the
charge; the reports are made and handed to the aggregator in batches. A crash anywhere costs nothing
twice: the same question again is charged once, and its reports are the same bytes under the same
ids, which the aggregator counts once. The server gets an `Answer` and nothing else: counts, a
stable code, and words that no user's event has any part in, but that none of many has an item of
the catalogue. What the operator should know goes to the log.
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
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedrec.arrays import UInt8s
from fedrec.data.interactions import Interactions
from fedrec.errors import (
    RefusedError,
    UnreachableError,
)
from fedrec.federation.hostile_clients import ATTEMPTS
from fedrec.federation.messages import ClientStep, Question
from fedrec.federation.protocol import (
    Answer,
    Invitation,
    Receipt,
    Refusal,
    ReportEndpoint,
    SignedStatement,
    Terms,
    follow,
    refused,
)
from fedrec.federation.releases import weight, weighted
from fedrec.federation.wire import question_digest, question_header, read_header, report_digest
from fedrec.news.messages import Ask, Reply
from fedrec.operations import logs
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import guarantee_of
from fedrec.settings import validated
from fedrec_client.answering import AnswerBounds, Private, require_answerable
from fedrec_client.delivery import Delivery
from fedrec_client.ledger import ClientLedger, report_ids, user_tokens
from fedrec_client.refusals import from_the_aggregator, guarded, public_words
from fedrec_client.run_record import (
    Notes,
    charged,
    require_name,
    require_plan,
    require_sound,
    step_of,
)
from fedrec_client.streams import of_week
from fedrec_client.three_way import (
    SharedDelivery,
    ThreeWay,
    sharing_check,
)

log = logging.getLogger(__name__)

TOKENS_PER_PIECE = 10_000  # 160 KB: far below the 4 MB that gRPC takes by default


class SiteUsers(Protocol):
    """The users of one site: `store.LocalUsers`, or `readers.LocalReaders` of news."""

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Their names here."""

    @property
    def num_users(self) -> int:
        """Users, with or without data."""

    def only(self, users: npt.NDArray[np.integer]) -> Self:
        """Those of these numbers."""

    def translate(self, terms: Terms) -> Private:
        """Their data by the run's item numbers.

        Raises DataError or RefusedError, never because of an event."""

    def unknown_events(self, terms: Terms) -> tuple[int, int]:
        """How many events `translate` leaves out, and how many there are."""


class Participant:
    """The users of one site towards one aggregator and any server.

    May be called from several threads; one call runs at a time."""

    def __init__(
        self,
        name: str,
        users: SiteUsers,
        ledger: ClientLedger,
        endpoint: ReportEndpoint | ThreeWay,
        folder: Path,
        *,
        users_per_batch: int = 256,
        keep_sent: bool = False,
        allow_not_established: bool = False,
        bounds: AnswerBounds | None = None,
        personal_epsilon: float = math.inf,
        renew: Callable[[], SiteUsers | None] | None = None,
    ) -> None:
        """endpoint: of the one aggregator, of its leaves, of three, or of their leaves; plans of
        the other kind are refused.

        `folder` keeps terms and what was sent.
        personal_epsilon: the most that one run may cost each user.
        renew: the users when a new run begins, None where they are as before (`renewal`).
        """
        self.name = name
        self._known: tuple[Terms, Private] | None = None
        self.ledger = ledger
        self._endpoint = endpoint
        self._notes = Notes(folder)
        self._users_per_batch = users_per_batch
        self._keep_sent = keep_sent
        self._allow_not_established = allow_not_established
        self._bounds = bounds or AnswerBounds()
        self._personal_epsilon = personal_epsilon
        self._take(users)
        self._renew = renew
        # a question asked twice at once must be paid once and answered by the same report
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

    def forget(self, user: str) -> tuple[SignedStatement, ...]:
        """Report nothing of this user from here on, whatever comes after; what each aggregator
        states of it. Again is the same.

        Raises RunError where the ledger cannot be written; after it was, UnreachableError, and
        RefusedError (`NOT_ENROLLED`) where no run has asked this user yet."""
        with self._mutex:
            token = user_tokens(self.ledger.secret, [user])[0].tobytes()
            self.ledger.depart(token)
            self._take(self.users)
            # the aggregator knows of the entry: put back to before it, this ledger is refused
            self._see_the_aggregators_ledger()
            own = self._endpoint
            endpoints = own.endpoints if isinstance(own, ThreeWay) else (own,)
            told = tuple(endpoint.forget(token) for endpoint in endpoints)
            self._see_the_aggregators_ledger()  # one from before this entry is refused, too
            return told

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
        require_sound(terms, self._bounds)
        self._look_again(terms)
        mine = self._translated(terms)
        self._notes.keep_translation(terms.run, mine.num_users, *self.users.unknown_events(terms))
        self._notes.keep_terms(terms)
        self._known = terms, mine
        if self.ledger.plan_of(terms.run) is None:  # once it is known, the plan decides
            promised = guarantee_of(
                validated(json.loads(terms.recipe), source="the run's recipe").privacy
            )
            self.ledger.require_room_for(self._charged(terms, promised))
        self._see_the_aggregators_ledger()
        self._enroll()
        return Answer(self.name, self.users.num_users)

    def _look_again(self, terms: Terms) -> None:
        """A new run, and every week of a stream, asks what people hold now, and whoever has joined
        since."""
        privacy = validated(json.loads(terms.recipe), source="the run's recipe").privacy
        if (
            self._renew is not None
            and (privacy.horizon or self._notes.terms(terms.run) is None)
            and (users := self._renew()) is not None
        ):
            self._take(users)

    def _take(self, users: SiteUsers) -> None:
        """These, but those who left."""
        tokens = user_tokens(self.ledger.secret, users.user_ids)
        left = self.ledger.departed
        stay = np.flatnonzero([token.tobytes() not in left for token in tokens])
        self.users = users.only(stay) if left else users
        self._tokens = tokens[stay]
        self._known = None

    def _see_the_aggregators_ledger(self) -> None:
        """Raises RefusedError (`STALE_LEDGER`) where it, or this client's own, has gone back in
        time."""
        endpoint = self._endpoint
        own = self.ledger.told
        if isinstance(endpoint, ThreeWay):
            endpoint.follow([self.ledger.of_aggregator(place) for place in range(3)], own)
        else:
            follow(lambda since: endpoint.growth(since, own), self.ledger)

    def _enroll(self) -> None:
        try:
            for start in range(0, len(self._tokens), TOKENS_PER_PIECE):
                self._endpoint.enroll(
                    [token.tobytes() for token in self._tokens[start : start + TOKENS_PER_PIECE]]
                )
        except RefusedError as failure:
            raise from_the_aggregator(failure, "did not enrol this client's users") from None

    def _answer(self, invitation: Invitation) -> Answer:
        terms, mine = self._terms(invitation.run)
        question = invitation.question
        plan = Plan.of(invitation.plan.content())
        header = question_header(question, run=invitation.run, plan=plan.digest())
        read_header(header)  # names and sizes, as if it had come as bytes
        step = step_of(question, terms)
        shared = isinstance(self._endpoint, ThreeWay)
        require_plan(
            plan,
            question,
            aggregation="three-party" if shared else "trusted",
            allow_not_established=self._allow_not_established,
        )
        own = weight(self._charged(terms, plan.guarantee).epsilon, plan.guarantee)
        step = _weighed(step, own)
        check = sharing_check(question, plan)
        require_answerable(question, step, terms, self._bounds, check=check)
        keep = None
        asked = question
        if plan.horizon:
            if own != 1 or not isinstance(mine, Interactions):
                raise refused(Refusal.WRONG_PLAN, "a stream is of clicks that all count whole")
            told = of_week(question, invitation.run, plan, mine, self._tokens, self.ledger)
            asked, mine, keep = told
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
            keep=keep,
        )
        # the aggregator knows of this charge before a report of it counts: put back to before it,
        # this ledger is refused
        self._see_the_aggregators_ledger()
        ids = report_ids(
            self.ledger.secret,
            self._tokens,
            run=invitation.run,
            round=question.round,
            digest=digest,
        )
        return self._deliver(
            self._delivery(invitation.run, asked, plan, named, step, mine, ids),
            header,
            invitation.quorum,
        )

    def _charged(self, terms: Terms, promised: Guarantee) -> Guarantee:
        own = self._personal_epsilon
        delta = self.ledger.limit.delta
        return charged(terms, promised, own=own, delta=delta)

    def _terms(self, run: str) -> tuple[Terms, Private]:
        if self._known is None or self._known[0].run != run:
            terms = self._notes.terms(run)
            if terms is None:
                raise refused(
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
        if isinstance(self._endpoint, ThreeWay):
            keep_attempt: Callable[[bytes], None] = (
                partial(self.ledger.keep_attempt, run, question.round, most=ATTEMPTS)
                if plan.checked
                else SharedDelivery.keep_attempt
            )
            own: dict[str, Any] = {"keep": keep, "plan": plan, "secret": self.ledger.secret}
            return SharedDelivery(*about, **own, three=self._endpoint, keep_attempt=keep_attempt)
        return Delivery(*about, self._endpoint, keep)

    def _deliver(self, delivery: Delivery, header: bytes, quorum: int) -> Answer:
        refusal = ""
        cause = ""
        try:
            delivery.hand_in(
                users_per_batch=self._users_per_batch, batch_bytes=self._bounds.batch_bytes
            )
        except (UnreachableError, RefusedError) as failure:
            refusal, cause = public_words(
                from_the_aggregator(failure, "did not take this client's reports")
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
        receipt = Receipt(answer.accepted, answer.rejected)
        round = delivery.question.round
        if set(answer.rejected) == {Refusal.NOT_ENROLLED} and not answer.accepted:
            logs.say(
                log,
                "nobody-accepted",
                level=logging.WARNING,
                run=delivery.run,
                round=round,
                rejected=answer.rejected,
                code=Refusal.NOT_ENROLLED.value,
                cause="the aggregator does not know this site's users: none of them counts",
                remedy="The next training enrols them; `fedrec doctor` says whether it can.",
            )
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
        answer, code, cause = guarded(log, self._mutex, attempt, run=run, round=round)
        if answer is None:
            return Answer(self.name, self.users.num_users, refusal=code, cause=cause)
        logs.say(
            log,
            "joined" if round is None else "answered",
            run=run,
            round=round,
            code=answer.refusal or None,
            users=answer.users,
            accepted=answer.accepted,
            rejected=answer.rejected,
        )
        return answer


def _weighed(step: ClientStep, own: float) -> ClientStep:
    """The step, its reports counting `own` of one."""
    if own == 1:
        return step
    return lambda question, mine: weighted(
        made := step(question, mine), np.full(made.num_users, own), question.blocks
    )
