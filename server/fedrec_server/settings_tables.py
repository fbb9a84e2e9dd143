"""Tables of a server's settings, one per concern.

Public data that a server reads: the catalogue, the scale of values, and features of items, from
a table of items, from a films file of MovieLens, or from a folder (`fedrec.public_data`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Catalogue
from fedrec.data.item_tables import read_item_table
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.movielens import ML_1M, ML_10M, ML_20M, ML_100K, film_features, read_films
from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import (
    FilePath,
    PartyTable,
)
from fedrec.public_data import PublicData, read_public

FILMS = {form.name: form for form in (ML_100K, ML_1M, ML_10M, ML_20M)}


def read_item_file(
    path: Path,
    *,
    kind: Kind,
    value_range: tuple[float, float] | None,
    id_column: str,
    separator: str,
    min_items: int,
) -> PublicData:
    """The items of a table (CSV, TSV, Parquet, RecBole's `.item`) in its order, its other columns
    as features.

    Raises SettingsError where ratings come without their public scale, and what `read_item_table`
    raises.
    """
    if KINDS[kind].rated and value_range is None:
        raise SettingsError(
            "public.rating_range is needed where values are ratings",
            "Give the public scale, as in [1.0, 5.0].",
        )
    table = read_item_table(path, id_column=id_column, separator=separator, min_items=min_items)
    features = table.features
    scale = KINDS[kind].scale(value_range or (0.0, 1.0))
    return PublicData(table.ids, kind, scale, _some(features), table.titles)


def read_film_file(
    folder: Path, form: str, *, kind: Kind, metadata: str | None, min_items: int | None
) -> PublicData:
    """The films of a folder with MovieLens's films file, without its ratings: the features that its
    reader gives them.

    form: one of `FILMS`. metadata: as `item_features` of the reader. Raises what `read_films` and
    `read_metadata` raise.
    """
    chosen = FILMS[form]
    films = read_films(folder / chosen.films, chosen)
    catalogue = Catalogue(
        tuple(str(film.id) for film in films), tuple(film.title for film in films), ()
    )
    features = film_features(folder, catalogue, films, metadata, min_items)[0]
    scale = KINDS[kind].scale(chosen.value_range)
    return PublicData(catalogue.item_ids, kind, scale, _some(features), catalogue.titles)


def _some(features: PublicFeatures) -> PublicFeatures | None:
    return features if features.bags else None


class PublicTable(PartyTable):
    """What everybody may know of the items."""

    path: FilePath = Field(
        min_length=1,
        description=(
            "folder of public data, a table of items, or a folder with MovieLens's films file"
        ),
    )
    format: Literal[
        "public", "table", "ml-100k", "ml-1m", "ml-10m", "ml-20m", "news", "mind", "click-log"
    ] = Field(
        "public",
        description="public: a folder that fedrec wrote; table: CSV, TSV, Parquet or .item; "
        "ml-...: a films file; of news: news (a folder that fedrec wrote), mind (news.tsv), "
        "click-log (the texts beside ratings)",
    )
    kind: Literal["ratings", "clicks"] = Field("ratings", description="what the clients hold")
    rating_range: tuple[float, float] | None = Field(
        None, description="lowest and highest rating, of a table"
    )
    id_column: str = Field(
        "item", description="column of a table with the item ids that clients know too"
    )
    separator: str = Field("|", description="between the values in one field of a table")
    metadata: str = Field(
        "",
        description=(
            'file with more about films; empty takes the one in the folder, "none" takes none'
        ),
    )
    min_items: int = Field(
        0,
        ge=0,
        description="how many items must share a feature's value; 0 = the format's own number",
    )

    @model_validator(mode="after")
    def _no_key_without_effect(self) -> PublicTable:
        own = {name: set[str]() for name in ("public", "news", "mind", "click-log")}
        own["table"] = {"kind", "rating_range", "id_column", "separator", "min_items"}
        known = {"path", "format"} | own.get(self.format, {"kind", "metadata", "min_items"})
        if unused := self.model_fields_set - known:
            raise ValueError(f"{min(unused)} has no effect where format is {self.format}")
        return self

    def read(self) -> PublicData:
        """The public data of this table. Raises DataError or SettingsError."""
        path = Path(self.path)
        if self.format in ("news", "mind", "click-log"):
            raise SettingsError(
                f'public.format = "{self.format}" is about news',
                'Choose a scenario with recipe = "privaterec".',
            )
        if self.format == "public":
            return read_public(path)
        if self.format == "table":
            scale = self.rating_range
            column = self.id_column
            least = self.min_items or 1
            return read_item_file(
                path,
                kind=self.kind,
                value_range=scale,
                id_column=column,
                separator=self.separator,
                min_items=least,
            )
        return read_film_file(
            path,
            self.format,
            kind=self.kind,
            metadata=self.metadata or None,
            min_items=self.min_items or None,
        )


class GatheringTable(PartyTable):
    """Whom a run waits for before its first round.

    Fewer users than the aggregator's minimum cohort end in no release."""

    expected_users: int = Field(
        0, ge=0, description="users of all clients together; 0 takes whoever the clients bring"
    )
    min_clients: int = Field(1, ge=1, description="clients that must have joined")
    timeout_s: float = Field(
        600.0, gt=0, le=30 * 86_400, description="how long they are waited for"
    )


class RoundsTable(PartyTable):
    """How long a round may take, how many must take part, and how often it may begin again."""

    timeout_s: float = Field(
        600.0, gt=0, le=7 * 86_400, description="how long reports are taken in a round"
    )
    absent_s: float = Field(
        120.0,
        ge=0,
        le=86_400,
        description="how long a round waits for a client that joined and does not answer",
    )
    min_share: float = Field(
        0.8,
        ge=0,
        le=1,
        description="share of the run's users who must report in every round: it waits for them "
        "until its time is over, and with fewer nothing is released; 0 leaves it to the "
        "aggregator's minimum cohort",
    )
    cohort: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the run's users whom every round asks, by whole clients, a new "
        "sample each time; min_share is of those. The guarantee is charged as if everybody were in "
        "every round. Below 1 for the default recipe on ratings",
    )
    short_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="how often a round is tried that misses min_share, before the run ends",
    )
    attempts: int = Field(
        8, ge=1, le=100, description="how often a round that a party lost in a crash begins again"
    )
    pause_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="before the second attempt; twice as long before each further one",
    )
    checkpoints: int = Field(
        3,
        ge=0,
        description=(
            "newest checkpoints that are kept, at least 2, which going on needs; 0 keeps all"
        ),
    )

    @field_validator("checkpoints")
    @classmethod
    def _two(cls, value: int) -> int:
        if value == 1:
            raise ValueError(
                "one checkpoint is not enough to go on from: the question before is made of "
                "the one before it"
            )
        return value


