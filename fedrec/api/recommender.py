"""A recommender that is fitted, asked and saved: what all estimators share."""

from __future__ import annotations

import copy
import inspect
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
from rich.console import Console

from fedrec.api.callbacks import Callback, require_callbacks
from fedrec.api.datasets import Dataset, TestSet, TrainingSet, undivided
from fedrec.api.evaluating import evaluate
from fedrec.api.histories import History
from fedrec.api.parameters import Parameters
from fedrec.api.promises import PrivacyGuarantee
from fedrec.api.released import Kept, Released, ids_of, require_length
from fedrec.api.tables import html_table
from fedrec.certificates.writing import ReleasedRound
from fedrec.data.added_items import added_items
from fedrec.data.frames import polars_frame
from fedrec.data.interactions import Dataset as Source
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS
from fedrec.data.splits import Split
from fedrec.errors import DataError, RunError, SettingsError
from fedrec.factorization.new_items import public_directions
from fedrec.numerics.threads import one_blas_thread
from fedrec.run import statement
from fedrec.run.data.budget import budget_of
from fedrec.run.data.datasets import public_facts
from fedrec.run.job import loopback
from fedrec.run.training import RoundRecord, Trained, Work, train_one
from fedrec.settings import Scenario, validated
from fedrec.settings_keys import nested
from fedrec.storage import writing

Noise = Literal["system", "seeded"]


