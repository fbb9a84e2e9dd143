"""Whole runs from Python: `fedrec simulate` with its run folder, report and comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedrec.api.callbacks import Callback, require_callbacks
from fedrec.api.datasets import Dataset
from fedrec.api.estimators import load
from fedrec.api.promises import PrivacyGuarantee, html_table
from fedrec.api.recommender import Recommender
from fedrec.auditing.command import Audit
from fedrec.auditing.command import run as run_audit
from fedrec.errors import SettingsError, require
from fedrec.numerics.threads import one_blas_thread
from fedrec.registry import find
from fedrec.run.comparison_frame import compare
from fedrec.run.simulate import run
from fedrec.run.training import RoundRecord
from fedrec.settings import Scenario, validated, without_comparisons
from fedrec.settings_tables import load_content, nested
from fedrec.shipped import scenario_path, shipped


@dataclass(frozen=True, repr=False)
class Simulation:
    """A finished run.

    Args:
        folder: Its run folder.
        result: What `fedrec simulate --json` prints.

    >>> import fedrec, tempfile
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> options = {"noise": "seeded", "directory": tempfile.mkdtemp()}
    >>> run = fedrec.simulate("dp-popularity", data, epsilon=2, **options)
    >>> run.report().name
    'report.html'
    >>> run.model.recommend(history=["3"], k=3)["item"].len()
    3
    """

    folder: Path
    result: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, Any]:
        """On test, by name."""
        return dict(self.result["metrics"])

    @property
    def model(self) -> Recommender:
        """The released model."""
        return load(self.folder)

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised of it."""
        return self.model.guarantee

    @property
    def frame(self) -> pl.DataFrame:
        """A row for each method of the run."""
        return compare(self.folder)

    def report(self) -> Path:
        """Path of the report, one HTML file that needs no network.

        Returns:
            The file.
        """
        return self.folder / "report.html"

    def __repr__(self) -> str:
        found = ", ".join(
            f"{name} {value:.4f}"
            for name, value in self.metrics.items()
            if name in {"rmse", "mae"} or name.startswith("ndcg")
        )
        return f"Simulation({str(self.folder)!r}): {found}; {self.guarantee!r}"

    def _repr_html_(self) -> str:
        rows: list[tuple[object, object]] = [
            ("run", self.folder),
            ("guarantee", repr(self.guarantee)),
            ("report", self.report()),
        ]
        return html_table(("simulation", ""), [*rows, ("result", self.result["answer"])])


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario = "planted",
    data: Dataset | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise: str | None = None,
    seed: int | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Simulation:
    """Train, evaluate and report, as `fedrec simulate` does, to the byte.

    Args:
        scenario: A scenario file (TOML), the name of one that comes with fedrec
            (`fedrec.scenarios()`), the name of a recipe, or a mapping.
        data: A data set of your own, in the place of the scenario's. It is trained once, at
            `epsilon`, whatever the scenario compares, unless `settings` has `compare.epsilons`.
        settings: Scenario keys to override, for example `{"split.kind": "leave-last-out"}`.
        epsilon: Short for `privacy.epsilon`.
        delta: Short for `privacy.delta`.
        noise: Short for `privacy.noise`: "system", or "seeded" for an experiment.
        seed: Short for `seed`.
        directory: Where the run folder is made; "runs" without one.
        resume: Continue an interrupted run of this scenario.
        progress: Show bars with the time left, and the table of methods.
        callbacks: Called with a dictionary after every round and at the end; not where the scenario
            learns news.

    Returns:
        What was trained, measured and written.

    Raises:
        SettingsError: A key is unknown, with the nearest one, or has a wrong value.
        DataError: The data cannot be read or trained on.
        PrivacyError: The guarantee promises nothing, or a budget would be passed.
        RunError: The run folder cannot be used.

    >>> import fedrec, tempfile
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> options = {"noise": "seeded", "directory": tempfile.mkdtemp()}
    >>> run = fedrec.simulate("dp-popularity", data, epsilon=2, **options)
    >>> run.guarantee.epsilon
    2.0
    """
    (content, name), told = _content(scenario), require_callbacks(callbacks)
    short = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.noise": noise,
        "seed": seed,
        "run.directory": None if directory is None else str(directory),
    }
    chosen = {key: value for key, value in short.items() if value is not None}
    written = nested({} if settings is None else settings, onto=content)
    own = nested({} if settings is None else settings)
    if not isinstance(scenario, Mapping) and (data is not None or "path" in own.get("data", {})):
        said = [f"compare.{key}" for key in own.get("compare", {})]
        written = without_comparisons(nested(chosen, onto=written), said=said)
    resolved = validated(nested(chosen, onto=written), source=f"simulate {name}")
    if data is not None and resolved.data.path:
        raise SettingsError(
            "data is given, but the scenario has a data.path too", "Leave one of them out."
        )
    own = nested(settings or {}).get("data", {})
    if data is not None and (keys := {"preset", "planted"} & {*own}):
        raise SettingsError(
            f"data.{min(keys)} has no effect on a data set in memory", "Leave one of them out."
        )
    if data is not None and resolved.learns_news:
        raise SettingsError(
            "news is read from files, and data holds ratings or clicks",
            'Give settings={"data.path": ...}.',
        )
    if resolved.learns_news:
        require("news", f'recipe "{resolved.recipe}"')
        return _simulation(run(resolved, name=name, resume=resume, quiet=not progress))
    if data is not None:
        name = f"{name}-{_digest_of(data)}"

    def on_round(record: RoundRecord) -> None:
        for callback in told:
            callback({"event": "round", **vars(record)})

    with one_blas_thread():
        given = None if data is None else data.source
        finished = _simulation(
            run(
                resolved,
                name=name,
                resume=resume,
                quiet=not progress,
                given=given,
                on_round=on_round,
            )
        )
    for callback in told:
        callback(
            {
                "event": "simulate",
                "recipe": resolved.recipe,
                **finished.guarantee.as_dict(),
                "metrics": finished.metrics,
            }
        )
    return finished