class LinkTable(PartyTable):
    """Where clients connect to the server; over a SuperLink the app runs instead (`fedrec_app`)."""

    listen: str = Field(
        "127.0.0.1:0", description="host:port where clients connect; port 0 picks one"
    )
    certificate: FilePath = Field("", description="certificate that clients are shown")
    key: FilePath = Field("", description="its private key")
    client_ca: FilePath = Field(
        "", description="file of the authority whose clients are let in, by certificate"
    )
    clients: dict[str, str] = Field(
        {},
        description=(
            "SHA-256 of the public keys of the clients that may join, by name: with any, no "
            "other may; pins fills it"
        ),
    )
    insecure: bool = Field(
        False,
        description=("no TLS, clients are believed who they say they are; on loopback only"),
    )
    max_answer_bytes: int = Field(
        64 * 2**20,
        ge=2**20,
        le=2**31 - 1,
        description="largest answer of a client; eight times as much of all together",
    )

    @model_validator(mode="after")
    def _known_by_certificate(self) -> LinkTable:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a certificate and its key come together")
        if bool(self.certificate) != bool(self.client_ca):
            raise ValueError(
                "a certificate needs client_ca, and the other way round: clients are asked for "
                "theirs"
            )
        if not self.certificate and not self.insecure:
            raise ValueError(
                "clients need TLS: give certificate and key, or insecure = true on loopback"
            )
        return self


Rule = Literal["always", "not-worse", "better"]
"""Which versions are published."""


class PublishTable(PartyTable):
    """Which versions are published, and the endpoint from which a serving process on another
    machine fetches the current bundle (`bundle_endpoint`)."""

    rule: Rule = Field(
        "always",
        description="every version; not-worse: none that people say is worse than the one that "
        "serves; better: only one that they say is better; these need privacy.evaluation_share",
    )
    listen: str = Field("", description="host:port; port 0 picks one; empty for none")
    certificate: FilePath = Field("", description="certificate of the endpoint")
    key: FilePath = Field("", description="its private key")
    tokens: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = Field(
        (), description="SHA-256 of the tokens that are let in, 64 hexadecimal digits each"
    )

    @model_validator(mode="after")
    def _safe(self) -> PublishTable:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a certificate and its key come together")
        if not self.listen:
            return self
        if not self.tokens:
            raise ValueError("tokens is empty: nobody could fetch; give the SHA-256 of one")
        if not self.certificate and not Address.of(self.listen).loopback:
            raise ValueError("a token needs TLS: give certificate and key, or listen on loopback")
        return self


class DevicesTable(PartyTable):
    """Light devices, which read each question from a folder that is published
    (`device_clients`)."""

    folder: FilePath = Field("", description="folder that is published to devices; empty for none")
    users: int = Field(
        0, ge=0, description="devices that are counted on, of those that are enrolled"
    )
    window_s: float = Field(
        300.0, gt=0, description="how long a round waits for devices that have not reported"
    )

    @model_validator(mode="after")
    def _both(self) -> DevicesTable:
        if bool(self.folder) != bool(self.users):
            raise ValueError("devices: folder and users come together")
        return self
