"""Estimators of private recommenders, with the conventions of scikit-learn: parameters in the
constructor, `fit` returns the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.api.recommender import Noise, Recommender
from fedrec.api.released import Kept, copied, read_released
from fedrec.errors import SettingsError


class MatrixFactorization(Recommender):
    """Matrix factorisation of ratings or clicks by alternating least squares on noised item
    statistics: the recipe `default`.

    Item vectors are learned with privacy, and a user's vector is solved from the user's own
    history. Public item features help where the data has them.

    Args:
        epsilon: Privacy budget of the whole training, per user (add/remove); `math.inf` trains
            without privacy.
        delta: Probability with which the guarantee may fail; far below 1 / users.
        method: "default", or another `recipe` of a scenario: "ssp1", "ssp2" or "am-ssp",
            "ada-dpals" and "dp-cmf" are methods of papers, and "am-dpsgd" and "ada-dpgd" where
            fedrec-research is installed; "noisy-descent" of ratings is ours.
        noise: "system" draws from the operating system; "seeded" repeats to the byte, for
            experiments only.
        seed: Of the initialisation, and of seeded noise.
        settings: Further keys of a scenario, for example `{"model.dimension": 8}` of "ssp2".

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(train)
    >>> model.recommend(history=["3", "14"], k=2).columns  # "3" and "14" are item ids
    ['rank', 'item', 'title', 'score']
    """

    def __init__(
        self,
        *,
        epsilon: float = 5.0,
        delta: float = 1e-5,
        method: str = "default",
        noise: Noise = "system",
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(epsilon=epsilon, delta=delta, noise=noise, seed=seed, settings=settings)
        self.method = method

    def _keys(self) -> dict[str, Any]:
        if self.method.lower() == "privaterec":
            raise SettingsError(
                "PrivateRec recommends news, not items by ratings or clicks",
                "Use fedrec.NewsRecommender.",
            )
        return {**super()._keys(), "recipe": self.method}


class ItemItem(Recommender):
    """Item-item similarities of clicks: one noised Gram matrix of the most clicked items, solved by
    EASE (Steck 2019).

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.ItemItem(epsilon=5, noise="seeded").fit(data)
    >>> model.recommend(history=["3", "14"], k=2).columns
    ['rank', 'item', 'title', 'score']
    """

    recipe = "dp-item-item"


class Popularity(Recommender):
    """Items by noised click counts: the same list for everybody, and the least that a personal
    model must beat.

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
    >>> lists = model.recommend(histories={"ann": ["3"], "bob": ["3"]}, k=3)["item"].to_list()
    >>> lists[:3] == lists[3:]  # the same for everybody who has seen the same
    True
    """

    recipe = "dp-popularity"


class ItemBias(Recommender):
    """Ratings by noised item means and each user's own mean: the least that a factorisation must
    beat.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(epsilon=5, noise="seeded").fit(train)
    >>> round(fedrec.evaluate(model, test, controls=False).metrics["rmse"], 2)
    0.85
    """

    recipe = "dp-bias"


_METHODS: Mapping[str, type[Recommender]] = {
    kind.recipe: kind for kind in (ItemItem, Popularity, ItemBias)
}


def load(folder: str | Path) -> Recommender:
    """A model that `save` or `fedrec simulate` wrote.

    Args:
        folder: What `save` wrote, or a run's folder.

    Returns:
        The model with its parameters and guarantee, ready to recommend.

    Raises:
        RunError: The folder holds none, or a damaged one.

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
    >>> import tempfile
    >>> fedrec.load(model.save(tempfile.mkdtemp()))
    Popularity(epsilon=2.0, noise='seeded')
    """
    place = Path(folder)
    released = read_released(place)
    kind = _METHODS.get(released.recipe, MatrixFactorization)
    promised = released.guarantee
    params: dict[str, Any] = {
        "epsilon": promised.epsilon,
        "delta": promised.delta,
        "noise": promised.noise,
    }
    params["seed"] = released.settings.get("seed", 1)  # an experiment keeps its own
    if kind is MatrixFactorization:
        params["method"] = released.recipe
    model = kind(**params)
    model._released = released
    source = place if (place / "manifest.json").exists() else place / "model"
    model._keep = Kept(lambda target: copied(source, target))
    return model
