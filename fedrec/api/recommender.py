"""A recommender that is fitted, saved and served: what all estimators share."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from rich.console import Console

from fedrec.api.asking import Asked
from fedrec.api.callbacks import Callback, require_callbacks
from fedrec.api.datasets import Dataset, TestSet, TrainingSet, undivided
from fedrec.api.evaluating import evaluate
from fedrec.api.promises import Parameters, PrivacyGuarantee, html_table
from fedrec.api.released import Kept, Released
from fedrec.certificates.writing import ReleasedRound
from fedrec.data.added_items import added_items
from fedrec.data.interactions import Dataset as Source
from fedrec.data.kinds import KINDS
from fedrec.data.splits import Split
from fedrec.errors import DataError, RunError
from fedrec.factorization.facts import public_facts
from fedrec.factorization.later_items import public_directions
from fedrec.numerics.threads import one_blas_thread
from fedrec.run import statement
from fedrec.run.data.budget import budget_of
from fedrec.run.data.datasets import with_public_sources
from fedrec.run.data.keys import given_keys, require_of_training
from fedrec.run.job import loopback
from fedrec.run.training import RoundRecord, Trained, Work, train_one
from fedrec.settings import Scenario
from fedrec.storage import writing

Noise = Literal["system", "seeded"]


class Recommender(Asked, Parameters):
    """A recommender that is trained with differential privacy. Use one of its subclasses.

    Everything is computed by the functions of `fedrec simulate`: the same data, seed and parameters
    give the same bytes with seeded noise.

    Args:
        epsilon: Of the training, per user (add/remove).
        delta: The probability with which the guarantee may fail.
        noise: "system", or "seeded" for an experiment.
        seed: Of initialisation, and of seeded noise.
        settings: Further keys of a scenario, for example `{"privacy.budget_file": "people.jsonl"}`.

    >>> import fedrec
    >>> issubclass(fedrec.ItemItem, fedrec.Recommender)
    True
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

        Returns:
            The scenario, which `fedrec.simulate` takes.

        Raises:
            SettingsError: A key is unknown, out of range, or another one in `settings`.

        >>> import fedrec
        >>> scenario = fedrec.ItemBias(epsilon=3).scenario()
        >>> scenario.recipe, scenario.privacy.epsilon
        ('dp-bias', 3.0)
        """
        return self._validated(self._keys())

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
        train: TrainingSet | Dataset | Any,
        y: None = None,
        *,
        progress: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train, and return the model.

        Args:
            train: The first of what `Dataset.split` returns, for a model that is measured. Of a
                whole `Dataset` all rows are trained on, which leaves nothing to measure on; rows
                given as `validation` and `test` are not. A sparse matrix of users x items is
                taken as `Dataset.from_matrix` has it: every entry is a click.
            y: Nothing: pipelines of scikit-learn pass it.
            progress: Show a bar with the time left, in a terminal or a notebook.
            callbacks: Called with a dictionary after every round and at the end:
                `fedrec.JsonLines("rounds.jsonl")`.

        Returns:
            This model.

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
        given = Dataset.from_matrix(train) if hasattr(train, "tocoo") else train
        chosen = undivided(given) if isinstance(given, Dataset) else given
        if not isinstance(chosen, TrainingSet) or y is not None:
            found = type(train).__name__ if y is None else f"y, a {type(y).__name__}"
            raise DataError(
                f"fit needs a training set, found a {found}",
                "Give data.split()[0], or Dataset.from_frame(frame), with ratings as a column of "
                "it: rating='stars', rating_range=(1, 5).",
            )
        told = require_callbacks(callbacks)
        scenario = self.scenario()
        require_of_training(scenario, chosen.kind)
        if given_keys(scenario.data) or scenario.collective.users_file:
            chosen = replace(chosen, source=with_public_sources(chosen.source, scenario))
        facts = public_facts(scenario.seed, chosen.source, chosen.split)
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
        facts = public_facts(scenario.seed, train.source, train.split)

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

    def score(self, test: TestSet, y: None = None) -> float:
        """What a search over parameters maximises: of ratings the RMSE with a minus, of clicks
        NDCG@10. Each model that was trained for a search has spent its own epsilon.

        Args:
            test: The second of what `Dataset.split` returns.
            y: Not read: scikit-learn gives one.

        Returns:
            A number; higher is better.

        Raises:
            LeakageError: The model was trained on test rows.

        >>> import fedrec
        >>> train, test = fedrec.Dataset.planted("small").split()
        >>> round(fedrec.ItemBias(noise="seeded").fit(train).score(test), 2)
        -0.85
        """
        rated = KINDS[self.released.kind].rated
        found = evaluate(self, test, k=(10,), controls=False, ranking=not rated).headline
        return -found["rmse"] if rated else found["ndcg@10"]

    def save(self, folder: str | Path) -> Path:
        """Write the model as safetensors, its manifest with the guarantee, and a model card,
        README.md, in the place of a model that lies there. No pickle, and nobody's history.

        Args:
            folder: Where the files go; it is made if needed.

        Returns:
            The folder.

        Raises:
            RunError: The folder holds something else or cannot be written.

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
        with writing(target, "Give another folder."):
            self._keep(target)
        return target

    def export(self, file: str | Path) -> str:
        """Write the serving bundle, one public file for `fedrec serve`, and return its version.

        Folders on its way are made, as by `save`.

        Args:
            file: Where it goes.

        Returns:
            The first 16 hexadecimal digits of the bundle's SHA-256.

        Raises:
            RunError: The file would be a folder, or cannot be written.
            SettingsError: The model has nothing that can be served.

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

        Returns:
            The handle where `background`; otherwise nothing.

        Raises:
            SettingsError: The address cannot be used, or the model is an experiment without
                `demo`.
            RunError: The server did not start.

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

    def __sklearn_is_fitted__(self) -> bool:
        """Whether it is trained: `check_is_fitted` of scikit-learn asks."""
        return self._released is not None

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
