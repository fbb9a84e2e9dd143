"""Keys of a scenario that a source of data can honour; any other that is given is refused by name.

A key that changed nothing would be believed: a threshold that was not asked, a table that was not
read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fedrec.errors import SettingsError
from fedrec.settings import Scenario
from fedrec.settings_tables import Table

AFTER_READING = frozenset(
    {"kind", "click_threshold", "keep_users", "keep_items", "features", "similar_items"}
    | {"item_vectors"}
)
"""Keys of [data] that change a data set once it is there."""
PLANTED = AFTER_READING | {"preset", "planted", "format"}
FILES = frozenset({"unknown_news", "preset", "planted"})
"""Keys of [data] that no file of ratings or clicks has."""
NEWS = {
    "mind": frozenset({"path", "format", "unknown_news"}),
    "click-log": frozenset({"path", "format"}),
    "planted-news": frozenset({"format", "preset"}),
}
"""Keys of [data] by the format of news."""
PARTITIONED = frozenset({"path", "format", "kind", "click_threshold", "features"})
"""Keys of [data] that a training over partitions honours."""
PUBLIC = frozenset({"features", "similar_items", "item_vectors"})
"""Keys of [data] that rows which are divided already leave open."""


def given_keys(table: Table) -> list[str]:
    """Keys of a table that differ from their defaults."""
    return [
        key for key, field in type(table).model_fields.items()
        if getattr(table, key) != field.get_default(call_default_factory=True)
    ]  # fmt: skip


def require_used(scenario: Any, used: Collection[str], what: str, remedy: str) -> None:
    """Raises SettingsError at a key of [data] that is given and not among those used.

    what: the source of data, in words."""
    for key in given_keys(scenario.data):
        if key not in used:
            raise SettingsError(f"data.{key} has no effect on {what}", remedy)


def require_of_training(scenario: Scenario, kind: str) -> None:
    """Raises SettingsError at a key that is not of training, where rows of this kind are divided
    already."""
    require_used(
        scenario, PUBLIC | ({"kind"} if scenario.data.kind == kind else set()),
        "a data set that is there",
        "Say it where the data is made: Dataset.from_frame, Dataset.from_file.",
    )  # fmt: skip
    for name in ("split", "evaluation", "compare", "run"):
        if keys := given_keys(getattr(scenario, name)):
            raise SettingsError(
                f"{name}.{keys[0]} has no effect on fit, which trains on what it is given",
                "Give split keys to Dataset.split; the others to fedrec.simulate.",
            )
    if scenario.collective.users_share:
        raise SettingsError(
            "collective.users_share takes users out of data that is divided already",
            "Give other people in collective.users_file, or use fedrec.simulate.",
        )


def require_own(scenario: Any) -> None:
    """Raises SettingsError where what is said of public data is not used: with data.features =
    false nothing public is."""
    chosen = scenario.data
    if not chosen.features:
        for key in ("features_path", "similar_items", "item_vectors"):
            if getattr(chosen, key):
                raise SettingsError(
                    f"data.{key} has no effect with data.features = false", "Leave out one."
                )
