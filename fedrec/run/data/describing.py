"""Verbs `fedrec data ...`: formats, a first look at a data set, planted data in a file, and a
scenario's data as partitions by user.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data import partitioning
from fedrec.data.impressions import Impressions
from fedrec.data.news_files import splits_of
from fedrec.data.partitioning import Told
from fedrec.data.partitions import open_partitions
from fedrec.data.planted import write_parquet
from fedrec.data.read import detect, read, require_options
from fedrec.data.read import formats as readers
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import RunError, SettingsError
from fedrec.run.data.datasets import load_dataset, planted_shape, reader_options
from fedrec.run.data.keys import FILES, PLANTED, given_keys, require_used
from fedrec.run.data.news import load_news
from fedrec.settings import NEWS_FORMATS, DataScenario, NewsScenario, Scenario
from fedrec.settings_tables.data import DataSettings, PlantedSettings

NOT_PARTITIONED = (
    "data.keep_users",
    "data.keep_items",
    "data.similar_items",
    "data.item_vectors",
    "collective.users_share",
    "collective.users_file",
    "collective.similar_file",
)
"""Keys that choose among all users or items, which no part can do."""


def formats() -> str:
    """A line for every format."""
    known = {name: reader.summary for name, reader in readers().items()}
    news = {name: f'{summary} (recipe = "privaterec")' for name, summary in NEWS_FORMATS.items()}
    return "\n".join(f"{name:24} {summary}" for name, summary in (known | news).items())


def keys_of_news(path: str, overrides: Sequence[str]) -> list[str]:
    """What a scenario must say beside the overrides for `path` to be read as news: nothing, where
    neither looks like news. A part of MIND may lack dev, and lines of news.tsv."""
    named = any(
        f"data.format={name}" in override.replace('"', "")
        for override in overrides
        for name in NEWS_FORMATS
    )
    if any(override.startswith("data.format=") for override in overrides):
        return ["recipe=privaterec"] if named else []
    splits = splits_of(Path(path))
    whole = [] if "dev" in splits else ["split.kind=held-out-users"]
    as_mind = ["recipe=privaterec", "data.format=mind", "data.unknown_news=add", *whole]
    return as_mind if splits else []


def describe(scenario: Scenario) -> dict[str, Any]:
    """Sizes, scale and features of a data set; nothing about any single user."""
    return _describe_news(scenario) if scenario.learns_news else _describe_events(scenario)


def _describe_news(scenario: NewsScenario) -> dict[str, Any]:
    data = load_news(scenario)
    about = {
        "format": scenario.data.format,
        "news": len(data.news),
        "news with a title": sum(map(bool, data.news.titles)),
        "categories": len(set(data.news.categories) - {""}),
    }
    parts = {"train": data.log.train, "validation": data.log.validation, "test": data.log.test}
    return about | {name: _describe_impressions(part) for name, part in parts.items()}


def _describe_impressions(part: Impressions) -> dict[str, Any]:
    clicks = np.diff(np.concatenate([[0], np.cumsum(part.clicked)])[part.candidate_ptr])
    shown = np.diff(part.candidate_ptr)
    histories = np.diff(part.history_ptr)
    medians = (
        {"median shown": float(np.median(shown)), "median history": float(np.median(histories))}
        if len(part)
        else {}
    )
    several = {"without a click": int((clicks == 0).sum()), "with several": int((clicks > 1).sum())}
    return {"users": part.num_users, "impressions": len(part), **several, **medians}


def _describe_events(scenario: DataScenario) -> dict[str, Any]:
    dataset = load_dataset(scenario)
    events = dataset.interactions
    per_user = np.diff(events.user_ptr)
    per_item = np.bincount(events.items, minlength=events.num_items)
    return {
        "format": dataset.provenance.format,
        "kind": events.kind,
        "events": len(events),
        "users": events.num_users,
        "items": events.num_items,
        "density": round(len(events) / max(events.num_users * events.num_items, 1), 6),
        "median events per user": float(np.median(per_user)),
        "median events per item": float(np.median(per_item)),
        "scale": list(events.value_range),
        "mean value": round(float(np.mean(events.values, dtype=np.float64)), 5)
        if len(events)
        else None,
        "given validation events": len(dataset.given_validation)
        if dataset.given_validation is not None
        else 0,
        "given test events": len(dataset.given_test) if dataset.given_test is not None else 0,
        "features": {name: len(bag.vocabulary) for name, bag in dataset.features.bags.items()},
        "rows resolved": {
            name: count
            for name, count in vars(dataset.provenance.report).items()
            if name != "notes"
        },
        **({"notes": notes} if (notes := dataset.provenance.report.notes) else {}),
    }


def table(described: dict[str, Any]) -> str:
    """Return the description as a table for a terminal: a line for each figure."""
    return "\n".join(f"{name:>24}  {_words(value)}" for name, value in described.items())


def _words(value: object) -> str:
    if isinstance(value, dict):
        return (
            ", ".join(
                f"{name.replace('_', ' ')} {_words(part)}"
                for name, part in value.items()
                if part != ()
            )
            or "none"
        )
    if isinstance(value, list):  # the scale
        return " to ".join(f"{part:g}" for part in value)
    if isinstance(value, tuple):  # notes
        return "; ".join(value)
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def plant(
    folder: Path, preset: str, seed: int, *, users: int = 0, items: int = 0, events: int = 0
) -> list[str]:
    """Write a planted data set, of a preset or of sizes of one's own; returns the files.

    Raises RunError where the folder holds something: `items.csv` may be somebody's own."""
    if seed < 0:
        raise SettingsError(f"--seed {seed} is negative", "Give 0 or more.")
    sizes = {"users": users, "items": items, "events": events}
    if any(sizes.values()):
        if preset or not all(sizes.values()):
            raise SettingsError(
                "--users, --items and --events go together, and without --preset",
                "Give all three of them.",
            )
        data = DataSettings(planted=PlantedSettings(**sizes))
    else:
        data = DataSettings(preset=preset)
    if folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty", "Name another folder.")
    return [str(file) for file in write_parquet(folder, planted_shape(data), seed=seed)]


