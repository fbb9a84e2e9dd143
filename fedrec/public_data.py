"""Public data that everybody knows before a run: the catalogue, the scale of values, and features
of items.

A folder that `write_public` made gives back the same bytes, and so the same content embedding:
`public.json`, and the bags as one safetensors file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Catalogue
from fedrec.data.kinds import Kind
from fedrec.errors import DataError, RunError
from fedrec.factorization.facts import PublicFacts
from fedrec.randomness import Streams
from fedrec.storage import json_bytes, packed_arrays, read_arrays, read_json, write_files

FORMAT = "fedrec-public/1"
_REMEDY = "Write the folder of public data again."

Bags = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class PublicData:
    """items: ids in the order of item numbers. kind, value_range: as in `Interactions`. features: a
    row per item, None without any.

    titles: for those who are recommended items; they decide nothing in a training. None where
    nothing but ids is known. timed, period: as in `PublicFacts`.
    """

    items: tuple[str, ...]
    kind: Kind
    value_range: tuple[float, float]
    features: PublicFeatures | None
    titles: tuple[str, ...] | None = None
    timed: bool = False
    period: tuple[int, int] | None = None

    @staticmethod
    def of(catalogue: Catalogue, facts: PublicFacts) -> PublicData:
        """What is public of a data set; user ids and the number of users stay out of it."""
        return PublicData(
            catalogue.item_ids,
            facts.kind,
            facts.value_range,
            facts.features,
            catalogue.titles,
            facts.timed,
            facts.period,
        )

    def write(self, folder: Path) -> None:
        """Write what `read_public` reads."""
        write_files(folder, self.files())

    def files(self) -> dict[str, bytes]:
        """What `write` writes, by name."""
        arrays = packed_arrays(_arrays(self.features))
        digest = hashlib.sha256(arrays).hexdigest()
        titles = {} if self.titles is None else {"titles": list(self.titles)}
        about = {"format": FORMAT, "sha256": digest, **_description(self), **titles}
        return {"features.safetensors": arrays, "public.json": json_bytes(about)}

    def facts(self, *, num_users: int, seed: int) -> PublicFacts:
        """What everybody knows once it is known how many users take part."""
        return PublicFacts(
            num_users,
            len(self.items),
            self.kind,
            self.value_range,
            self.features,
            Streams(seed),
            timed=self.timed,
            period=self.period,
        )

    def without_features(self) -> PublicData:
        """This catalogue, nothing known of its items."""
        return replace(self, features=None)

    def digest(self) -> str:
        """SHA-256 of everything but titles: a run goes on with the same public data only."""
        hashed = hashlib.sha256(json.dumps(_description(self), sort_keys=True).encode())
        for name, array in sorted(_arrays(self.features).items()):
            hashed.update(f"{name}/{array.dtype.str}/{array.shape}".encode() + array.tobytes())
        return hashed.hexdigest()


def write_public(folder: Path, catalogue: Catalogue, facts: PublicFacts) -> None:
    """Write what is public of a data set, as `read_public` reads it."""
    public = PublicData.of(catalogue, facts)
    public.write(folder)


def read_public(folder: Path) -> PublicData:
    """The public data of a folder that `write_public` made.

    Raises DataError where a file is missing, damaged or of another format."""
    described = _described(folder / "public.json")
    features = (
        None
        if described.bags is None
        else PublicFeatures(_read_bags(folder, described, described.bags))
    )
    if described.titles is not None and len(described.titles) != len(described.items):
        raise DataError(
            f"{folder} has {len(described.titles)} titles of {len(described.items)} items", _REMEDY
        )
    return PublicData(
        described.items,
        described.kind,
        described.value_range,
        features,
        described.titles,
        described.timed,
        described.period,
    )


# --- the folder ---


class _Bag(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    vocabulary: tuple[str, ...]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["fedrec-public/1"]
    sha256: str
    kind: Kind
    value_range: tuple[float, float]
    items: Annotated[tuple[str, ...], Field(min_length=1)]
    bags: tuple[_Bag, ...] | None
    titles: tuple[str, ...] | None = None
    timed: bool = False
    period: tuple[int, int] | None = None


def _description(public: PublicData) -> dict[str, Any]:
    """Everything but the numbers of the bags; a list, because the order of bags decides the order
    of columns."""
    features = public.features
    bags = (
        None
        if features is None
        else [
            {"name": name, "vocabulary": list(bag.vocabulary)}
            for name, bag in features.bags.items()
        ]
    )
    return {
        "kind": public.kind,
        "value_range": list(public.value_range),
        "items": list(public.items),
        "bags": bags,
        **({"timed": True} if public.timed else {}),
        **({"period": list(public.period)} if public.period else {}),
    }


def _arrays(features: PublicFeatures | None) -> dict[str, npt.NDArray[np.generic]]:
    """The CSR parts of every bag as they are: the order of entries in a row decides the last bits
    of a product."""
    arrays = dict[str, npt.NDArray[np.generic]]()
    for number, bag in enumerate(features.bags.values() if features else ()):
        counts = bag.counts
        arrays[f"{number}.data"] = np.asarray(counts.data, np.float32)
        arrays |= {
            f"{number}.{part}": np.asarray(getattr(counts, part), np.int32)
            for part in ("indices", "indptr")
        }
    return arrays


def _described(path: Path) -> _Described:
    try:
        return _Described.model_validate(read_json(path))
    except RunError as failure:
        raise DataError(failure.cause, _REMEDY) from None
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path} is no public data at {where or 'its start'}: {first['msg']}", _REMEDY
        ) from None


def _read_bags(
    folder: Path, described: _Described, bags: tuple[_Bag, ...]
) -> dict[str, FeatureBag]:
    path = folder / "features.safetensors"
    try:
        arrays = read_arrays(path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != described.sha256:
            raise DataError(f"{path} is not the file that public.json describes", _REMEDY)
        return {
            bag.name: _bag(arrays, number, bag, len(described.items))
            for number, bag in enumerate(bags)
        }
    except RunError as failure:
        raise DataError(failure.cause, _REMEDY) from None
    except (KeyError, ValueError) as failure:
        raise DataError(
            f"{path} does not hold the bags of public.json: {failure}", _REMEDY
        ) from None


def _bag(arrays: Bags, number: int, bag: _Bag, items: int) -> FeatureBag:
    data, indices, indptr = (arrays[f"{number}.{part}"] for part in ("data", "indices", "indptr"))
    parts = (
        np.asarray(data, np.float32),
        np.asarray(indices, np.int32),
        np.asarray(indptr, np.int32),
    )
    counts = sparse.csr_matrix(parts, shape=(items, len(bag.vocabulary)))
    counts.check_format(full_check=True)
    return FeatureBag(bag.vocabulary, counts)
