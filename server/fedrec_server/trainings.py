"""One training after the other in a state folder: begun when it is due and can be afforded,
published when it is finished.

Start of a new training from the last one's release, kept in its own folder so that going on
after a crash begins with the same.

runs/<run>/earlier.safetensors    rows of `factorization.facts.Earlier` in the order of this
                                  training's catalogue, and num_users
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrec.errors import ProtocolError, RefusedError, RunError, UnreachableError
from fedrec.factorization.facts import Earlier
from fedrec.factorization.held_out import sent, sent_model
from fedrec.factorization.rankers import Model
from fedrec.factorization.released import load
from fedrec.federation.protocol import Budget, Refusal, refused
from fedrec.operations import logs
from fedrec.operations.party_state import Awaited, Doing, PartyState
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving.exporting import Export, Origin
from fedrec.serving.model_bundles import bundle_of, write_bundle
from fedrec.storage import Checkpoints, UnreadableError, read_arrays, read_json, write_arrays
from fedrec_server.runs import (
    Runs,
    TrainingRun,
    charged,
    evaluation_in,
    require_affordable,
    together,
    words,
)
from fedrec_server.schedule import TrainingSchedule, words_of
from fedrec_server.settings_tables import Rule

_FILE = "earlier.safetensors"
_SERVING = "serving.safetensors"
log = logging.getLogger(__name__)
_UNKNOWN_NOISE = (
    "the aggregator does not say where it draws noise: it needs the same version of fedrec"
)


def earlier_of(runs: Runs, folder: Path, items: tuple[str, ...]) -> Earlier | None:
    """The start of the training in `folder`: what it began with, or, before it begins, what the
    last finished one released.

    None where there is none, where it is no start for this recipe, or where the catalogue has items
    that it did not know. Raises UnreadableError.
    """
    if (folder / _FILE).exists():
        arrays = read_arrays(folder / _FILE)
        return Earlier(
            {name: array for name, array in arrays.items() if name != "num_users"},
            int(arrays["num_users"]),
        )
    last = runs.serving
    if (folder / "run.json").exists() or last is None:
        return None
    try:
        state = Checkpoints(runs.folder(last.run) / "checkpoints").latest()
        known = read_json(runs.folder(last.run) / "model" / "manifest.json").get("items")
        users = int(read_json(runs.folder(last.run) / "run.json")["num_users"])
    except UnreadableError:
        raise
    except (RunError, KeyError, AttributeError):
        return None
    if state is None or not isinstance(known, list) or users < 1:
        return None
    earlier = Earlier.of(state, users, items=known, now=items)
    if earlier is not None:
        write_arrays(folder / _FILE, {**earlier.state, "num_users": np.array(users)})
    return earlier


def serving_of(runs: Runs, folder: Path, items: tuple[str, ...]) -> Model | None:
    """The model that people compare the new one of the training in `folder` with: what served when
    it began, kept so that going on after a crash asks the same. None where nothing served, or a
    model of other items.

    It has learned of no row that is held out now, where `Trainings.held_out`: that row was held out
    then, or is new since."""
    if (folder / _SERVING).exists():
        return sent_model(read_arrays(folder / _SERVING), name="serving")
    last = runs.serving
    if (folder / "run.json").exists() or last is None:
        return None
    model, manifest = load(runs.folder(last.run) / "model")
    if tuple(manifest["items"]) != items:
        return None
    write_arrays(folder / _SERVING, sent(model, name="serving"))
    return model


def not_published(rule: Rule, said: Mapping[str, Any]) -> str:
    """Why a version is not published, of which people said this; "" where it is. What was compared
    with nothing is."""
    if rule == "always" or not (gain := said.get("gain")):
        return ""
    if gain["high"] >= 0 if rule == "not-worse" else gain["low"] > 0:
        return ""
    return (
        f"by publish.rule = {rule!r}: people say that it is better than the one that serves by "
        f"{gain['value']:+.3f}, 95% interval {gain['low']:+.3f} to {gain['high']:+.3f}"
    )


@dataclass
class Trainings:
    """promised: what one training promises. budget: asks the aggregator, None where there is none.
    noise: of devices, where they draw it.

    name: of the first run, "" makes one. say: told what the operator should read. export: what a
    bundle of the last model is made by; by default, of its model folder. state: what metrics say of
    the wait between trainings. rule: which versions are published. horizon: weeks of a stream, each
    of which is a training; 0 for trainings that are each paid for.
    """

    runs: Runs
    schedule: TrainingSchedule
    promised: Guarantee
    budget: Callable[[], Budget] | None = None
    noise: Literal["seeded", "system"] = "system"
    name: str = ""
    say: Callable[[str], None] = lambda words: None
    clock: Callable[[], float] = time.time
    export: Callable[[], Export] | None = None
    state: PartyState | None = None
    rule: Rule = "always"
    horizon: int = 0
    _known: Budget | None = field(default=None, init=False)
    _stopped: Awaited | None = field(default=None, init=False)

    @property
    def entry(self) -> TrainingRun:
        """The training in progress."""
        assert self.runs.last is not None
        return self.runs.last

    @property
    def folder(self) -> Path:
        """Where it keeps everything."""
        return self.runs.folder(self.entry.run)

    def each(self, sleep: Callable[[float], None]) -> Iterator[TrainingRun]:
        """Every training that is due, one at a time; each is published when the next is asked for.
        Ends unless the schedule stands.

        Raises RefusedError (`BUDGET`) where one cannot be afforded; a standing server says so, and
        waits until the next is due. One that stopped (`attempt`) is offered again.
        """
        while True:
            if self.runs.last is not None and self.runs.last.open:
                self.schedule.again = False
                self._require_own_name(self.runs.last)
                self.say(
                    f"goes on with {self.runs.last.run}: what it has released already is in "
                    "the aggregator's ledger below"
                )
                self._say_budget(self.runs.entries[:-1], stream=self.entry.stream)
            elif not self.schedule.due(self.runs.finished, begun=len(self.runs.entries)):
                if not self.schedule.stands:
                    return
                self.schedule.wait(sleep)
                continue
            elif not self._begun():
                self._idle(Awaited.BUDGET)
                continue
            yield self.entry
            if self._stopped is not None:
                self._idle(self._stopped)
                self._stopped = None
                self.schedule.pause(sleep)
                if self.state is not None:
                    self.state.waiting(Awaited.NOTHING)
                continue
            self._publish()
            if not self.schedule.stands:
                return
            self._idle(Awaited.SCHEDULE)

    def attempt(self, carry_out: Callable[[], None]) -> None:
        """Carry out the training that `each` is at.

        Raises what `carry_out` raises; a standing server that is refused, or gets no answer, says
        so in log and metrics instead, and `each` tries again after a pause."""
        run = self.entry.run
        try:
            carry_out()
        except (ProtocolError, RunError) as failure:
            if not self.schedule.stands:
                raise
            code = failure.code if isinstance(failure, RefusedError) else None
            logs.say_failure(log, "training-stopped", failure, code=code, run=run)
            self.say(f"the training stopped: {failure.cause}. {failure.remedy}")
            self._stopped = Awaited.OPERATOR
            if code == Refusal.BUDGET:  # it was dropped, and is due again in its time
                self._stopped = Awaited.BUDGET
                self.schedule.taken(refused=True)

    @property
    def held_out(self) -> bool:
        """Whether what serves has learned of no row that is held out now: people evaluated it. What
        was trained before they were asked has learned their newest rows."""
        last = self.runs.serving
        return last is not None and bool(evaluation_in(self.runs.folder(last.run)))

    def earlier(self, items: tuple[str, ...], *, evaluated: bool = False) -> Earlier | None:
        """What the training in progress begins with of the last one's release; said, and kept.
        evaluated: whether people are asked of the model, which then begins with no release that
        knows what they hold out."""
        if evaluated and not self.held_out:
            return None
        found = earlier_of(self.runs, self.folder, items)
        last = self.runs.serving
        if found is not None and last is not None and not self.entry.warm:
            self.runs.warm(last.run)
            self.say(f"starts from the release of {last.run}, which costs nothing more")
        return found

    def compared(self, items: tuple[str, ...]) -> Model | None:
        """The model that people compare the new one with; None where every version is published,
        and where there is none to compare with, which is said."""
        if self.rule == "always" or self.runs.serving is None:
            return None
        found = serving_of(self.runs, self.folder, items) if self.held_out else None
        if found is None:
            self.say(
                "compared with nothing: the model that serves has other items, or has learned rows "
                "that people hold out now"
            )
        return found

    def planned(self, plan: Plan) -> Origin | None:
        """Keeps what the training promises, before it asks anybody; what its bundle will say, None
        where no noise is known.

        Raises RefusedError (`BUDGET`) where the aggregator could not be asked when it began, and it
        cannot be afforded: it is left then.
        """
        if self.budget is not None and self._known is None:
            self._known = self.budget()  # whoever gathered clients has reached it
            self._say(self._words(plan.guarantee, self.runs.entries[:-1], self.entry.stream))
            # otherwise a part of it is spent
            if self.entry.guarantee is None and not self.entry.stream:
                try:
                    require_affordable(plan.guarantee, self._known)
                except RefusedError:
                    self.runs.drop()
                    raise
        self.runs.planned(plan.guarantee, plan)
        return self.origin(plan.guarantee.delta)

    def origin(self, delta: float, *, spent: float | None = None) -> Origin | None:
        """What a bundle says of the training in progress: the guarantee is of all trainings of this
        folder up to it."""
        if self.budget is not None and self._known is None:
            with suppress(UnreachableError):
                self._known = self.budget()
        known = self.noise if self.budget is None else self._known.noise if self._known else None
        total = self.entry.total
        if known is None or total is None:
            return None
        count = len(charged(self.runs.entries))
        return Origin(
            self.entry.run,
            delta,
            total,
            total.epsilon if spent is None or count > 1 else spent,
            known,
            count,
        )

    def _idle(self, reason: Awaited) -> None:
        if self.state is not None:
            self.state.doing(Doing.IDLE)
            self.state.waiting(reason)

    def _next_week(self) -> tuple[int, str]:
        """Week and stream of the next training: (1, "") of a new stream, (0, "") of none."""
        last = self.runs.finished
        if not self.horizon or last is None or last != self.runs.last or last.week >= self.horizon:
            return min(self.horizon, 1), ""
        return last.week + 1, last.asks

    def _require_paid(self, stream: str) -> None:
        """Raises RefusedError (`BUDGET`) where the next training costs what is not there, or a
        stream is over and nobody asked for another."""
        last = self.runs.finished
        if stream:
            return
        if last is not None and 0 < self.horizon <= last.week and not self.schedule.asked(
            len(self.runs.entries)
        ):  # fmt: skip
            raise refused(
                Refusal.BUDGET,
                f"the {self.horizon} weeks of {last.asks} are over",
                "--again begins a new stream, which is charged anew.",
            )
        require_affordable(self.promised, self._known)

    def _begun(self) -> bool:
        week, stream = self._next_week()
        self._say_budget(self.runs.entries, stream=stream)
        try:
            self._require_paid(stream)
        except RefusedError as refusal:
            if not self.schedule.stands:
                raise
            logs.say_failure(log, "training-refused", refusal, code=Refusal.BUDGET.value)
            self.say(f"not trained: {refusal.cause}. {refusal.remedy}")
            self.schedule.taken(refused=True)
            return False
        self.runs.begin(name=self.name, now_s=self.clock(), week=week, stream=stream)
        self.schedule.taken()  # after it: a crash in between loses no request
        if self.state is not None:
            self.state.waiting(Awaited.NOTHING)
        return True

    def _words(
        self, promised: Guarantee, before: tuple[TrainingRun, ...], stream: str
    ) -> list[str]:
        if stream:
            return [f"a week of {stream}, paid with its first: {together(before)} for all weeks"]
        return words(promised, before, self._known)

    def _say_budget(self, before: tuple[TrainingRun, ...], *, stream: str = "") -> None:
        self._known = None  # what it was before the last training says nothing
        if self.budget is not None:
            with suppress(UnreachableError):  # it is waited for with the clients, and asked again
                self._known = self.budget()
        self._say(self._words(self.promised, before, stream))

    def _say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.say(line)
            logs.say(log, f"budget: {line}")

    def _require_own_name(self, entry: TrainingRun) -> None:
        if self.name and entry.run != self.name and not entry.run.startswith(f"{self.name}-"):
            raise RunError(
                f"{self.runs.state} holds run {entry.run}, not {self.name}",
                "Give another state folder, or go on with the same settings.",
            )

    def _publish(self) -> None:
        """Model, bundle, link, entry: a crash in between repeats what is missing."""
        export = self.export or partial(bundle_of, self.folder / "model")
        self.export = None
        made: Mapping[str, object]
        try:
            made = (
                write_bundle(self.folder, export)
                if self._known or self.budget is None
                else {"refused": _UNKNOWN_NOISE}
            )
        except RunError as failure:
            made = {"refused": failure.cause}
        self.runs.made(made)
        refused = not_published(self.rule, evaluation_in(self.folder))
        done = self.runs.publish(now_s=self.clock(), refused=refused)
        if refused:
            logs.say(log, f"not published: {refused}", level=logging.WARNING, run=done.run)
            self.say(f"kept and not published, {refused}")
            return
        logs.say(
            log,
            "published" if done.version else "published-without-bundle",
            run=done.run,
            version=done.version or None,
        )
        self.say(words_of(self.runs))
