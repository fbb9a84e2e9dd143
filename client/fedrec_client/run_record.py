"""Runs as a client takes part in them: checks of their terms and plans before anything is charged,
and the record of terms and of what was sent, besides the ledger.

Losing the record costs a second `join`, and no privacy: a ledger of clicks knows the terms of every
run that it charged (`click_ledger`), and reports on ratings carry no noise of this client's, are
charged by their question and what it cost, and counted once by the aggregator.

The server is not trusted with terms or plans. Terms are kept where this version knows their recipe;
what they promise counts only until the plan is known. A plan is answered where it protects a user,
its aggregation is this client's, and it has every release that the question asks for: only those
are charged. A question's numbers are checked in `answering`.
"""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

from fedrec.errors import RefusedError
from fedrec.federation.messages import ClientStep, Question
from fedrec.federation.protocol import Receipt, Refusal, Terms, refused
from fedrec.federation.releases import announced
from fedrec.federation.wire import pack_terms, question_digest, read_terms
from fedrec.operations import logs
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.calibration import Aggregation, Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_steps
from fedrec.settings import validated
from fedrec.storage import PRIVATE, read_json, write_bytes, write_json
from fedrec_client.answering import AnswerBounds
from fedrec_client.three_way import require_shareable

log = logging.getLogger(__name__)

TRANSLATION = "translation.json"
NO_ITEM = "no-item-known.json"
"""Beside it, once a catalogue was refused: a refusal tells a server one bit, and a second catalogue
would be another one."""
MANY_USERS = 20
"""Sites with fewer take part where they know no item: a refusal would be about one of few."""
MOST_RUNS = 10_000
"""A server that begins runs without end must not fill the disk."""
# it names a folder: nothing that could lead out of it
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")


def require_sound(terms: Terms, bounds: AnswerBounds) -> None:
    """Terms this version can keep: a known recipe whose reports are per user, a scale, a catalogue
    of a size that can be held. Raises RefusedError."""
    client_steps(terms.recipe, terms.kind)
    if validated(json.loads(terms.recipe), source="the run's recipe").privacy.unit != "user":
        raise refused(
            Refusal.WRONG_PLAN,
            "the run's reports are per example, not per user",
            "Such a recipe runs in simulation only.",
        )
    low, high = terms.value_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise refused(
            Refusal.MALFORMED,
            f"{low:g} to {high:g} is not a scale",
            "The server's operator must correct it.",
        )
    if not terms.items or sum(map(len, terms.items)) > bounds.public_bytes:
        raise refused(
            Refusal.TOO_LARGE,
            "the catalogue is empty, or larger than this client holds",
            "The server's operator must correct it.",
        )


def step_of(question: Question, terms: Terms) -> ClientStep:
    """The step that answers the question. Raises RefusedError (`MALFORMED`) where the run's recipe
    has none of that name."""
    steps = client_steps(terms.recipe, terms.kind)
    if question.step not in steps:
        raise refused(
            Refusal.MALFORMED,
            f"{question.step!r} is no step of the run's recipe",
            "Use the same version of fedrec everywhere.",
        )
    return steps[question.step]


def require_plan(
    plan: Plan, question: Question, *, aggregation: Aggregation, allow_not_established: bool
) -> None:
    """What the plan itself says; whether the limit has room for it is the ledger's to decide.
    aggregation: that this client takes part in. Raises RefusedError (`WRONG_PLAN`), and for three
    aggregators as `require_shareable`."""
    guarantee = plan.guarantee
    if (guarantee.unit, guarantee.neighbours) != ("user", "add/remove"):
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan protects {guarantee.compared}",
            "Here a user is the unit.",
        )
    if plan.aggregation != aggregation:
        cause = (
            f"the plan's aggregation is {plan.aggregation}, this client takes part in "
            f"{aggregation} only"
        )
        raise refused(
            Refusal.WRONG_PLAN,
            cause,
            "The settings of this client name one aggregator, or three.",
        )
    if not guarantee.established and not allow_not_established:
        remedy = (
            "privacy.allow_not_established = true takes part all the same; what it promises "
            "is then not proved."
        )
        raise refused(Refusal.WRONG_PLAN, "the plan's guarantee is not established", remedy)
    planned = {release.name for release in plan.releases}
    if unplanned := [release.name for release in question.releases if release.name not in planned]:
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan has no release {unplanned[0]!r}",
            "Nobody would account for it.",
        )
    if aggregation == "three-party":
        require_shareable(question, plan)


