"""The trainings of one state folder, one after the other: which there were, which model is current,
what they cost together.

    STATE/runs.json              every training in order: id, begun, finished, version of its
                                 bundle, guarantee
    STATE/runs/<run>/            what one training keeps (`rounds`, `news`)
    STATE/model                  a link to `runs/<run>/model` of the last one that finished
    STATE/serving.safetensors    its bundle, replaced in one step; `fedrec serve STATE` takes it
                                 over

An entry is written before its training asks anybody, and its guarantee before the first question.
It is finished by the last of four steps: model, bundle, link, entry. A crash in between repeats
them, to the same bytes.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.errors import PrivacyError, RefusedError, RunError
from fedrec.federation.protocol import Budget, Refusal
from fedrec.operations.clock import LEAST_S, ClockJump
from fedrec.privacy.accounting import compose, epsilon_of, mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee, said_down, said_up
from fedrec.serving.bundle import FILE
from fedrec.storage import read_json, write_bytes, write_json

FORMAT = "fedrec-runs/1"
_OLD = (
    "checkpoints",
    "releases",
    "rounds.jsonl",
    "model",
    "clients.json",
    "progress.json",
    "reports.safetensors",
    "run.json",
)
"""What a state folder of one training held itself, before there were several; `run.json` moves
last."""
_ROUNDING = 1e-6
"""Relative, of mu: what differs by less is decided by the ledgers themselves."""


@dataclass(frozen=True)
class TrainingRun:
    """One training. Times in seconds since 1970, finished_s 0 until then. version: of its bundle,
    or `refused` says why there is none.

    guarantee: what it promises, None until its plan is known. mu: of all its releases together, 0
    where that is not known (news told by devices). total: the guarantee of all trainings up to this
    one. dropped: it was left unfinished for good. warm: the training whose release it began with.
    unpublished: why it is kept and does not serve, "" where it does. week: of a stream
    (`privacy.horizon`), whose run at the aggregator is `stream` from the second week on; all weeks
    are paid with the first.
    """

    run: str
    begun_s: float
    finished_s: float = 0.0
    version: str = ""
    refused: str = ""
    guarantee: Guarantee | None = None
    mu: float = 0.0
    total: Guarantee | None = None
    dropped: bool = False
    warm: str = ""
    unpublished: str = ""
    week: int = 0
    stream: str = ""

    @property
    def asks(self) -> str:
        """The run that its questions name."""
        return self.stream or self.run

    @property
    def open(self) -> bool:
        """Whether it goes on where the server is started again."""
        return not (self.finished_s or self.dropped)


def charged(runs: Sequence[TrainingRun]) -> list[TrainingRun]:
    """Those that cost something, once their plan is known."""
    return [run for run in runs if run.guarantee is not None and not run.stream]


def together(runs: Sequence[TrainingRun]) -> Guarantee | None:
    """The guarantee of a person's part in all of these, at the last one's delta; None where none
    has asked anybody.

    Neighbours differ in all that one person held in any of them. Where every one is of Gaussian
    releases, exact; otherwise epsilons and deltas add up. An unfinished one counts whole. Raises
    PrivacyError where units differ.
    """
    promised = [run.guarantee for run in charged(runs) if run.guarantee is not None]
    if not promised:
        return None
    last = promised[-1]
    for guarantee in promised:
        last.require_same_unit(guarantee)
    if len(promised) == 1:
        return last
    mus = [run.mu for run in charged(runs)]
    established = all(g.established for g in promised)
    notes = dict.fromkeys(g.note for g in promised if g.note)
    if all(mus):
        epsilon = epsilon_of(math.sqrt(sum(mu**2 for mu in mus)), last.delta)
        delta = last.delta
    else:
        epsilon = sum(g.epsilon for g in promised)
        delta = min(sum(g.delta for g in promised), 1 - 1e-9)
    return Guarantee(epsilon, delta, last.unit, last.neighbours, established, "; ".join(notes))


@dataclass
class Runs:
    """The trainings of `state`, oldest first.

    One process at a time changes them (`notes.only_one`)."""

    state: Path

    def __post_init__(self) -> None:
        self._entries = _read(self.state / "runs.json")

    @property
    def entries(self) -> tuple[TrainingRun, ...]:
        """All of them."""
        return tuple(self._entries)

    def clock_behind(self, now_s: float) -> ClockJump | None:
        """A clock that shows less than when a training began or ended, by more than an hour."""
        last_s = max((max(run.begun_s, run.finished_s) for run in self._entries), default=now_s)
        return ClockJump(last_s, now_s) if last_s - now_s > LEAST_S else None

    @property
    def last(self) -> TrainingRun | None:
        """The newest one."""
        return self._entries[-1] if self._entries else None

    @property
    def finished(self) -> TrainingRun | None:
        """The newest one that has a model."""
        return next((entry for entry in reversed(self._entries) if entry.finished_s), None)

    @property
    def serving(self) -> TrainingRun | None:
        """The newest one whose model was published."""
        published = (entry for entry in reversed(self._entries) if not entry.unpublished)
        return next((entry for entry in published if entry.finished_s), None)

    def folder(self, run: str) -> Path:
        """Where a training keeps everything."""
        return self.state / "runs" / run

    def adopt(self) -> None:
        """Take over a folder of the layout before there were several trainings.

        A crash leaves it to the next start."""
        notes = self.state / "run.json"
        if not notes.exists():
            return
        run = str(read_json(notes)["run"])
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(entry.run == run for entry in self._entries):
            self._entries.append(TrainingRun(run, notes.stat().st_mtime))
            self._keep()
        for name in _OLD:
            if (self.state / name).exists() and not (self.state / name).is_symlink():
                os.replace(self.state / name, folder / name)

    def begin(self, *, name: str, now_s: float, week: int = 0, stream: str = "") -> TrainingRun:
        """A new training. name: of the first one, those after it get a number; "" makes ids up.
        week, stream: as in `TrainingRun`."""
        number = len(self._entries) + 1
        run = (
            f"run-{secrets.token_hex(8)}"
            if not name
            else name
            if number == 1
            else f"{name}-{number}"
        )
        self._entries.append(TrainingRun(run, now_s, week=week, stream=stream))
        self._keep()
        return self._entries[-1]

    def resume_stream(self) -> None:
        """The last training, where it is a later week of a stream, begins with all that the week
        before it kept: links to its files, since each is written once. Again is the same."""
        entry = self._entries[-1]
        if not entry.stream or (self.folder(entry.run) / "run.json").exists():
            return
        before = next(
            run for run in self._entries if (run.asks, run.week + 1) == (entry.stream, entry.week)
        )
        old, new = self.folder(before.run), self.folder(entry.run)
        kept = [*old.glob("releases/*"), *old.glob("checkpoints/*"), old / "rounds.jsonl"]
        for path in (*kept, old / "run.json"):  # the last one says that all are there
            target = new / path.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                os.link(path, target)

    def planned(self, guarantee: Guarantee, plan: Plan | None) -> TrainingRun:
        """The last training promises this.

        Durable before it asks; again with the same is the same."""
        mu = (
            compose([plan.event(release.name) for release in plan.releases])
            if plan is not None
            else 0.0
        )
        entry = replace(self._entries[-1], guarantee=guarantee, mu=mu)
        return self._changed(replace(entry, total=together([*self._entries[:-1], entry])))

    def warm(self, run: str) -> None:
        """The last training begins with what that one released."""
        self._changed(replace(self._entries[-1], warm=run))

    def drop(self) -> None:
        """Leave the last training for good where it is unfinished; what it promised counts
        whole."""
        if self._entries and self._entries[-1].open:
            self._changed(replace(self._entries[-1], dropped=True))

    def publish(self, *, now_s: float, refused: str = "") -> TrainingRun:
        """The last training is finished: its model and its bundle, if there is one, are current
        from here on. refused: why it is not; it is kept then, and what served serves."""
        entry = self._entries[-1]
        if refused:
            return self._changed(replace(entry, finished_s=now_s, unpublished=refused))
        folder = self.folder(self._entries[-1].run)
        bundle = folder / FILE
        if bundle.exists():
            write_bytes(self.state / FILE, bundle.read_bytes())
        _link(self.state / "model", Path("runs") / entry.run / "model")
        return self._changed(replace(entry, finished_s=entry.finished_s or now_s))

    def made(self, bundle: Mapping[str, object]) -> None:
        """What `write_bundle` said of the last training's bundle."""
        version = str(bundle.get("version", ""))
        refused = str(bundle.get("refused", ""))
        self._changed(replace(self._entries[-1], version=version, refused=refused))

    def _changed(self, entry: TrainingRun) -> TrainingRun:
        if entry != self._entries[-1]:
            self._entries[-1] = entry
            self._keep()
        return entry

    def _keep(self) -> None:
        write_json(
            self.state / "runs.json",
            {"format": FORMAT, "runs": [asdict(entry) for entry in self._entries]},
        )


