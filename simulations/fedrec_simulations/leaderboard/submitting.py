"""`fedrec bench submit`: from folders of finished runs that differ in their seed alone to rows, one
for each guarantee.

A row is refused unless each run finished, is as it was when it finished, kept digests of what it
had trained before the test rows were read, and fits a protocol: its split, its settings, its delta,
its metric.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedrec.errors import DataError, RunError, SettingsError
from fedrec.run.run_folder import RESULT, SETTINGS
from fedrec.run.seeds import SUMMARY
from fedrec.settings import Scenario, validated
from fedrec.storage import finite, read_json
from fedrec_simulations.leaderboard import record
from fedrec_simulations.leaderboard.protocol import Protocol, first_of, protocols
from fedrec_simulations.leaderboard.rows import FORMAT, Row, write_row

OWN = ("run", "figure", "compare")
"""Tables of a scenario that decide no row: where results go, what a figure varies, what stands
beside a model."""
PATHS = (
    "data.path",
    "data.test",
    "data.validation",
    "data.features_path",
    "collective.users_file",
    "collective.similar_file",
    "privacy.budget_file",
    "news.word_vectors",
    "news.entity_vectors",
    "news.language_model",
)
"""Keys that name a place on one's own machine: a command says PATH/NAME in their place."""


@dataclass(frozen=True)
class Point:
    """What one run found at one guarantee."""

    guarantee: Mapping[str, Any]
    serving_epsilon: float | str | None
    metrics: Mapping[str, float]
    model: str


@dataclass(frozen=True)
class Finished:
    """A run folder whose record holds."""

    folder: Path
    scenario: Scenario
    data: Mapping[str, Any]
    version: str
    code: str
    points: Sequence[Point]


def submit(
    runs: Sequence[Path], folder: Path, *, protocol: str = "", system: str = ""
) -> list[Path]:
    """Write a row for each guarantee into `folder`; returns their files. Runs must differ in their
    seed alone.

    protocol: its name; where empty, the one whose split the runs have. system: the row's name; the
    recipe where empty. A folder of the means of `simulate --seeds`, which `runs/NAME-*` names too,
    is passed over. Raises RunError on a run that may not be submitted, SettingsError where runs or
    protocol do not fit.
    """
    runs = [run for run in runs if not (run / SUMMARY).exists()]
    if not runs:
        raise SettingsError(
            "there is no run to submit",
            "Give run folders, for example fedrec bench submit runs/a runs/b.",
        )
    found = sorted((read_run(run) for run in runs), key=lambda run: run.scenario.seed)
    _require_alike(found)
    known = protocols([folder] if folder.is_dir() else [])
    chosen = _chosen(found[0], known, protocol)
    for run in found:
        _require_fits(run, chosen)
    return [
        write_row(folder, row) for row in _rows(found, chosen, system or found[0].scenario.recipe)
    ]


def read_run(folder: Path) -> Finished:
    """Raises RunError on one that did not finish, kept no record or was changed."""
    said = record.checked(folder)
    content = {
        key: value for key, value in read_json(folder / SETTINGS).items() if key != "own" or value
    }
    scenario = validated(content, source=str(folder / SETTINGS))
    data, result = read_json(folder / "data.json"), read_json(folder / RESULT)
    if not data.get("split", {}).get("sha256"):
        raise RunError(
            f"{folder} has no digest of its split",
            "Run it with --runtime loopback, flower or processes.",
        )
    points = list(
        _of_news(result, scenario, said["models"])
        if scenario.learns_news
        else _of_curve(folder, result, said["models"])
    )
    return Finished(folder, scenario, data, said["version"], said["code"], points)


def command(scenario: Scenario) -> str:
    """The line that runs the scenario again, for whoever has the data: no path of this machine is
    in it."""
    told, usual = (
        scenario.model_dump(mode="json", exclude_unset=False),
        Scenario().model_dump(mode="json"),
    )
    words = list(_overrides({**told, "run": usual["run"], "figure": usual["figure"]}, usual))
    return " ".join(["fedrec simulate", *(f"--set {shlex.quote(word)}" for word in words)])