def charged(terms: Terms, promised: Guarantee, *, own: float, delta: float) -> Guarantee:
    """What the run costs each user here: its guarantee, or the announced limit that fits the
    users' own. Raises RefusedError (`BUDGET`).

    promised: by the terms before the plan is known, by the plan afterwards: terms may say
    anything. own: epsilon, the most that one run may cost each user. A limit counts at this
    client's `delta`: at a larger one any noise is of a small epsilon.
    """

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
        raise refused(
            Refusal.BUDGET,
            cause,
            "A run that announces such limits (privacy.personal_epsilons) would be answered.",
        )
    return replace(promised, epsilon=limit)


class Notes:
    """The folders `terms` and `sent` of a client's state."""

    def __init__(self, folder: Path) -> None:
        self._terms = folder / "terms"
        self._sent = folder / "sent"

    def keep_terms(self, terms: Terms) -> None:
        """Durably; again with the same terms is the same.

        Raises RefusedError where they changed, or the run's name is no name."""
        known = self.terms(terms.run)
        if known is not None and pack_terms(known) != pack_terms(terms):
            raise refused(
                Refusal.WRONG_PLAN,
                f"the terms of run {terms.run} changed",
                "A run keeps its terms; the server must begin a new one.",
            )
        if known is None:
            if self._terms.is_dir() and sum(1 for _ in self._terms.glob("*.json")) >= MOST_RUNS:
                raise refused(
                    Refusal.TOO_LARGE,
                    "this client knows too many runs",
                    f"Remove finished ones from {self._terms}.",
                )
            write_bytes(self._terms / f"{terms.run}.json", pack_terms(terms))

    def terms(self, run: str) -> Terms | None:
        """The terms of a run, None where they were never kept, or are damaged.

        Raises RefusedError where the name is no name, and OSError."""
        require_name(run)
        try:
            return read_terms((self._terms / f"{run}.json").read_bytes())
        except (FileNotFoundError, RefusedError):
            return None

    def keep_translation(self, run: str, users: int, unknown: int, events: int) -> None:
        """How much of the site's data the newest run's catalogue names: for the site's own eyes.
        unknown: of so many events.

        Raises RefusedError (`UNKNOWN_ITEM`) where it names nothing of what many users have: they
        would pay for empty reports. Of few users that would tell the server what they have. From
        then on every catalogue is refused, until the site's operator takes the note away.
        """
        refused_once = self._terms.parent / NO_ITEM
        remedy = (
            "Write item ids as the server's catalogue does: compare one of each. Then remove "
            f"{refused_once}."
        )
        if refused_once.exists():
            raise refused(Refusal.UNKNOWN_ITEM, "this site has no item of the catalogue", remedy)
        content: dict[str, str | int] = {
            "run": run,
            "users": users,
            "events": events - unknown,
            "unknown_events": unknown,
        }
        write_json(self._terms.parent / TRANSLATION, content)
        if not unknown:
            return
        logs.say(log, "items-unknown", level=logging.WARNING, **content, remedy=remedy)
        if unknown == events and users >= MANY_USERS:
            write_json(refused_once, content)
            raise refused(Refusal.UNKNOWN_ITEM, "this site has no item of the catalogue", remedy)

    def keep_batch(self, run: str, round: int, number: int, batch: bytes) -> None:
        """One message to the aggregator, as it left."""
        path = self._round(run, round).with_name(f"round-{round:03d}-{number:03d}.frr")
        write_bytes(path, batch, mode=PRIVATE)  # of ratings it has no noise yet

    def keep_receipt(
        self,
        run: str,
        round: int,
        header: bytes,
        quorum: int,
        receipt: Receipt,
        batches: int,
        bytes_sent: int,
    ) -> None:
        """What was asked in a round, and what the aggregator did with the answer."""
        content = {
            "header": json.loads(header),
            "digest": question_digest(header),
            "quorum": quorum,
            "receipt": asdict(receipt),
        }
        content |= {"batches": batches, "bytes_sent": bytes_sent}
        write_json(self._round(run, round), content)

    def _round(self, run: str, round: int) -> Path:
        return self._sent / run / f"round-{round:03d}.json"


def unknown_of(folder: Path) -> tuple[int, int]:
    """Events that the newest run's catalogue did not name, and all, of a client's state folder;
    (0, 0) before its first run.

    Raises RunError where the note is damaged."""
    if not (note := folder / TRANSLATION).exists():
        return 0, 0
    kept = read_json(note)
    return int(kept["unknown_events"]), int(kept["unknown_events"]) + int(kept["events"])


def require_name(run: str) -> None:
    """A run's name becomes a file's and a folder's. Raises RefusedError."""
    if not _RUN.fullmatch(run):
        words = (
            "a run is named by 1 to 120 letters, digits, dots, dashes and underscores, no dot or "
            "dash first"
        )
        raise refused(Refusal.MALFORMED, words, "The server must name it otherwise.")