def evaluation_in(folder: Path) -> dict[str, Any]:
    """What people said of the model of a training, as its manifest has it; {} where nobody was
    asked, or there is no model."""
    with suppress(RunError):
        return dict(read_json(folder / "model" / "manifest.json").get("evaluation", {}))
    return {}


def quality_of(runs: Runs) -> dict[str, float]:
    """Parts of what people said of the newest model, for metrics; {} where nobody was asked.

    behind_first: between its interval and that of the first version, above 0 where all of it is
    worse."""
    said = [one for run in runs.entries if (one := evaluation_in(runs.folder(run.run)))]
    if not said:
        return {}
    first, last = said[0]["model"], said[-1]["model"]
    better, worse = (last, first) if said[-1]["metric"] == "RMSE" else (first, last)
    parts = {name: said[-1][name] for name in ("everybody", "people")}
    return {**last, **parts, "behind_first": better["low"] - worse["high"]}


def run_folder(state: Path) -> Path:
    """Where the newest training of a state folder keeps everything: the folder itself where it
    holds one of the older layout."""
    entries = _read(state / "runs.json")
    return (
        state / "runs" / entries[-1].run if entries and not (state / "run.json").exists() else state
    )


def _read(path: Path) -> list[TrainingRun]:
    """Raises RunError where the file is there and cannot be read."""
    if not path.exists():
        return []
    content = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise KeyError("format")
        return [_entry(entry) for entry in content["runs"]]
    except (KeyError, TypeError, ValueError, PrivacyError):
        raise RunError(
            f"{path} is not in format {FORMAT}",
            "Put back the file as it was: it says what was promised to people.",
        ) from None


