"""News recommenders for Python: PrivateRec's variants, trained and measured by `fedrec simulate`,
asked through their serving bundle."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import polars as pl

from fedrec.api.habits import Answering
from fedrec.api.histories import Histories, History, warn_of_unknown
from fedrec.api.promises import Parameters, PrivacyGuarantee, html_table
from fedrec.api.released import Seen, copied, ids_of, require_length, require_seen
from fedrec.data.added_items import added_items
from fedrec.data.frames import polars_frame
from fedrec.data.item_tables import frame_of_items
from fedrec.data.news_tables import VECTORS, renamed, write_news
from fedrec.errors import DataError, DataWarning, RunError, SettingsError, require, warn
from fedrec.output_folders import clear, finish
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving.bundle import FILE, Bundle, read, write
from fedrec.storage import read_json, write_json, writing

Variant = Literal[
    "additive",
    "privaterec",
    "local",
    "central",
    "central-encoder",
    "printed",
    "fedrec",
    "dp-fedrec",
    "centralized",
]
PAPERS_OWN = {"privaterec": "local"}
"""Variants by a paper's name, and the settings' name of each."""


@dataclass(frozen=True)
class NewsData(Answering):
    """Impressions of news.

    Make it with `planted`, `from_frames`, `from_mind` or `from_click_log`; it is read when a model
    is fitted.

    Args:
        keys: Keys of a scenario that say what to read, with their values.

    >>> import fedrec
    >>> fedrec.NewsData.planted().keys
    {'data.format': 'planted-news', 'data.preset': 'small'}
    """

    keys: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def planted(preset: str = "small") -> NewsData:
        """Made-up news and readers.

        Args:
            preset: The sizes' name: "small", "demo" or "mind-small".

        Returns:
            The data set, which is drawn when it is trained on.
        """
        return NewsData({"data.format": "planted-news", "data.preset": preset})

    @staticmethod
    def from_mind(path: str | Path) -> NewsData:
        """MIND: a folder with train and dev, each with news.tsv and behaviors.tsv.

        Args:
            path: The folder that holds both.

        Returns:
            The data set, which is read when it is trained on.

        >>> import fedrec
        >>> fedrec.NewsData.from_mind("MINDsmall").keys["data.format"]
        'mind'
        """
        return NewsData({"data.format": "mind", "data.path": str(path)})

    @staticmethod
    def from_frames(
        articles: Any,
        impressions: Any,
        folder: str | Path,
        *,
        cuts: tuple[float | str, float | str],
        item: str = "item",
        title: str = "title",
        category: str = "category",
        vector: str = "vector",
        user: str = "user",
        time: str = "time",
        impression: str = "impression",
        clicked: str = "clicked",
    ) -> NewsData:
        """Your own articles and click log, written to `folder` in MIND's format, which `fedrec
        simulate` and the parties of a deployment read too. `folder` holds personal data.

        Args:
            articles: A frame with a row for each article: columns item and title; abstract,
                category, subcategory and vector (a list of numbers) if there are any. All of it is
                public.
            impressions: A frame with a row for each article of each list that was shown: columns
                impression (the list), user, time, item, and clicked, 0 or 1.
            folder: New or empty.
            cuts: Two public times: clicks before the first are histories, lists between them are
                trained on, lists from the second on are the test.
            item: Name of a column, as are all below.
            title: See `articles`.
            category: See `articles`.
            vector: See `articles`.
            user: See `impressions`.
            time: See `impressions`.
            impression: See `impressions`.
            clicked: See `impressions`.

        Returns:
            The data set that was written.

        Raises:
            DataError: A column is missing, or a row cannot be used.
            RunError: The folder holds something.

        >>> import fedrec, tempfile
        >>> articles = {"item": ["a", "b", "c"], "title": ["sun", "rain", "snow"]}
        >>> rows = [(day, user, f"2026-01-0{day}") for day in (1, 2, 3) for user in ("u", "v")]
        >>> log = {
        ...     "impression": [f"{day}{user}" for day, user, _ in rows for _ in "abc"],
        ...     "user": [user for _, user, _ in rows for _ in "abc"],
        ...     "time": [time for _, _, time in rows for _ in "abc"],
        ...     "item": [*"abc"] * 6,
        ...     "clicked": [1, 0, 0, 0, 1, 0] * 3,
        ... }
        >>> folder, cuts = tempfile.mkdtemp(), ("2026-01-02", "2026-01-03")
        >>> data = fedrec.NewsData.from_frames(articles, log, folder, cuts=cuts)
        >>> data.keys["data.format"]
        'mind'
        """
        names = {"item": item, "title": title, "category": category, "vector": vector}
        events = {"impression": impression, "user": user, "time": time, "item": item}
        has_vectors = write_news(
            renamed(polars_frame(articles, what="frame of articles"), names),
            renamed(
                polars_frame(impressions, what="frame of impressions"),
                events | {"clicked": clicked},
            ),
            Path(folder),
            cuts=cuts,
        )
        keys = dict(NewsData.from_mind(folder).keys)
        return NewsData(
            keys | ({"news.entity_vectors": str(Path(folder) / VECTORS)} if has_vectors else {})
        )

    @staticmethod
    def from_click_log(path: str | Path) -> NewsData:
        """Impressions made of what people liked, in order, in any data set with times and texts.

        Args:
            path: A file or a folder in any format of `fedrec data formats`.

        Returns:
            The data set, which is read when it is trained on.

        >>> import fedrec
        >>> fedrec.NewsData.from_click_log("ml-1m").keys["data.format"]
        'click-log'
        """
        return NewsData({"data.format": "click-log", "data.path": str(path)})


class NewsRecommender(Parameters):
    """News recommendation with private clicks (PrivateRec): needs `pip install 'fedrec[news]'`.

    Args:
        epsilon: Of training, per click (replace); of `variant="central"` and
            `"central-encoder"` per user (add/remove).
        delta: The probability with which the guarantee may fail.
        variant: "additive" (ours) trains on one noised report a user; "privaterec" is the paper's
            way in its established form, "local"; the others are in docs/news.md.
        method: Another name of variant, as the other estimators have it; in any case.
        noise: "system", or "seeded" for an experiment.
        seed: Of initialisation, and of seeded noise.
        settings: Further keys of a scenario, for example `{"news.serving_epsilons": [5]}`.

    >>> import fedrec, tempfile
    >>> short = {"news.epochs": 1, "news.serving_epsilons": ["inf"]}
    >>> model = fedrec.NewsRecommender(epsilon=5, noise="seeded", settings=short)
    >>> model = model.fit(fedrec.NewsData.planted())
    >>> model.guarantee.unit
    'click'
    >>> model.recommend(history=["N1", "N2"], k=2).columns
    ['rank', 'item', 'title', 'score']
    >>> folder = model.save(tempfile.mkdtemp())
    >>> len(model.export(folder / "news.bundle"))
    16
    """

    def __init__(
        self,
        *,
        epsilon: float = 5.0,
        delta: float = 1e-5,
        variant: Variant = "additive",
        method: str | None = None,
        noise: Literal["system", "seeded"] = "system",
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.variant = variant
        self.method = method
        self.noise = noise
        self.seed = seed
        self.settings = settings
        self._bundle: Bundle | None = None
        self._served: Path | None = None
        self.result: Mapping[str, Any] = {}

    def fit(self, data: NewsData, y: None = None, *, progress: bool = False) -> Self:
        """Train, and measure on the data's own test impressions; `metrics` has what was found.

        Args:
            data: Readers' histories and impressions, and public articles.
            y: Nothing: pipelines of scikit-learn pass it.
            progress: Show a bar with the time left.

        Returns:
            This model.

        Raises:
            SettingsError: The parameters contradict each other or the data.
            DataError: The data cannot be read.
            PrivacyError: delta promises nothing among so few users, or a budget would be
                passed.
        """
        if not isinstance(data, NewsData):
            raise DataError(
                f"fit needs NewsData, found a {type(data).__name__}",
                "Your own frames become it by fedrec.NewsData.from_frames.",
            )
        require("news", type(self).__name__)
        from fedrec.run.simulate import run

        keys = {
            "recipe": "privaterec",
            "seed": self.seed,
            "news.variant": self._variant(),
        }
        keys |= {
            "privacy.epsilon": self.epsilon,
            "privacy.delta": self.delta,
            "privacy.noise": self.noise,
        }
        where = {"run.directory": str(self._folder())}
        scenario = self._validated({**keys, **data.keys, **where})
        self.result = run(scenario, name="news", quiet=not progress)
        if "refused" in self.result["serving"]:
            return self  # measured, but there is nothing to ask: `recommend` says why
        self._served = Path(self.result["run_dir"]) / FILE
        self._bundle = read(self._served)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether it is trained: `check_is_fitted` of scikit-learn asks."""
        return bool(self.result)

    def _variant(self) -> str:
        """The settings' name of what was asked for, in any case. Raises SettingsError on a name
        that no variant has, and where variant and method say two."""
        from fedrec.news.variant import names

        said = {str(name).lower() for name in (self.variant, self.method) if name is not None}
        said -= {"additive"} if len(said) > 1 else set()
        name = said.pop()
        found = PAPERS_OWN.get(name, name)
        if said or found not in names():
            near = get_close_matches(name, [*PAPERS_OWN, *names()], n=1)
            raise SettingsError(
                f"NewsRecommender has no method {self.method or self.variant!r}"
                if not said
                else f"variant = {self.variant!r} and method = {self.method!r} are two names",
                f"{f'Did you mean {near[0]!r}? ' if near and not said else ''}"
                f"There are: {', '.join([*PAPERS_OWN, *names()])}.",
            )
        return found

    def with_items(
        self, articles: Any, *, item: str = "item", title: str = "title", vector: str = "vector"
    ) -> Self:
        """This model with articles that came after training. Nothing is trained, and no privacy is
        spent: what ranks an article follows from its text, by that of the known ones.

        Args:
            articles: Today's, known ones among them: a frame or the path of a table, with columns
                as in `NewsData.from_frames`.
            item: Name of a column, as are all below.
            title: Of its words and of what lists show.
            vector: Of lists of numbers, if there is one.

        Returns:
            A model that recommends, is saved and served as this one; new articles are last.

        Raises:
            DataError: None is known to the model, or nothing tells articles apart.

        >>> import fedrec
        >>> short = {"news.epochs": 1, "news.serving_epsilons": ["inf"]}
        >>> model = fedrec.NewsRecommender(epsilon=5, noise="seeded", settings=short)
        >>> model = model.fit(fedrec.NewsData.planted())
        >>> ids, titles = model.recommend(history=["N1"], k=5).select("item", "title")
        >>> today = {"item": [*ids, "late"], "title": [*titles, titles[0]]}
        >>> len(model.with_items(today).recommend(history=["late", "N1"], k=3))
        3
        """
        from fedrec.serving.model_bundles import with_news

        known = self._asked()
        table = (
            frame_of_items(Path(articles))
            if isinstance(articles, str | Path)
            else polars_frame(articles, what="frame of articles")
        )
        table = renamed(table, {"item": item, "title": title, "vector": vector})
        vectors = table.select("item", "vector") if "vector" in table.columns else None
        plain = table.drop("vector", strict=False)
        today = partial(added_items, today=plain, item_vectors=vectors, item="item")
        found = copy.copy(self)
        found._served = found._folder() / FILE
        write(found._served, *with_news(known, today))
        found._bundle = read(found._served)
        return found

    @property
    def metrics(self) -> dict[str, Any]:
        """On test impressions: auc, mrr, ndcg at 5 and 10."""
        self._require_fitted()
        return dict(self.result["metrics"])

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised of training; an answer of serving has a guarantee of its own."""
        if self._bundle is not None:
            training = dict(self._bundle.about.training)
        else:
            self._require_fitted()
            training = dict(self.result["guarantee"])
        promised = {
            name: training[name]
            for name in ("delta", "unit", "neighbours", "established", "note")
            if name in training
        }
        return PrivacyGuarantee(
            Guarantee(epsilon=float(training["epsilon"]), **promised), self.noise
        )

    def recommend(
        self, *, history: History, k: int = 10, items: Any = None, seen: Seen = "drop"
    ) -> pl.DataFrame:
        """The k best news for a history of ids, oldest first; ranked here, without noise.

        Columns rank, item, title and score. Items that the model does not have are left out with
        an `UnknownIdsWarning`. The history may be a frame, which is put in the order of its times.

        Args:
            history: Ids of articles that were read.
            k: Length of the list.
            items: Ids of the only articles that are ranked.
            seen: "drop" leaves articles of the history out, "keep" lists them too.

        Returns:
            At most k rows, best first.

        Raises:
            DataError: Nothing of the history is known, or an id is a known one but for its type
                or blanks.
        """
        from fedrec_client.clicks import Clicks
        from fedrec_client.public_model import PublicModel, best

        bundle = self._asked()
        require_length(k)
        require_seen(seen)
        given = [item for item, _ in Histories().entries(history)]
        warn_of_unknown([given], set(bundle.ids.all()), bundle.ids[0])
        model = PublicModel(bundle)
        clicks = Clicks.of([str(item) for item in given])
        rows = [int(row) for row in model.rows(clicks) if row >= 0]
        known = {item: row for row, item in enumerate(bundle.ids.all())}
        allowed = None
        if items is not None:
            asked = ids_of(items, "items")
            warn_of_unknown([asked], known, bundle.ids[0], what="argument items")
            allowed = [known[item] for item in asked if item in known]
        events = [(row, None) for row in rows]
        found, scores = best(
            bundle,
            model.window(clicks),
            events,
            k=k,
            categories=0,
            allowed=allowed,
            keep_seen=seen == "keep",
        )
        if not len(found):
            said = f"the list is empty: the history leaves none of the {bundle.size:,} articles"
            warn(DataWarning(said))
        ids = bundle.ids
        titles = bundle.titles
        names = ([ids[int(row)] for row in found], [titles[int(row)] for row in found])
        return pl.DataFrame(
            {"rank": range(1, len(found) + 1), "item": names[0], "title": names[1], "score": scores}
        )

    def save(self, folder: str | Path) -> Path:
        """Write what may be published: model, bundle and guarantee.

        Readers' reports, metrics and the report stay in the run, `result["run_dir"]`.

        Args:
            folder: Where the files go; it is made if needed.

        Returns:
            The folder.

        Raises:
            RunError: The folder is a file or cannot be written.
        """
        self._require_fitted()
        run = Path(self.result["run_dir"])
        target = Path(folder)
        if target.resolve() == run.resolve():
            raise RunError(f"{folder} is the run itself", "Give another folder.")
        with writing(target, "Give another folder."):
            clear(target, "news")
            copied(run / "model", target / "model")
            if self._served is not None:
                shutil.copy(self._served, target / FILE)
            stated = read_json(run / "guarantee.json")
            # which file a machine charges is its own
            write_json(
                target / "guarantee.json", {k: v for k, v in stated.items() if k != "budget"}
            )
            finish(target, "news")
        return target

    def export(self, file: str | Path) -> str:
        """Write the serving bundle for `fedrec serve`, and return its version.

        Args:
            file: Where it goes.

        Returns:
            The first 16 hexadecimal digits of the bundle's SHA-256.

        Raises:
            RunError: The file cannot be written.
        """
        from fedrec.serving.model_bundles import export

        self._require_fitted()
        if Path(file).is_dir():
            raise RunError(f"{file} is a folder", "Name a file in it, such as model.bundle.")
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        served = self._served.parent if self._served else Path(self.result["run_dir"])
        export(served, Path(file))
        return read(Path(file)).version

    def _folder(self) -> Path:
        """A new folder that lives as long as this object."""
        folder = tempfile.mkdtemp(prefix="fedrec-news-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def _asked(self) -> Bundle:
        """What is asked. Raises RunError before training, SettingsError where nothing can be."""
        self._require_fitted()
        if self._bundle is None:
            raise SettingsError(
                f"this model cannot be asked: {self.result['serving'].get('refused')}",
                "Use another variant.",
            )
        return self._bundle

    def _require_fitted(self) -> None:
        if not self.result:
            raise RunError("this NewsRecommender is not trained", "Call model.fit(data) first.")

    def __repr__(self) -> str:
        return (
            f"NewsRecommender(epsilon={self.epsilon!r}, variant={self.variant!r}, "
            f"noise={self.noise!r})"
        )

    def _repr_html_(self) -> str:
        rows: Sequence[tuple[object, object]] = (
            [] if not self.result else [("guarantee", repr(self.guarantee)), *self.metrics.items()]
        )
        return html_table((repr(self), ""), rows)