class Recommender(Parameters):
    """A recommender that is trained with differential privacy. Use one of its subclasses.

    Everything is computed by the functions of `fedrec simulate`: the same data, seed and parameters
    give the same bytes with seeded noise.

    >>> import fedrec
    >>> [kind.__name__ for kind in fedrec.Recommender.__subclasses__()]
    ['MatrixFactorization', 'ItemItem', 'Popularity', 'ItemBias']
    """

    recipe: ClassVar[str] = ""

    def __init__(
        self,
        *,
        epsilon: float = 5.0,
        delta: float = 1e-5,
        noise: Noise = "system",
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.noise = noise
        self.seed = seed
        self.settings = settings
        self._released: Released | None = None
        self._evaluated: tuple[Source, Split] | None = None
        self._keep: Kept | None = None

    def scenario(self) -> Scenario:
        """These parameters as a scenario, with every key at its value.

        Raises SettingsError on a key that is unknown or out of range.

        >>> import fedrec
        >>> scenario = fedrec.ItemBias(epsilon=3).scenario()
        >>> scenario.recipe, scenario.privacy.epsilon
        ('dp-bias', 3.0)
        """
        table = nested({} if self.settings is None else self.settings)
        for key, value in self._keys().items():
            place, _, last = key.rpartition(".")
            inside = table.setdefault(place, {}) if place else table
            inside.setdefault(last, value)
        return validated(table, source=type(self).__name__)

    def _keys(self) -> dict[str, Any]:
        """Scenario keys that the parameters decide."""
        privacy = {
            "privacy.epsilon": self.epsilon,
            "privacy.delta": self.delta,
            "privacy.noise": self.noise,
        }
        return {"recipe": self.recipe, "seed": self.seed, **privacy}

    def fit(
        self,
        train: TrainingSet | Dataset,
        *,
        progress: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train, and return the model.

        Args:
            train: The first of what `Dataset.split` returns, for a model that is measured. Of a
                whole `Dataset` all rows are trained on, which leaves nothing to measure on; rows
                given as `validation` and `test` are not.
            progress: Show a bar with the time left, in a terminal or a notebook.
            callbacks: Called with a dictionary after every round and at the end:
                `fedrec.JsonLines("rounds.jsonl")`, `fedrec.MLflow()`.

        Raises:
            PrivacyError: delta promises nothing among so few users, or a budget over all runs on
                this data would be passed.
            DataError: The data cannot be trained on with these parameters.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
        >>> model.guarantee.epsilon
        2.0
        """
        chosen = undivided(train) if isinstance(train, Dataset) else train
        if not isinstance(chosen, TrainingSet):
            rows = (
                "coo = matrix.tocoo(); Dataset.from_frame({'user': coo.row, 'item': coo.col})"
                if hasattr(train, "tocoo")
                else "Dataset.from_frame(frame)"
            )
            raise DataError(
                f"fit needs a training set, found a {type(train).__name__}",
                f"Give data.split()[0], or {rows}.",
            )
        told = require_callbacks(callbacks)
        scenario = self.scenario()
        facts = public_facts(scenario, chosen.source, chosen.split)
        budget = budget_of(scenario.privacy, chosen.source.provenance.files, chosen.source)
        console = Console(stderr=True, quiet=not progress)

        def on_round(record: RoundRecord) -> None:
            for callback in told:
                callback({"event": "round", "epsilon": scenario.privacy.epsilon, **vars(record)})

        with tempfile.TemporaryDirectory(prefix="fedrec-fit-") as folder, one_blas_thread():
            work = Work(facts, chosen.split, Path(folder), console, loopback, budget, on_round)
            trained = train_one(scenario, work, Path(folder))
            spent = statement.spent_words(budget)
            self._set(trained, tuple(trained.released()), scenario, chosen, spent)
        for callback in told:
            callback({"event": "fit", "recipe": scenario.recipe, **self.guarantee.as_dict()})
        return self

    def _set(
        self,
        trained: Trained,
        released: tuple[ReleasedRound, ...],
        scenario: Scenario,
        train: TrainingSet,
        spent: Sequence[str],
    ) -> None:
        catalogue = train.source.catalogue
        events = train.split.train
        plan = trained.prepared.plan
        guarantee = PrivacyGuarantee.of(
            plan.guarantee,
            scenario.privacy.noise,
            trained.costs,
            not_covered=train.split.not_covered,
            spent=spent,
        )
        ids = catalogue.item_ids
        titles = catalogue.titles or catalogue.item_ids
        chosen = scenario.model_dump(mode="json")
        self._released = Released(
            trained.model,
            ids,
            titles,
            events.kind,
            events.value_range,
            guarantee,
            scenario.recipe,
            chosen,
            train.source.columns,
            train.source.whole,
        )
        self._evaluated = train.source, train.split
        facts = public_facts(scenario, train.source, train.split)

        def keep(folder: Path) -> None:
            from fedrec.run.model_folder import keep_model  # with serving, which a fit does without

            keep_model(
                folder,
                scenario,
                train.source,
                facts,
                trained,
                name=f"{scenario.recipe}-{scenario.digest()[:10]}",
                not_covered=train.split.not_covered,
                released=released,
                spent=spent,
            )

        self._keep = Kept(keep)

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
        exclude: Any = None,
        filter: Any = None,
    ) -> pl.DataFrame:
        """The k best items that are not in the history, for one user or for many. Nothing is
        trained, and nothing leaves this process.

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
            exclude: Ids of items that are not listed, beside those of the history.
            filter: Ids of the only items that may be listed, or a function of an id.

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
        """
        require_length(k)
        with one_blas_thread():
            events, names = self._events(users, history, histories, "recommend")
            return self.released.lists(events, names, k, self.released.allowed(exclude, filter))

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
        known = ids_of(users, "users")
        return self._history_of(known), self.released.ids("user", known)

    def with_items(
        self, items: Any, *, similar_items: Any = None, item_vectors: Any = None
    ) -> Self:
        """This model with items that came after training. Nothing is trained, and no privacy is
        spent: a new item's vector is what its public side predicts, by the known items' vectors.

        Args:
            items: Today's catalogue with public features, known items and new ones: a `Dataset`, a
                frame or the path of a table, with the columns that training had.
            similar_items: A frame or path of public pairs, as in `Dataset.from_frame`.
            item_vectors: A frame or path of public vectors, as in `Dataset.from_frame`.

        Returns:
            A model that recommends, is saved and served as this one; new items are last.

        Raises:
            DataError: The table names no item that the model knows, or nothing tells items apart.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> train, test = data.split("new-items")
        >>> model = fedrec.MatrixFactorization(noise="seeded").fit(train).with_items(data)
        >>> len(model.item_ids) - train.source.interactions.num_items
        11
        >>> found = fedrec.evaluate(model, test, k=5, controls=False)  # lists of new items alone
        """
        released = self.released
        m = released.trained
        added = added_items(
            released.item_ids[:m],
            released.titles[:m],
            items.source if isinstance(items, Dataset) else items,
            similar_items=similar_items,
            item_vectors=item_vectors,
            item=released.columns.get("item"),
        )
        keep = self._keep
        assert keep is not None

        def kept(folder: Path) -> None:
            from fedrec.run.model_folder import add_items  # with serving

            keep(folder)
            add_items(folder, added)

        found = copy.copy(self)
        found._released = released.with_items(added, public_directions(added.features))
        found._keep = Kept(kept)
        return found

    def similar_items(self, item: Any, *, k: int = 10) -> pl.DataFrame:
        """The k items most similar to one, by the cosine of their vectors; columns rank, item,
        title and similarity.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.ItemItem(noise="seeded").fit(data)
        >>> model.similar_items("3", k=2).columns
        ['rank', 'item', 'title', 'similarity']
        """
        return self.released.similar(item, k)

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
            items: Ids of the items to predict, with a user, users or a history.
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

    def score(self, test: TestSet) -> float:
        """What a search over parameters maximises: of ratings the RMSE with a minus, of clicks
        NDCG@10. Each model that was trained for a search has spent its own epsilon.

        >>> import fedrec
        >>> train, test = fedrec.Dataset.planted("small").split()
        >>> round(fedrec.ItemBias(noise="seeded").fit(train).score(test), 2)
        -0.85
        """
        rated = KINDS[self.released.kind].rated
        found = evaluate(self, test, k=(10,), controls=False, ranking=not rated).headline
        return -found["rmse"] if rated else found["ndcg@10"]

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
            raise DataError(
                f"the training set has no user {unknown[0]!r}, and ids such as {ids[rows[0]]!r}",
                "Give history=[...] for a new user.",
            )
        events = split.train.users_subset(np.array([place[user] for user in users], np.int64))
        return replace(events, num_items=len(self.released.item_ids), item_words=None)

    def save(self, folder: str | Path) -> Path:
        """Write the model as safetensors, its manifest with the guarantee, and a model card,
        README.md, in the place of a model that lies there. No pickle, and nobody's history.

        Raises RunError where the folder holds something else or cannot be written.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
        >>> import tempfile
        >>> folder = model.save(tempfile.mkdtemp())
        >>> (folder / "manifest.json").exists() and (folder / "README.md").exists()
        True
        """
        target = Path(folder)
        if self._keep is None:
            raise RunError(
                f"this {type(self).__name__} is not trained", "Call model.fit(train) first."
            )
        if target.exists() and not target.is_dir():
            raise RunError(f"{target} is a file", "Give an empty or a new folder.")
        if target.exists() and any(target.iterdir()) and not (target / "manifest.json").exists():
            raise RunError(
                f"{target} holds something that is no model", "Give an empty or a new folder."
            )
        with writing(target, "Give another folder."):
            target.mkdir(parents=True, exist_ok=True)
            self._keep(target)
        return target

    def export(self, file: str | Path) -> str:
        """Write the serving bundle, one public file for `fedrec serve`, and return its version.

        Folders on its way are made, as by `save`. Raises RunError where it would be a folder,
        or cannot be written.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.ItemItem(noise="seeded").fit(data)
        >>> import pathlib, tempfile
        >>> version = model.export(pathlib.Path(tempfile.mkdtemp()) / "model.bundle")
        >>> len(version)
        16
        """
        from fedrec.api.serving import write_export
        from fedrec.serving.model_bundles import bundle_of

        target = Path(file)
        if target.is_dir():
            raise RunError(f"{target} is a folder", "Name a file in it, such as model.bundle.")
        with tempfile.TemporaryDirectory(prefix="fedrec-export-") as folder:
            made = bundle_of(self.save(Path(folder) / "model"))
        with writing(target, "Give another file."):
            target.parent.mkdir(parents=True, exist_ok=True)
            return write_export(made, target)

    def serve(
        self,
        *,
        port: int = 8080,
        host: str = "127.0.0.1",
        page: bool = False,
        demo: bool = False,
        background: bool = False,
    ) -> Any:
        """Serve private queries over HTTP, as `fedrec serve` does; returns when it is interrupted.

        Args:
            port: TCP port; 0 takes a free one.
            host: Address to listen on; others than this machine's need TLS, which `fedrec serve
                --settings` has.
            page: Also serve a web page that makes private queries in the browser.
            demo: Serve an experiment too, a model with seeded noise.
            background: Serve in a thread and return a handle with `url` and `stop()`.

        >>> import fedrec
        >>> data = fedrec.Dataset.planted("small", kind="clicks")
        >>> model = fedrec.ItemItem(noise="seeded").fit(data)
        >>> served = model.serve(port=0, demo=True, background=True)
        >>> served.url.startswith("http://127.0.0.1:")
        True
        >>> served.stop()
        """
        from fedrec.api.serving import serve

        return serve(self, port=port, host=host, page=page, demo=demo, background=background)

    def __repr__(self) -> str:
        fresh = {
            name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()
        }
        chosen = {
            name: value
            for name, value in self.get_params().items()
            if value != fresh[name] or name == "epsilon"
        }
        said = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        return f"{type(self).__name__}({said})"

    def _repr_html_(self) -> str:
        rows: list[tuple[object, object]] = [
            (name, value) for name, value in self.get_params().items() if value is not None
        ]
        if self._released is not None:
            rows += [("items", f"{len(self.item_ids):,}"), ("guarantee", repr(self.guarantee))]
        return html_table((type(self).__name__, ""), rows)


def copied(source: Path, target: Path) -> None:
    """Copy a folder in the place of a model; nothing where it lies there already."""
    from fedrec.run.model_folder import clear  # with serving

    if source.resolve() != target.resolve():
        clear(target)
        shutil.copytree(source, target, dirs_exist_ok=True)