def _entry(content: dict[str, Any]) -> TrainingRun:
    guarantees = {name: _guarantee(content[name]) for name in ("guarantee", "total")}
    return TrainingRun(**{**content, **guarantees, "mu": float(content["mu"])})


def _guarantee(content: dict[str, Any] | None) -> Guarantee | None:
    return (
        None if content is None else Guarantee(**{**content, "epsilon": float(content["epsilon"])})
    )


def _link(path: Path, target: Path) -> None:
    """Point `path` there in one step."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.unlink(missing_ok=True)
    os.symlink(target, beside)
    os.replace(beside, path)


def words(promised: Guarantee, before: Sequence[TrainingRun], budget: Budget | None) -> list[str]:
    """Lines for the operator: of this folder's trainings, and of the aggregator's ledger."""
    spent = together(before)
    planned = TrainingRun(
        "",
        0.0,
        guarantee=promised,
        mu=_mu(promised) if all(run.mu for run in charged(before)) else 0.0,
    )
    after = together([*before, planned])
    assert after is not None
    count = len(charged(before))
    so_far = (
        f"epsilon {spent.epsilon:.4g} in {count} training{'' if count == 1 else 's'}"
        if spent
        else "nothing"
    )
    lines = [
        (
            f"spent so far {so_far}, this training epsilon {promised.epsilon:.4g}, after it "
            f"epsilon {after.epsilon:.4g}"
        )
    ]
    lines[0] += f" at delta {after.delta:g} {after.compared}"
    if budget is not None:
        limit = (
            "without a limit"
            if math.isinf(budget.limit_epsilon)
            else f"of {budget.limit_epsilon:.4g}"
        )
        left = (
            ""
            if math.isinf(budget.left_epsilon)
            else f", still possible a run of epsilon {said_down(budget.left_epsilon)}"
        )
        lines.append(
            f"aggregator's ledger, over all runs: epsilon {budget.spent_epsilon:.4g} {limit} "
            f"at delta {budget.delta:g}{left}"
        )
    lines.append(
        "clients keep limits of their own: one that has none left for this training refuses "
        "to join, and says so"
    )
    return lines


def require_affordable(promised: Guarantee, budget: Budget | None) -> None:
    """Raises RefusedError (`BUDGET`) where the aggregator's limit leaves less than this training
    takes.

    The aggregator and every client keep ledgers of their own, over all runs and whatever this
    server says; a client's limit is known to the client alone, which refuses to join. What is
    computed here is for the operator.
    """
    if budget is None or math.isinf(budget.left_epsilon):
        return
    left, spent = (
        mu_for(epsilon, budget.delta) if epsilon > 0 else 0.0
        for epsilon in (budget.left_epsilon, budget.spent_epsilon)
    )
    if _mu(promised) <= left * (1 + _ROUNDING):
        return
    possible = (
        f"a training of epsilon {said_down(epsilon_of(left, promised.delta))}" if left else "none"
    )
    needed = epsilon_of(math.hypot(spent, _mu(promised)), budget.delta)
    raise RefusedError(
        Refusal.BUDGET.value,
        f"a training of epsilon {promised.epsilon:.4g} does not fit the aggregator's limit of "
        f"epsilon {budget.limit_epsilon:.4g} over all "
        f"runs, of which {budget.spent_epsilon:.4g} is spent",
        f"Still possible: {possible}. This one fits a limit of epsilon {said_up(needed)}, which "
        "nobody but the aggregator's operator "
        "sets: it does not renew with time. Nothing was asked of anybody.",
    )


def _mu(promised: Guarantee) -> float:
    return mu_for(promised.epsilon, promised.delta)
