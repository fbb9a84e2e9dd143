"""`fedrec data partition`: a scenario's data as partitions by user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrec.data import partitioning
from fedrec.data.partitioning import Told
from fedrec.data.partitions import open_partitions
from fedrec.data.planted_parts import PlantedParts
from fedrec.data.read import detect, read
from fedrec.data.tables import TableOptions, asked_table
from fedrec.errors import SettingsError
from fedrec.run.data.datasets import planted_shape, reader_options
from fedrec.settings import Scenario
from fedrec.settings_tables.data import DataSettings

NOT_PARTITIONED = (
    "data.keep_users",
    "data.keep_items",
    "data.similar_items",
    "data.item_vectors",
    "collective.users_share",
    "collective.users_file",
)
"""Keys that choose among all users or items, which no part can do."""


def partition(
    scenario: Scenario,
    output: str,
    *,
    parts: int,
    resume: bool,
    where_read: bool = False,
    told: Told = lambda done, total: None,
) -> dict[str, Any]:
    """Write the partitions and return what the manifest says in short. Tables are read in batches,
    planted data is drawn in chunks, other formats, whose data sets are small, are read whole.
    where_read: write no part, which is then planted by whoever reads it.

    Raises SettingsError for news and for choices among all users, RunError where the folder is in
    use, and what reading raises.
    """
    require_partitionable(scenario)
    data = scenario.data
    planted = _where_read(data, scenario.seed, parts, resume) if where_read else None
    source = scenario.model_dump_json(include={"data": True}) + (
        "" if data.path else str(scenario.seed)
    )
    work = partitioning.open_output(output, parts=parts, source=source, resume=resume)
    if planted is not None:
        partitioning.partition_planted_where_read(planted, output, work)
    elif not data.path:
        partitioning.partition_planted(
            planted_shape(data), scenario.seed, output, work, parts=parts, told=told
        )
    elif (data.format if data.format != "auto" else _format(data.path)) == "table":
        asked = asked_table(Path(data.path), TableOptions(**reader_options(data)))  # type: ignore[arg-type]
        if len(asked.source) == 1:
            partitioning.partition_table(asked, output, work, parts=parts, told=told)
        else:
            partitioning.partition_dataset(
                read(data.path, "table", **reader_options(data)),
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


def _where_read(data: DataSettings, seed: int, parts: int, resume: bool) -> PlantedParts:
    if resume or data.path:
        raise SettingsError(
            f"--planted-where-read has no {'work to resume' if resume else 'data to read'}",
            f"Leave {'--resume' if resume else 'the data'} out.",
        )
    shape = planted_shape(data)
    if parts > shape.users:
        raise SettingsError(
            f"--parts {parts} is more than the {shape.users} users", "Give fewer parts."
        )
    return PlantedParts(shape, seed, parts)


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