def _overrides(
    told: Mapping[str, Any], usual: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    for key, value in told.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _overrides(value, usual.get(key) or {}, f"{name}.")
        elif value != usual.get(key):
            if name in PATHS:
                value = f"PATH/{Path(str(value)).name}"
            yield f"{name}={json.dumps(finite(value))}"


def _of_curve(
    folder: Path, result: Mapping[str, Any], models: Mapping[str, str]
) -> Iterator[Point]:
    """Ratings and clicks: each epsilon is a training with a plan of its own."""
    for point in result["curve"]:
        name = f"epsilon-{float(point['epsilon']):g}"
        yield Point(
            read_json(folder / name / "plan.json")["guarantee"],
            None,
            _numbers(point["metrics"]),
            models[name],
        )


def _of_news(
    result: Mapping[str, Any], scenario: Scenario, models: Mapping[str, str]
) -> Iterator[Point]:
    """News: the training that the scenario is about, at each epsilon of serving."""
    for answer in result["serving"]["answers"]:
        name = f"epsilon-{scenario.privacy.epsilon:g}"
        yield Point(
            result["guarantee"], answer["epsilon"], _numbers(answer["metrics"]), models[name]
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _require_alike(runs: Sequence[Finished]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what, ours, theirs in (
            ("scenario", _but_seed(first.scenario), _but_seed(run.scenario)),
            ("code", first.code, run.code),
            ("split", first.data["split"]["sha256"], run.data["split"]["sha256"]),
        ):
            if ours != theirs:
                raise SettingsError(
                    f"{run.folder} has another {what} than {first.folder}",
                    "Submit runs together that differ in their seed alone.",
                )
    if len(seeds := [run.scenario.seed for run in runs]) != len(set(seeds)):
        raise SettingsError(
            f"two of these runs have the same seed: {seeds}",
            "Give each run once: a seed counts once.",
        )


def _but_seed(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude={"seed": True} | dict.fromkeys(OWN, True))


def _chosen(run: Finished, known: Mapping[str, Protocol], name: str) -> Protocol:
    if name:
        if name not in known:
            raise SettingsError(f"there is no protocol {name!r}", f"There are: {', '.join(known)}.")
        return known[name]
    split = run.data["split"]["sha256"]
    if fitting := [one for one in known.values() if one.split.sha256 == split]:
        return fitting[0]
    without = [one.name for one in known.values() if not one.split.sha256]
    raise SettingsError(
        f"no protocol has the split of {run.folder}, {split[:10]}...",
        (
            f"Name one whose split nobody knows yet by --protocol ({', '.join(without)}), or add "
            "a protocol of your own: docs/leaderboard.md."
        ),
    )


def _require_fits(run: Finished, protocol: Protocol) -> None:
    """Raises RunError naming the first thing in which the run is not of this protocol."""

    def refused(what: str, expected: object, found: object) -> RunError:
        return RunError(
            (
                f"{run.folder} is not of protocol {protocol.name}: {what} is {found!r}, which "
                f"must be {expected!r}"
            ),
            f"Run it as the protocol says: {protocol.title}.",
        )

    split = run.data["split"]
    if protocol.split.sha256 and split["sha256"] != protocol.split.sha256:
        raise refused("the SHA-256 of the split", protocol.split.sha256, split["sha256"])
    settings = run.scenario.model_dump(mode="json")
    for name, expected in {
        "split.kind": protocol.split.kind,
        "split.seed": protocol.split.seed,
        **protocol.settings,
    }.items():
        found: Any = settings
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found != expected:
            raise refused(name, expected, found)
    read = run.data.get("provenance", {}).get("report", {}).get("rows_read")
    if protocol.data.rows and read != protocol.data.rows:
        raise refused("the number of rows read", protocol.data.rows, read)
    for point in run.points:
        if protocol.metric not in point.metrics:
            raise refused("its metrics", protocol.metric, sorted(point.metrics))
        if float(point.guarantee["delta"]) > protocol.largest_delta:
            raise refused("delta", f"at most {protocol.largest_delta:g}", point.guarantee["delta"])


def _rows(runs: Sequence[Finished], protocol: Protocol, system: str) -> Iterator[Row]:
    first = runs[0]
    names = (
        protocol.metric,
        *(
            name
            for name in protocol.also
            if all(name in p.metrics for run in runs for p in run.points)
        ),
    )
    files = {
        one["name"]: one["sha256"] for one in first.data.get("provenance", {}).get("files", ())
    }
    for number, point in enumerate(first.points):
        same = [run.points[number] for run in runs]
        if any(
            (p.guarantee, p.serving_epsilon) != (point.guarantee, point.serving_epsilon)
            for p in same
        ):
            raise RunError(
                f"{first.folder} and the runs beside it have other guarantees",
                "Submit runs that differ in their seed alone.",
            )
        content = {
            "format": FORMAT,
            "source": "measured",
            "protocol": protocol.name,
            "system": system,
            "data": {"name": protocol.data.title, "files": files},
            "split": {name: first.data["split"][name] for name in ("kind", "seed", "sha256")},
            "guarantee": point.guarantee,
            "serving_epsilon": point.serving_epsilon,
            "metrics": {name: [p.metrics[name] for p in same] for name in names},
            "seeds": [run.scenario.seed for run in runs],
            "noise": first.scenario.privacy.noise,
            "command": command(first.scenario),
            "code": {"name": "fedrec", "version": first.version, "sha256": first.code},
            "models": [p.model for p in same],
        }
        try:
            yield Row.model_validate(content)
        except ValidationError as failure:
            raise DataError(
                f"{first.folder} makes no row: {first_of(failure)}",
                "docs/leaderboard.md lists the keys of a row.",
            ) from None
