"""Questions to a trained model from Python: lists, predictions and vectors, for people of the
training set or with histories of their own. Nothing is trained, and nothing leaves the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import polars as pl

from fedrec.api.datasets import TestSet
from fedrec.api.habits import Answering
from fedrec.api.histories import History, id_column, require_no_misspelling
from fedrec.api.promises import PrivacyGuarantee
from fedrec.api.released import Released, Seen, ids_of, require_length, require_seen
from fedrec.data.frames import polars_frame
from fedrec.data.interactions import Dataset as Source
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Split
from fedrec.errors import DataError, RunError, SettingsError
from fedrec.numerics.threads import one_blas_thread


class Asked(Answering):
    """A model that answers once it is trained or loaded."""

    _released: Released | None = None
    _evaluated: tuple[Source, Split] | None = None

    @property
    def released(self) -> Released:
        """What a trained model consists of. Raises RunError before `fit`."""
        if self._released is None:
            raise RunError(
                f"this {type(self).__name__} is not trained",
                "Call model.fit(train) first, or fedrec.load(folder).",
            )
        return self._released

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised of the model. Raises RunError before `fit`."""
        return self.released.guarantee

    @property
    def item_ids(self) -> tuple[Any, ...]:
        """Ids of the items in the order of the model's rows, as the training data has them."""
        return tuple(self.released.ids("item", self.released.item_ids))

    @property
    def item_factors(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(m, D) vectors of the items, in the order of `item_ids`.

        >>> import fedrec
        >>> model = fedrec.ItemItem(noise="seeded").fit(fedrec.Dataset.planted(kind="clicks"))
        >>> scores = model.item_factors @ model.user_factors(["3", "14"])
        >>> scores.shape == (len(model.item_ids),)
        True
        """
        return self.released.item_vectors

    def user_factors(
        self, history: History | None = None, *, users: Any = None, histories: Any = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(D,) vector of one user, or (n, D) of many, given as in `recommend`; dot products with
        `item_factors` are the scores that order a list.

        >>> import fedrec
        >>> model = fedrec.ItemItem(noise="seeded").fit(fedrec.Dataset.planted(kind="clicks"))
        >>> model.user_factors(histories={"ann": ["3"], "bob": []}).shape[0]
        2
        """
        with one_blas_thread():
            events, names = self._events(users, history, histories, "user_factors")
            vectors = self.released.vectors(events)
        return vectors[0] if names is None else vectors

    def recommend(
        self,
        users: Any = None,
        *,
        history: History | None = None,
        histories: Any = None,
        k: int = 10,
        items: Any = None,
        seen: Seen = "drop",
        exclude: Any = None,
        filter: Any = None,
    ) -> pl.DataFrame:
        """The k best items, for one user or for many. Nothing is trained, and nothing leaves this
        process.

        Args:
            users: Id of a user of the training set, or a list of such ids; their training rows are
                their history.
            history: Item ids of one user, new or known; of a model of ratings also a mapping of ids
                to ratings, a pandas Series with an index of items, or a frame. An item without a
                rating counts as rated at the top of the scale. Items that the model does not have
                are left out with an `UnknownIdsWarning`. Raises DataError where it has none of
                them, and where an id is the model's but for its type or blanks (3.0 for 3).
            histories: The same for many users, by the user's id; or a frame with a column of users.
            k: Length of each list.
            items: Ids of the only items that are ranked.
            seen: "drop" leaves items of the history out of its list, "keep" lists them too.
            exclude: Ids of items that are not listed.
            filter: A function of an id, true of items that may be listed; or ids, as `items`.

        Returns:
            Columns user (for many), rank, item, title and score. Ids have the type in which the
            training data has them.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
        >>> model.recommend(history=["3", "14"], k=5)["item"].len()
        5
        >>> model.recommend(histories={"ann": ["3"], "bob": []}, k=5)["user"].to_list()[::5]
        ['ann', 'bob']
        >>> model.recommend(history=["3"], items=["3", "14", "7"], seen="keep")["item"].len()
        3
        """
        require_length(k)
        require_seen(seen)
        allowed = self.released.allowed(exclude, filter, items)
        with one_blas_thread():
            events, names = self._events(users, history, histories, "recommend")
            return self.released.lists(events, names, k, allowed, drop_seen=seen == "drop")

    def explain(
        self, item: Any, *, history: History | None = None, users: Any = None
    ) -> pl.DataFrame:
        """Which events of one person raised an item, and by how much.

        A click's part is what it adds to the person's vector, given the others. Of ratings, and of
        a paper's method, it is what the score gains when the event joins the others: a mean over
        orders in which they may join.

        Args:
            item: Id of the item, listed or not.
            history: Of one person, as in `recommend`.
            users: Id of a user of the training set.

        Returns:
            Columns item, title and contribution, the largest first; the last row, without an item,
            is what everybody's score has. The contributions add up to the item's score.

        Raises:
            DataError: The model does not have the item.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.ItemItem(epsilon=5, noise="seeded").fit(data)
        >>> parts = model.explain("7", history=["3", "14"])
        >>> score = model.recommend(history=["3", "14"], items=["7"])["score"][0]
        >>> abs(parts["contribution"].sum() - score) < 1e-6
        True
        """
        row = self.released.row(item)
        if not isinstance(users, str | Integral | None):
            raise SettingsError(f"users = {users!r} is no id", "Explain one person's list.")
        with one_blas_thread():
            events, _ = self._events(users, history, None, "explain")
            return self.released.explained(events, row)

    def _events(
        self, users: Any, history: Any, histories: Any, asker: str
    ) -> tuple[Interactions, list[Any] | None]:
        """Histories as events, and the users' ids; None for one user."""
        asked = {"history": history, "histories": histories, "users": users}
        given = [name for name, value in asked.items() if value is not None]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise SettingsError(
                f"{asker} needs history, histories or users; found {said}",
                "Give exactly one of them.",
            )
        if history is not None:
            return self.released.events([self.released.histories.entries(history)]), None
        if histories is not None:
            many = self.released.histories.by_user(histories)
            return self.released.events(list(many.values())), list(many)
        if isinstance(users, str | Integral):
            return self._history_of([str(users)]), None
        if isinstance(users, Mapping):
            raise DataError(
                "users is a mapping, and users are asked for by id",
                "Give histories of one's own as histories=.",
            )
        known = ids_of(users, "users")
        return self._history_of(known), self.released.ids("user", known)

    def similar_items(self, item: Any, *, k: int = 10) -> pl.DataFrame:
        """The k items most similar to one, by the cosine of their vectors; columns rank, item,
        title and similarity. Of a list of items also a column of, with each one's own k.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.ItemItem(noise="seeded").fit(data)
        >>> model.similar_items("3", k=2).columns
        ['rank', 'item', 'title', 'similarity']
        >>> model.similar_items(["3", "14"], k=2)["of"].to_list()
        ['3', '3', '14', '14']
        """
        if isinstance(item, str | Real):
            return self.released.similar(item, k)
        many = ids_of(item, "item")
        if not many:
            raise DataError("similar_items was given no item", "Give one id or a list of them.")
        found = [self.released.similar(one, k) for one in many]
        of = id_column("of", self.released.ids("item", many))
        columns = of.gather(np.repeat(np.arange(len(many)), [len(one) for one in found]))
        return pl.concat(found).insert_column(0, columns)

    def predict(
        self,
        pairs: Any = None,
        items: Iterable[Any] | None = None,
        *,
        history: History | None = None,
    ) -> Any:
        """Predicted ratings, or scores of clicks.

        Args:
            pairs: A frame of users of the training set and items, in the columns of the training
                data or such as user_id and item_id; or a `TestSet`. With `items`: the id of a user
                of the training set, or an id for each item.
            items: Ids of the items to predict, or one, with a user, users or a history.
            history: With `items`: one user's history, as in `recommend`.

        Returns:
            The frame with a column prediction; of a test set its users and items, in columns of the
            training data's names, and prediction. Of users and items, columns user, item and
            prediction; of a history item and prediction.

        >>> import fedrec
        >>> model = fedrec.ItemBias(noise="seeded").fit(fedrec.Dataset.planted("small"))
        >>> model.predict(history={"3": 5, "14": 1}, items=["7", "9"]).columns
        ['item', 'prediction']
        """
        if isinstance(pairs, TestSet):
            return self._predict_test(pairs)
        if isinstance(items, str | Integral):
            items = [items]
        if pairs is not None and history is not None:
            raise SettingsError("predict was given users and a history", "Give one of them.")
        if pairs is not None and items is not None:
            return self._predict_each(pairs, items)
        if pairs is not None:
            frame = polars_frame(pairs)
            columns = {
                role: self.released.histories.column(role, frame, "table")
                for role in ("user", "item")
            }
            users = [str(user) for user in frame[columns["user"]].to_list()]
            known = list(dict.fromkeys(users))
            place = {user: row for row, user in enumerate(known)}
            values = self.released.predict(
                self._history_of(known),
                [place[user] for user in users],
                frame[columns["item"]].to_list(),
            )
            return frame.with_columns(pl.Series("prediction", values))
        if history is None or items is None:
            raise SettingsError(
                "predict needs pairs, users and items, or history and items",
                "For example model.predict(history={'50': 5}, items=['181']).",
            )
        wanted = ids_of(items, "items")
        events = self.released.events([self.released.histories.entries(history)])
        values = self.released.predict(events, [0] * len(wanted), wanted)
        found = self.released.ids("item", wanted)
        return pl.DataFrame({"item": found, "prediction": values})

    def _predict_each(self, users: Any, items: Iterable[Any]) -> pl.DataFrame:
        """User, item and prediction, a row for each item, of one user or of as many as items."""
        wanted = ids_of(items, "items")
        one = isinstance(users, str | Integral)
        known = [str(users)] * len(wanted) if one else ids_of(users, "users")
        if len(known) != len(wanted):
            raise SettingsError(
                f"predict was given {len(known)} users and {len(wanted)} items",
                "Give one user for all items, or a user for each.",
            )
        found: pl.DataFrame = self.predict(pl.DataFrame({"user": known, "item": wanted}))
        typed = {role: self.released.ids(role, found[role]) for role in ("user", "item")}
        return found.with_columns(**{role: pl.Series(ids) for role, ids in typed.items()})

    def _predict_test(self, test: TestSet) -> pl.DataFrame:
        """User, item and prediction, a row for each test event."""
        if test.source.catalogue.item_ids != self.released.item_ids:
            raise DataError(
                "the test set has other items than the model",
                "Give the second of what the split returned whose first was trained on.",
            )
        rows = test.to_frame()
        rows = rows.select(rows.columns[:2])
        fold = test.split.test
        values = self.released.predict(
            fold.history, fold.targets.users.tolist(), rows.to_series(1).to_list()
        )
        return rows.with_columns(pl.Series("prediction", values))

    def _history_of(self, users: Sequence[str]) -> Any:
        _ = self.released  # an untrained model says so
        if self._evaluated is None:
            raise RunError(
                "this model was loaded, and a file holds nobody's history",
                "Give history=[...] or histories={...}.",
            )
        source, split = self._evaluated
        ids = source.catalogue.user_ids
        rows = range(len(ids)) if split.train_users is None else split.train_users.tolist()
        place = {ids[number]: row for row, number in enumerate(rows)}
        if unknown := [user for user in users if user not in place]:
            require_no_misspelling(unknown[0], place, "the training set has no user")
            raise DataError(
                f"the training set has no user {unknown[0]!r}, and ids such as {ids[rows[0]]!r}",
                "Give history=[...] for a new user.",
            )
        events = split.train.users_subset(np.array([place[user] for user in users], np.int64))
        return replace(events, num_items=len(self.released.item_ids), item_words=None)
