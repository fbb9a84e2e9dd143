"""A trained model with what is public about it: catalogue, kind of data and guarantee; lists,
similar items and predictions from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

import numpy as np
import polars as pl

from fedrec.api.histories import (
    Entry,
    Histories,
    id_column,
    one_id,
    require_no_misspelling,
    warn_of_unknown,
)
from fedrec.api.promises import PrivacyGuarantee
from fedrec.arrays import Float64s
from fedrec.data.added_items import AddedItems
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import (
    DataError,
    DataWarning,
    GenericListWarning,
    RunError,
    SettingsError,
    UnusedColumnsWarning,
    warn,
)
from fedrec.evaluation.toplists import dot_product, nearest, top_items
from fedrec.factorization.explaining import contributions
from fedrec.factorization.later_items import extended
from fedrec.factorization.rankers import Model, predictor, ranker_of
from fedrec.factorization.released import load, trained_items
from fedrec.output_folders import clear, require_ours
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import read_json

FORMAT = "fedrec-training/1"
FILE = "training.json"


@dataclass(frozen=True)
class Released:
    """A model and what is public about it. params: of the estimator that made it; recipe: its name
    in a scenario; columns: names of the training data's columns by role, where it was fitted here;
    whole: roles whose ids came as numbers.
    """

    model: Model
    item_ids: tuple[str, ...]
    titles: tuple[str, ...]
    kind: Kind
    value_range: tuple[float, float]
    guarantee: PrivacyGuarantee
    recipe: str
    settings: Mapping[str, Any]
    columns: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()

    @property
    def trained(self) -> int:
        """How many items training knew; those after them came later."""
        return trained_items(self.model, len(self.item_ids))

    def with_items(self, added: AddedItems, X: Float64s) -> Released:
        """With new items after those of training; X: what is known of all (`released`)."""
        model = extended(self.model, X, added.described)
        whole = self.whole if all(map(str.isdigit, added.ids)) else self.whole - {"item"}
        told = dict.fromkeys((*self.guarantee.not_covered, *added.not_covered))
        guarantee = replace(self.guarantee, not_covered=tuple(told))
        return replace(
            self,
            model=model,
            item_ids=added.ids,
            titles=added.titles,
            whole=whole,
            guarantee=guarantee,
        )

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each item id."""
        return {item: row for row, item in enumerate(self.item_ids)}

    def row(self, item: Any) -> int:
        """Raises DataError on an unknown id, with a near one."""
        found = self.rows.get(str(item))
        if found is not None:
            return found
        require_no_misspelling(item, self.rows)
        near = get_close_matches(str(item), self.item_ids, n=1)
        raise DataError(
            f"the model has no item {str(item)!r}",
            (
                f"{f'Did you mean {near[0]!r}? ' if near else ''}Its {len(self.item_ids):,} ids "
                "are in model.item_ids."
            ),
        )

    def ids(self, role: str, known: Iterable[str]) -> list[Any]:
        """Ids of users or items in the type in which the training data has them."""
        return [*map(int, known)] if role in self.whole else [*known]

    def allowed(
        self, exclude: Any, filter: Any, items: Any = None
    ) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """(m,) which items may be listed, None for all: without those of `exclude`, of `items`
        alone, and of `filter` alone, which holds ids or is a function of an id."""
        if exclude is None and filter is None and items is None:
            return None
        chosen = np.ones(len(self.item_ids), np.bool_)
        if items is not None:
            chosen &= self._among(items, "items")
        if callable(filter):
            chosen &= [bool(filter(item)) for item in self.ids("item", self.item_ids)]
        elif filter is not None:
            chosen &= self._among(filter, "filter")
        return chosen if exclude is None else chosen & ~self._among(exclude, "exclude")

    def _among(self, given: Any, what: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        own = [item for item, _ in self.histories.entries(given, f"argument {what}")]
        warn_of_unknown([own], self.rows, self.item_ids[0], what=f"argument {what}")
        chosen = np.zeros(len(self.item_ids), np.bool_)
        chosen[[self.rows[str(item)] for item in own if str(item) in self.rows]] = True
        return chosen

    @property
    def histories(self) -> Histories:
        """The reader of histories, which knows the columns of the training data."""
        return Histories(self.columns)

    def events(self, histories: Sequence[Sequence[Entry]]) -> Interactions:
        """Histories as events; items that the model does not have are left out, with a warning.

        Of ratings, an item without one counts as liked. Raises DataError where nothing of all is
        known, or an item has two ratings."""
        warn_of_unknown(
            [[item for item, _ in own] for own in histories], self.rows, self.item_ids[0]
        )
        if not any(histories):
            what = "the history is" if len(histories) == 1 else "all histories are"
            warn(GenericListWarning(f"{what} empty: the answer is everybody's"))
        given = any(value not in (None, 1) for own in histories for _, value in own)
        if given and not KINDS[self.kind].rated:
            said = "the ratings of the history are not used: the model knows only clicks"
            warn(UnusedColumnsWarning(said))
        users = list[int]()
        items = list[int]()
        values = list[float]()
        for user, history in enumerate(histories):
            rated = dict[int, float]()
            for item, value in history:
                number = self._value(item, value)
                if (row := self.rows.get(str(item))) is None:
                    continue
                if rated.setdefault(row, number) != number:
                    raise DataError(
                        f"the history rates item {str(item)!r} {rated[row]:g} and {number:g}",
                        "Give each item one rating.",
                    )
            users += [user] * len(rated)
            items += rated
            values += rated.values()
        return Interactions.from_columns(
            np.array(users, np.int64),
            np.array(items, np.int64),
            np.array(values, np.float64),
            num_users=len(histories),
            num_items=len(self.item_ids),
            value_range=self.value_range,
            kind=self.kind,
            times=np.arange(len(items)),  # a list is in the order of its clicks
        )

    def _value(self, item: Any, value: Any) -> float:
        """A rating on the scale, or 1 for a click. Raises DataError on another value."""
        low, high = self.value_range
        if not KINDS[self.kind].rated:
            if value is None or float(value) > 0:
                return 1.0
            raise DataError(
                f"the history says {value!r} of item {str(item)!r}, and the model knows clicks",
                "Give the ids of what was clicked or liked.",
            )
        rating = high if value is None else float(value)
        if isinstance(value, bool) or not low <= rating <= high:
            raise DataError(
                f"the rating {value} of item {str(item)!r} is outside {low:g} to {high:g}",
                "Give ratings on that scale.",
            )
        return rating

    def vectors(self, history: Interactions) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(n, D) vectors of users, whose dot products with those of items order lists."""
        return np.asarray(ranker_of(self.model).user_vectors(history), np.float32)

    @property
    def item_vectors(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(m, D), in the order of `item_ids`."""
        return np.asarray(ranker_of(self.model).item_vectors, np.float32)

    def lists(
        self,
        history: Interactions,
        names: Sequence[Any] | None,
        k: int,
        allowed: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
        *,
        drop_seen: bool = True,
    ) -> pl.DataFrame:
        """The k best allowed items of each user, those of the history where they are not dropped;
        columns user (where named), rank, item, title, score."""
        products = dot_product(self.vectors(history), self.item_vectors)

        def scores(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float32]]:
            block = products(start, stop)
            if allowed is not None:
                block[:, ~allowed] = -np.inf
            return block

        dropped = history if drop_seen else history.select(np.zeros(len(history), np.bool_))
        best = top_items(scores, history=dropped, k=min(k, len(self.item_ids)))
        if empty := int((best < 0).all(axis=1).sum()):
            by = "the history leaves" if allowed is None else "the arguments leave"
            lists = "the list is empty" if len(best) == 1 else f"{empty:,} lists are empty"
            warn(DataWarning(f"{lists}: {by} none of the {len(self.item_ids):,} items"))
        users, places = np.nonzero(best >= 0)
        items = best[users, places]
        values = (
            np.concatenate([scores(u, u + 1)[0][best[u][best[u] >= 0]] for u in range(len(best))])
            if len(best)
            else np.zeros(0)
        )
        columns: dict[str, Any] = (
            {} if names is None else {"user": id_column("user", names)[users.tolist()]}
        )
        return pl.DataFrame(
            {
                **columns,
                "rank": places + 1,
                # an empty list has the same types, so that frames can be put below each other
                "item": id_column("item", self.ids("item", self.item_ids))[items],
                "title": pl.Series([self.titles[j] for j in items], dtype=pl.String),
                "score": values.astype(np.float64),
            }
        )

    def explained(self, history: Interactions, item: int) -> pl.DataFrame:
        """What each event of one user adds to the score of an item, and last what everybody's score
        has; columns item, title, contribution."""
        parts, everybodys = contributions(self.model, history, item)
        order = np.argsort(-parts, kind="stable")
        items = history.items[order]
        known = id_column("item", self.ids("item", self.item_ids))[items]
        titles = pl.Series("title", [self.titles[j] for j in items], dtype=pl.String)
        own = pl.DataFrame([known, titles, pl.Series("contribution", parts[order])])
        rest = {"item": None, "title": "everybody's score", "contribution": everybodys}
        return pl.concat([own, pl.DataFrame([rest], schema=own.schema)])

    def similar(self, item: Any, k: int) -> pl.DataFrame:
        """The k items of largest cosine with an item; columns rank, item, title, similarity.

        Raises RunError where all vectors have one direction, as where counts alone are known."""
        require_length(k)
        row = self.row(item)
        vectors = np.asarray(ranker_of(self.model).item_vectors, np.float64)
        if np.linalg.matrix_rank(vectors) < 2:
            raise RunError(
                "this model knows how popular items are, but not which of them are alike",
                "Train fedrec.ItemItem or fedrec.MatrixFactorization, or at a larger epsilon.",
            )
        (found,) = nearest(vectors, np.array([row]), k=k)
        ids = self.ids("item", [self.item_ids[j] for j in found.items])
        titles = [self.titles[j] for j in found.items]
        return pl.DataFrame(
            {
                "rank": range(1, len(ids) + 1),
                "item": ids,
                "title": titles,
                "similarity": found.similarities,
            }
        )

    def predict(
        self, history: Interactions, users: Sequence[int], items: Iterable[Any]
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(n,) ratings, or scores of clicks, of pairs of a row of `history` and an item id."""
        rows = np.array([self.row(item) for item in items], np.int64)
        return predictor(self.model, history)(np.asarray(users, np.int64), rows)


Seen = Literal["drop", "keep"]
"""What becomes of a history's items in its list."""


def require_seen(seen: Any) -> None:
    """Raises SettingsError where `seen` says neither."""
    if seen not in get_args(Seen):
        raise SettingsError(
            f"seen = {seen!r} is neither 'drop' nor 'keep'",
            "Say seen='keep' to list items of the history too.",
        )


def require_length(k: Any) -> None:
    """Raises SettingsError where k is no length of a list."""
    if not isinstance(k, Integral) or isinstance(k, bool) or k < 1:
        raise SettingsError(
            f"k must be a whole number, at least 1, found {k!r}", "Give the length of the list."
        )


def ids_of(given: Any, what: str) -> list[str]:
    """Ids as texts. Raises DataError where they are one text, whose letters are no ids, or no
    list."""
    if isinstance(given, str | bytes):
        raise DataError(f"{what} is one text, {given!r}", "Give a list of ids.")
    one = getattr(given, "ndim", 1) == 0  # an array of no dimension calls itself iterable
    if one or not isinstance(given, Iterable) or hasattr(given, "columns"):
        raise DataError(f"{what} is a {type(given).__name__}, no list", "Give a list of ids.")
    return [str(one_id(one)) for one in given]


def copied(source: Path, target: Path) -> None:
    """Copy what fedrec wrote of a model in the place of another; nothing where it lies there."""
    if source.resolve() != target.resolve():
        files = require_ours(source, "model")
        clear(target, "model")
        for path in files:
            place = target / path.relative_to(source)
            place.parent.mkdir(exist_ok=True)
            shutil.copy(path, place)


@dataclass(frozen=True)
class Kept:
    """Writes a trained model to a folder. It is never pickled: a pickle can run code, and this one
    would hold everybody's rows."""

    write: Callable[[Path], None]

    def __call__(self, folder: Path) -> None:
        """Write it."""
        self.write(folder)

    def __deepcopy__(self, memo: object) -> Kept:
        return self

    def __reduce__(self) -> NoReturn:
        raise RunError(
            "a trained model is not pickled: the pickle would hold the rows it was trained on",
            "Use model.save(folder) and fedrec.load(folder).",
        )


def read_released(folder: Path) -> Released:
    """The model of a folder, or of the folder `model` in a run folder.

    Raises RunError where it is none."""
    folder = (
        folder
        if (folder / "manifest.json").exists() or not (folder / "model").is_dir()
        else folder / "model"
    )
    if not (folder / "manifest.json").exists():
        raise RunError(
            f"{folder} holds no model", "Give a folder that model.save or `fedrec simulate` wrote."
        )
    model, manifest = load(folder)
    if not (folder / FILE).exists():
        raise RunError(
            f"{folder} holds no {FILE}: an older version wrote it",
            "Train again, or serve it with `fedrec serve`.",
        )
    facts = read_json(folder / FILE)
    if facts.get("format") != FORMAT:
        raise RunError(
            f"{folder / FILE} is of format {facts.get('format')!r}; expected {FORMAT!r}",
            "Read it with the version that wrote it.",
        )
    promised = dict(manifest["guarantee"])
    promised["epsilon"] = float(promised["epsilon"])  # an infinite one is a string
    ids, (low, high) = tuple(manifest["items"]), map(float, facts["value_range"])
    accountants = {name: float(value) for name, value in facts["accountants"].items()}
    guarantee = PrivacyGuarantee(
        Guarantee(**promised),
        manifest["noise"],
        accountants,
        tuple(facts.get("not_covered", ())),
        tuple(facts.get("spent", ())),
    )
    titles = tuple(facts["titles"] or ids)
    kind = cast(Kind, facts["kind"])
    whole = frozenset({"item"} if facts.get("item_ids") == "numbers" else ())
    return Released(
        model,
        ids,
        titles,
        kind,
        (low, high),
        guarantee,
        manifest["recipe"],
        facts["settings"],
        whole=whole,
    )