def audit(
    scenario: str | Path | Mapping[str, Any] | Scenario | Recommender,
    data: Dataset | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    quick: bool = True,
) -> Audit:
    """Attack a scenario's mechanism, as `fedrec audit` does: a lower bound of epsilon from each
    attack beside the epsilon that is claimed.

    Args:
        scenario: As in `simulate`, or an estimator, whose parameters are attacked.
        data: A data set of your own, in the place of the scenario's.
        settings: Scenario keys to override.
        quick: Fewer draws: weaker bounds, sooner.

    Returns:
        The findings; `table()` is what the command prints, and `exit_code` is not 0 where a claim
        was refuted.

    >>> import fedrec
    >>> found = fedrec.audit("dp-bias", fedrec.Dataset.planted("small"))
    >>> found.exit_code  # no attack refuted the claim
    0
    """
    content, name = (
        (scenario.scenario().written(), "audit")
        if isinstance(scenario, Recommender)
        else _content(scenario)
    )
    resolved = validated(nested(settings or {}, onto=content), source=f"audit {name}")
    with one_blas_thread():
        return run_audit(resolved, quick=quick, given=None if data is None else data.source)


def scenarios() -> tuple[str, ...]:
    """Names of the scenarios that come with fedrec.

    Returns:
        The names in alphabetical order.

    >>> import fedrec
    >>> "planted" in fedrec.scenarios()
    True
    """
    return tuple(shipped())


def _simulation(result: Mapping[str, Any]) -> Simulation:
    return Simulation(Path(result["run_dir"]), result)


def _digest_of(data: Dataset) -> str:
    """Tells runs on different data apart: the scenario says nothing of data in memory."""
    files = data.source.provenance.files
    return files[0].sha256[:10] if files else "planted"


def _content(scenario: str | Path | Mapping[str, Any] | Scenario) -> tuple[dict[str, Any], str]:
    if isinstance(scenario, Scenario):
        return scenario.written(), scenario.recipe
    if isinstance(scenario, Mapping):
        return nested(scenario), "run"
    if not Path(scenario).exists() and find(str(scenario)) is not None:
        return {"recipe": str(scenario)}, str(scenario)
    path = scenario_path(Path(scenario))
    assert path is not None
    return load_content(path), path.stem
