"""Table [collective] of a scenario: which public data a model learns from, and how much it
weighs.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedrec.settings_tables import Table


class CollectiveSettings(Table):
    """Public data beside private ratings. Of `recipe = "dp-cmf"`: every side has a weight, alpha,
    and a ridge, lambda', of its own.

    `recipe = "default"` takes metadata and public users: `categories`, `users_file`,
    `users_format`, `users_ids`, `users_share` and `users_limit` (of clicks also `users_values` and
    `users_threshold`). How much they count it finds from the data; it refuses other keys.
    """

    sides: tuple[Literal["metadata", "similar-items", "public-users"], ...] = Field(
        ("metadata",), min_length=1, description="public matrices to factorise with the ratings"
    )
    categories: tuple[str, ...] = Field(
        (), description="features of the metadata side, for example genre; empty takes all"
    )
    metadata_weight: float = Field(10.0, gt=0, description="alpha of metadata")
    metadata_ridge: float = Field(100.0, gt=0, description="lambda' of metadata")
    similar_weight: float = Field(10.0, gt=0, description="alpha of similar items")
    similar_ridge: float = Field(100.0, gt=0, description="lambda' of similar items")
    users_weight: float = Field(100.0, gt=0, description="alpha of public users")
    users_ridge: float = Field(100.0, gt=0, description="lambda' of public users")
    unobserved: float = Field(
        0.03,
        ge=0,
        description="weight of the zeros of binary sides and of similar items; ratings have none",
    )
    similar_file: str = Field(
        "",
        description="CSV or TSV of item, neighbour, score; empty learns them from the public users",
    )
    similarity: Literal["inner-product", "cosine"] = Field(
        "inner-product", description="of learned item vectors"
    )
    neighbours: int = Field(
        100, ge=1, description="k: similar items of each item, where they are learned"
    )
    similar_values: Literal["scores", "binary"] = Field(
        "binary", description="similar items with their scores, or 1 for each"
    )
    users_file: str = Field(
        "",
        description=(
            "ratings of public users, who must not be private users; in any format of data.path"
        ),
    )
    users_format: str = Field("auto", description="format of users_file, as data.format")
    users_ids: Literal["same", "separate"] = Field(
        "same",
        description=(
            "same: an id in both sources is one person, and refused; separate: who has a private "
            "history is left out"
        ),
    )
    users_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without users_file: this share of the data's own users is made public",
    )
    users_limit: int = Field(0, ge=0, description="use so many of the public users; 0 = all")
    users_values: Literal["raw", "binary"] = Field(
        "raw", description="their ratings, or 1 for those of at least users_threshold"
    )
    users_threshold: float = Field(
        4.0, description="the lowest rating that says that a public user likes an item"
    )
    start_passes: int = Field(
        0,
        ge=0,
        le=100,
        description="passes over public data alone before the first round; 0 = random vectors",
    )

    def contradiction(self) -> str:
        """Why these choices cannot go together; empty where they can."""
        public_users = bool(self.users_file or self.users_share)
        if len(set(self.sides)) < len(self.sides):
            return "collective.sides names a side twice: its weight says how much it counts"
        if self.users_file and self.users_share:
            return "collective.users_file and users_share both say who is public: choose one"
        unread = {"users_format", "users_ids"} & self.chosen()
        if unread and not self.users_file:
            return f"collective.{min(unread)} is of collective.users_file, which is not given"
        if "public-users" in self.sides and not public_users:
            return (
                'collective.sides names "public-users": say who they are with users_file or '
                "users_share"
            )
        if "similar-items" in self.sides and not (public_users or self.similar_file):
            return (
                'collective.sides names "similar-items": give similar_file, or public users to '
                "learn them from"
            )
        if self.similar_file and "similar-items" not in self.sides:
            return (
                'collective.similar_file is used by no side: add "similar-items" to '
                "collective.sides"
            )
        learned = "similar-items" in self.sides and not self.similar_file
        if public_users and not learned and "public-users" not in self.sides:
            return (
                'collective.users_file and users_share are used by no side: add "public-users" '
                "to collective.sides"
            )
        return ""

    def unknown_to_default(self) -> str:
        """Why these choices say nothing to the default recipe; empty where they do."""
        known = {
            "sides",
            "categories",
            "users_file",
            "users_format",
            "users_ids",
            "users_share",
            "users_limit",
        }
        known |= {"users_values", "users_threshold"}  # of clicks
        if "similar-items" in self.sides:
            return (
                'collective.sides: similar items are of "dp-cmf"; the default recipe learns from '
                "public users themselves what is alike"
            )
        if ignored := self.chosen() - known:
            return (
                f'collective.{min(ignored)} is of "dp-cmf": the default recipe finds from the '
                "data how much public data counts"
            )
        if self.categories and "metadata" not in self.sides:
            return (
                'collective.categories are features of the metadata side: add "metadata" to '
                "collective.sides"
            )
        return ""