def partition(
    scenario: Scenario,
    output: str,
    *,
    parts: int,
    resume: bool,
    told: Told = lambda done, total: None,
) -> dict[str, Any]:
    """Write the partitions and return what the manifest says in short. Tables are read in batches,
    planted data is drawn in chunks, other formats, whose data sets are small, are read whole.

    Raises SettingsError for news and for choices among all users, RunError where the folder is in
    use, and what reading raises.
    """
    require_partitionable(scenario)
    data = scenario.data
    name = data.format if data.format != "auto" or not data.path else _format(data.path)
    late = {"features"}
    if data.path and not (
        "click_threshold" in reader_options(data)
        and name in readers()
        and "click_threshold" in readers()[name].keywords()
    ):
        late |= {"kind", "click_threshold"}
    if keys := [key for key in given_keys(data) if key in late]:
        raise SettingsError(
            f"data.{keys[0]} is of a training on partitions, which are made without it",
            "Say it where the partitions are data.path.",
        )
    require_used(
        scenario,
        set(type(data).model_fields) - FILES if data.path else PLANTED,
        "this data",
        "Leave it out.",
    )
    source = scenario.model_dump_json(include={"data": True}) + (
        "" if data.path else str(scenario.seed)
    )
    work = partitioning.open_output(output, parts=parts, source=source, resume=resume)
    if not data.path:
        partitioning.partition_planted(
            planted_shape(data), scenario.seed, output, work, parts=parts, told=told
        )
    elif name == "table":
        options = reader_options(data)
        require_options(name, options, readers()[name].keywords())
        asked = asked_table(Path(data.path), TableOptions(**options))  # type: ignore[arg-type]
        if len(asked.source) == 1:
            partitioning.partition_table(asked, output, work, parts=parts, told=told)
        else:
            partitioning.partition_dataset(
                read(data.path, "table", **options),
                output,
                work,
                parts=parts,
                told=told,
            )
    else:
        dataset = read(data.path, data.format, **reader_options(data))
        partitioning.partition_dataset(dataset, output, work, parts=parts, told=told)
    made = open_partitions(output)
    sizes = [part.events for part in made.parts]
    return {
        "folder": output, "parts": len(sizes), "users": made.num_users, "items": made.num_items,
        "events": made.events,
        "largest_part": max(sizes), "bytes": sum(part.size_bytes for part in made.parts),
        "not_covered": list(made.provenance.not_covered),
    }  # fmt: skip


def require_partitionable(scenario: Scenario) -> None:
    """Raises SettingsError for news, and where the scenario chooses among all users."""
    if scenario.learns_news:
        raise SettingsError(
            "news are not partitioned: their clients hold them", "Give ratings or clicks."
        )
    for key in NOT_PARTITIONED:
        table, name = key.split(".")
        if getattr(getattr(scenario, table), name):
            raise SettingsError(
                f"{key} chooses among all users, which no partition knows",
                "Leave it out, or use --runtime loopback.",
            )


def _format(path: str) -> str:
    where = Path(path)
    return detect(where) if where.exists() else "auto"  # the reader says that it is not there
