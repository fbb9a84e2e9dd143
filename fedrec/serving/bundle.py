"""The public bundle: one file that a server ranks with and that a client asks with, without being
known by what it asks.

A safetensors file. Its version is the first 8 bytes of its SHA-256: server and client that name the
same version hold the same bytes.

- `rows`, (m, B) int32, client: what one click adds to the coefficients, in steps of 2^-20
- `mean`, `covariance`, (B,), (B, B) f64, client: the population, for posterior means
  (`privacy.bounded_mean.decode`)
- `sizes.*`, `sizes.Sizes`, client, where there are any: what reads the coefficients instead of the
  population
- `users.*`, `user_map.UserMap`: server, and device that ranks
- `items`, `bias`, (m, D), (m,) f32, server, and device that ranks: score = items_j . U + bias_j
- `categories`, (m,) uint64, both: bit k says that the item has category k of `About.categories`
- `ids.*`, `titles.*`, `texts.Texts`: client
- `model.*`, the released model: device that ranks, where the family has an exact local solve

A client makes coefficients a from its history, noises them, decodes them, and sends (decoded -
mean) / scale: `query`. That is a function of a noised release and of public numbers, so it costs
what the release costs. No other thing leaves it.

Many short strings as two arrays, so that a million titles are one block of memory and load
without being parsed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrec import storage
from fedrec.errors import RunError
from fedrec.serving.user_map import UserMap
from fedrec.storage import write_bytes

FORMAT = "fedrec-serving/2"
MOST_CATEGORIES = 64  # bits of one integer an item
FILE = "serving.safetensors"
FACTS = "serving.json"
"""Its name in a run folder."""
_REMEDY = (
    "Make it again with the same version of fedrec: fedrec simulate writes it at the end of a run."
)
_DTYPES = {
    "items": "float32",
    "bias": "float32",
    "categories": "uint64",
    "rows": "int32",
    "mean": "float64",
    "covariance": "float64",
    "ids.content": "uint8",
    "ids.ptr": "int64",
    "titles.content": "uint8",
    "titles.ptr": "int64",
}


@dataclass(frozen=True)
class Texts:
    """content: uint8, UTF-8 of all one after another; ptr: (n + 1,) int64, where each begins."""

    content: npt.NDArray[np.uint8]
    ptr: npt.NDArray[np.int64]

    @staticmethod
    def of(texts: Sequence[str]) -> Texts:
        """The given strings."""
        encoded = [text.encode() for text in texts]
        ptr = np.concatenate(
            [[0], np.cumsum([len(part) for part in encoded], dtype=np.int64)]
        ).astype(np.int64)
        return Texts(np.frombuffer(b"".join(encoded), np.uint8), ptr)

    @property
    def whole(self) -> bool:
        """Whether `ptr` divides `content` into strings."""
        ptr = self.ptr
        if ptr.ndim != 1 or self.content.ndim != 1 or not len(ptr):
            return False
        return bool(ptr[0] == 0 and ptr[-1] == len(self.content) and (np.diff(ptr) >= 0).all())

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, index: int) -> str:
        """The string; bytes that are no UTF-8 become U+FFFD, so that no string of a hostile file
        raises."""
        return (
            self.content[self.ptr[index] : self.ptr[index + 1]].tobytes().decode("utf-8", "replace")
        )

    def all(self) -> tuple[str, ...]:
        """Every string."""
        return tuple(self[index] for index in range(len(self)))


class About(BaseModel):
    """What is said of a bundle in words; kept in the file's header."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["fedrec-serving/2"] = "fedrec-serving/2"
    name: str = Field(description="of the run that made it")
    family: Literal["news", "ratings", "clicks"]
    form: Literal["additive", "attention"] = Field(description="how a history becomes coefficients")
    history: int = Field(ge=1, lt=2**53, description="H: how many of the latest clicks count")
    sensitivity: float = Field(
        gt=0, description="the farthest that one replaced click moves the coefficients, in L2"
    )
    unit: Literal["click"] = Field(
        "click", description="what neighbours differ in; it is replaced, not removed"
    )
    delta: float = Field(gt=0, lt=1)
    scale: float = Field(
        1.0, gt=0, description="what decoded and centred coefficients are divided by"
    )
    liked: float = Field(
        0.0, description="the least rating that counts as a click; 0 where clicks have no value"
    )
    categories: tuple[str, ...] = Field((), max_length=MOST_CATEGORIES)
    training: dict[str, Any] = Field(
        description=(
            "the guarantee of training, with unit and neighbours; infinite numbers as strings"
        )
    )
    noise: Literal["seeded", "system"] = Field(
        description="where the noise of training came from; seeded: an experiment, not for release"
    )
    fedrec: str

    @property
    def experiment(self) -> bool:
        """Whether the noise of training came from a seed: whoever knows the seed can remove it, so
        no guarantee of training holds."""
        return self.noise == "seeded"

    @property
    def trained(self) -> str:
        """What is promised of training, in one line."""
        epsilon = self.training.get("epsilon")
        unit = self.training.get("unit", "user")
        if self.experiment:
            return (
                "EXPERIMENT: trained with seeded noise, which whoever knows the seed can remove. "
                "No guarantee of training holds"
            )
        # an infinite one is a string
        if not (isinstance(epsilon, float | int) and math.isfinite(epsilon)):
            return "no privacy: trained without noise"
        if self.training.get("established") is False:
            return f"no established privacy: epsilon {epsilon} per {unit} is claimed, not proved"
        runs = self.training.get("runs", 1)
        together = f" over {runs} trainings together" if isinstance(runs, int) and runs > 1 else ""
        return f"epsilon {epsilon} per {unit}{together}"


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle. version: 16 hexadecimal digits.

    `more` are the form's own arrays and the released model's, by full name."""

    version: str
    sha256: str
    about: About
    users: UserMap
    items: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    categories: npt.NDArray[np.uint64]
    ids: Texts
    titles: Texts
    rows: npt.NDArray[np.int32]
    mean: npt.NDArray[np.float64]
    covariance: npt.NDArray[np.float64]
    more: Mapping[str, npt.NDArray[np.generic]]

    @property
    def coefficients(self) -> int:
        """B: the numbers of a query."""
        return int(self.users.linear.shape[0])

    @property
    def size(self) -> int:
        """m: items of the catalogue."""
        return len(self.items)


@dataclass(frozen=True)
class Ranked:
    """The part of a bundle that a server ranks with: users, items (m, D), bias (m,), categories
    (m,)."""

    version: str
    about: About
    users: UserMap
    items: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    categories: npt.NDArray[np.uint64]


def write(path: Path, about: About, arrays: Mapping[str, npt.NDArray[np.generic]]) -> str:
    """Write a bundle atomically; returns its version."""
    content = packed(about, arrays)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()[:16]


def packed(about: About, arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """The bytes of a bundle."""
    # keeps numbers of no dimension
    ordered = {name: np.asarray(array, order="C") for name, array in sorted(arrays.items())}
    return save(
        ordered, metadata={"about": json.dumps(about.model_dump(mode="json"), sort_keys=True)}
    )


def sha256_of(path: Path) -> str:
    """SHA-256 of the file. Raises RunError where it cannot be read."""
    try:
        return storage.sha256_of(path)
    except OSError as failure:
        raise RunError(f"{path} cannot be read: {failure.strerror or failure}", _REMEDY) from None


def read(path: Path) -> Bundle:
    """All of a bundle. Raises RunError where it is missing, damaged, or its parts do not fit."""
    sha256 = sha256_of(path)
    about, arrays = _opened(path, wanted=None)
    try:
        bundle = _bundle(sha256, about, arrays)
    except (KeyError, ValueError) as failure:
        raise RunError(f"{path} lacks what a bundle needs: {failure}", _REMEDY) from None
    return bundle


def read_ranked(path: Path) -> Ranked:
    """What a server needs, and nothing else in memory, not even for a moment.

    Raises RunError like `read`."""
    sha256 = sha256_of(path)
    about, arrays = _opened(path, wanted=("users.",))
    try:
        arrays.update(_straight(path, ("items", "bias", "categories")))
        parts = Ranked(
            sha256[:16],
            about,
            UserMap.of_arrays(arrays),
            *(arrays[n] for n in ("items", "bias", "categories")),  # type: ignore[arg-type]
        )
        _check(parts.users, parts.items, parts.bias, parts.categories)
    except (KeyError, ValueError) as failure:
        raise RunError(f"{path} lacks what a bundle needs: {failure}", _REMEDY) from None
    return parts


def _straight(path: Path, names: tuple[str, ...]) -> dict[str, npt.NDArray[np.generic]]:
    """Arrays of a file that safetensors has checked, read into their place: it would map the file
    first, and hold all twice."""
    kinds = {"F32": np.float32, "U64": np.uint64}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name in names:
        said = header[name]
        start = 8 + size + said["data_offsets"][0]
        count = int(np.prod(said["shape"]))
        found[name] = np.fromfile(path, kinds[said["dtype"]], count, offset=start).reshape(
            said["shape"]
        )
    return found


def _opened(
    path: Path, wanted: tuple[str, ...] | None
) -> tuple[About, dict[str, npt.NDArray[np.generic]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            about = _about((file.metadata() or {}).get("about", "null"))
            names = [name for name in file.keys() if wanted is None or name.startswith(wanted)]  # noqa: SIM118
            return about, {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, ValueError, RecursionError, MemoryError) as failure:
        raise RunError(
            f"{path} is not a serving bundle: {str(failure).splitlines()[0]}", _REMEDY
        ) from None


def _about(text: str) -> About:
    """Raises ValueError with one line that says what is wrong."""
    try:
        content = json.loads(text)
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(f"its format is {found!r}, this version of fedrec reads {FORMAT!r}")
        return About.model_validate_json(text, strict=True)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_context=False)[0]
        raise ValueError(
            f"about.{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}, found "
            f"{first['input']!r:.100}"
        ) from None


def _bundle(sha256: str, about: About, arrays: dict[str, npt.NDArray[np.generic]]) -> Bundle:
    from fedrec.serving.user_map import Sizes  # a server does without

    take: dict[str, Any] = arrays
    for name, dtype in _DTYPES.items():
        if str(take[name].dtype) != dtype:
            raise ValueError(f"{name} has type {take[name].dtype}, expected {dtype}")
    users = UserMap.of_arrays(arrays)
    ids, titles = (
        Texts(take.pop(f"{name}.content"), take.pop(f"{name}.ptr")) for name in ("ids", "titles")
    )
    named = {n: take.pop(n) for n in ("items", "bias", "categories", "rows", "mean", "covariance")}
    more = {name: array for name, array in arrays.items() if not name.startswith("users.")}
    bundle = Bundle(sha256[:16], sha256, about, users, ids=ids, titles=titles, more=more, **named)
    _check(users, bundle.items, bundle.bias, bundle.categories)
    m = bundle.size
    B = bundle.coefficients
    if not (ids.whole and titles.whole):
        raise ValueError("its ids or titles are not whole strings")
    if (len(ids), len(titles), bundle.mean.shape, bundle.covariance.shape) != (m, m, (B,), (B, B)):
        raise ValueError("its arrays do not have one entry an item, or one a coefficient")
    if (sizes := Sizes.of(bundle.more)) is not None and (
        sizes.mean.shape[1],
        sizes.matrix.shape[2],
    ) != (B, B):
        raise ValueError(
            f"groups of sizes read {sizes.mean.shape[1]} numbers into "
            f"{sizes.matrix.shape[2]}, expected {B} into {B}"
        )
    if about.form == "additive":
        if bundle.rows.shape != (m, B):
            raise ValueError(f"rows have shape {bundle.rows.shape}, expected {(m, B)}")
        _check_sensitivity(bundle.rows.astype(np.int64), about)
    return bundle


def _check_sensitivity(rows: npt.NDArray[np.int64], about: About) -> None:
    """A device draws its noise for what the file states, so the file must not state less than its
    rows can do.

    2 max ||row||, or sqrt2 times it where no entry is negative, without the columns that are the
    same in all rows, and the longest row are enough; only where less is stated are all pairs looked
    at.
    """
    # brings the accountants, which a server does without
    from fedrec.privacy.bounded_mean import BITS, diameter

    stated = about.sensitivity * about.history * 2.0**BITS
    numbers = rows.astype(np.float64)
    longest = math.sqrt(float((numbers**2).sum(1).max(initial=0.0)))
    if longest > 2.0**BITS:  # squares of longer rows are not exact in double precision
        raise ValueError(f"a row has length {longest * 2.0**-BITS:g}, expected at most 1")
    # what is the same in all rows is in no difference
    varying = numbers[:, np.ptp(numbers, axis=0) > 0] if len(rows) else numbers
    apart = math.sqrt(float((varying**2).sum(1).max(initial=0.0))) * (
        2 if varying.min(initial=0) < 0 else math.sqrt(2)
    )
    # integers, whose root and product by a power of two round
    if stated < max(longest, apart) and stated * (1 + 1e-12) < diameter(rows):
        raise ValueError(
            "its rows can move coefficients by "
            f"{diameter(rows) / about.history * 2.0**-BITS:g}, more than it states"
        )


def _check(users: UserMap, *of_items: npt.NDArray[np.generic]) -> None:
    items, bias, categories = of_items
    m, D = items.shape
    if (users.linear.shape[1], bias.shape, categories.shape) != (D, (m,), (m,)):
        raise ValueError(
            f"items {items.shape}, bias {bias.shape}, categories {categories.shape} and "
            "users do not fit together"
        )
    # without a copy of all, as flags
    if not np.isfinite([items.sum(dtype=np.float64), bias.sum(dtype=np.float64)]).all():
        raise ValueError("a vector that is not finite")
