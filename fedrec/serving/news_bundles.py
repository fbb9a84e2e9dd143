"""Serving bundles of news models, and how a device asks a model with a user encoder. It brings
torch; `fedrec.serving` does not.

Each line: trained as, and the bundle's form; what a query is; the server's part.

- `additive`, form additive: noised coefficients; the user tower and the prior, as in training, and
  the log of how often each item was shown
- `central`, form additive: the same; W (scores lack one positive factor a user, no ranking)
- the others with a basis, form attention: noised attention over it (Alg. 2); the basis, u = sum_i
  w_i b_i (Alg. 1 l. 3)
- the others without one: none, since a whole user vector would leave

An export reads a released model and a public catalogue, and no impression: a bundle is
post-processing of the training.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from fedrec import __version__
from fedrec.arrays import Float32s
from fedrec.data.impressions import News
from fedrec.errors import SettingsError
from fedrec.news import reports_training
from fedrec.news.central import CentralModel
from fedrec.news.local_update import recentre
from fedrec.news.model_recommender import ModelRecommender
from fedrec.news.prior import log_exposure
from fedrec.news.topics import listed_categories
from fedrec.news.trained import Recommender
from fedrec.news.variants.additive import AdditiveRecommender
from fedrec.serving.bundle import About
from fedrec.serving.exporting import (
    Asking,
    Export,
    Origin,
    PublicItems,
    Ranking,
    additive_bundle,
    bundle_arrays,
)
from fedrec.serving.user_map import UserMap


def news_bundle(
    recommender: Recommender, news: News, origin: Origin, *, liked: float = 0.0
) -> Export:
    """About and arrays of what `recommender` can serve. liked: the least rating that was taken for
    a click.

    Raises SettingsError for a model without a basis, whose queries would be whole user vectors, and
    for one with open categories.
    """
    if isinstance(recommender, AdditiveRecommender) and recommender.trained.topics.told:
        cause = (
            "a bundle has no place for coefficients of open categories, which are told without "
            "noise"
        )
        raise SettingsError(cause, "Train without news.open_categories.")
    catalogue = PublicItems(news.ids, news.titles, listed_categories(news))
    if isinstance(recommender, AdditiveRecommender):
        return additive_bundle("news", origin, catalogue, *_of_reports(recommender.trained, liked))
    if isinstance(recommender, CentralModel):
        return additive_bundle("news", origin, catalogue, *_of_central(recommender, liked))
    if isinstance(recommender, ModelRecommender) and recommender.model.basis is not None:
        return _of_attention(recommender, catalogue, origin, liked)
    raise SettingsError(
        "this model has no basis, so that a query would be a whole user vector",
        (
            'Serve news.variant "additive", "central", "local" or "printed", or give "fedrec" a '
            "basis: --set news.basis=5."
        ),
    )


def _of_reports(trained: reports_training.Trained, liked: float) -> tuple[Asking, Ranking]:
    """The model, (n, d) of the tower, then k a for the prior; and for lists from the whole
    catalogue how often each item was shown (`news.exposure`)."""
    model = trained.model
    decoder = trained.decoder
    with torch.no_grad():
        tower = {name: p.numpy() for name, p in model.user_tower.named_parameters()}
        k = float(model.prior_weight)
        items = model.items().numpy()
        bias = model.item_bias.numpy()
    bias = (bias + log_exposure(trained.shown)).astype(np.float32)
    B, h = tower["first"].shape
    users = UserMap(
        linear=_columns(tower["skip"], k * np.eye(B)),
        offset=_columns(tower["second_bias"][None], np.zeros((1, B)))[0],
        first=_columns(tower["first"]),
        first_bias=np.ascontiguousarray(tower["first_bias"], np.float32),
        second=_columns(tower["second"], np.zeros((h, B))),
    )
    asking = Asking(trained.topics, decoder.population, trained.history, decoder.scale, liked)
    return asking, Ranking(users, items, bias)


def _of_central(model: CentralModel, liked: float) -> tuple[Asking, Ranking]:
    """z' W with z = (L (a - m), 1), not divided by ||z||: one positive number a user, which leaves
    its ranking as it is."""
    linear = model.whitening.matrix @ model.W[:-1]
    asking = Asking(model.topics, model.population, model.history, 1.0, liked)
    return asking, Ranking(
        UserMap.of_linear(linear, model.W[-1]), model.items, np.zeros(len(model.items))
    )


def _of_attention(
    served: ModelRecommender, catalogue: PublicItems, origin: Origin, liked: float
) -> Export:
    model = served.model
    if served.noise != "gaussian":
        raise SettingsError(
            "devices that ask a bundle draw Gaussian noise", "Leave news.serving_noise out."
        )
    assert model.basis is not None
    recentre(model)
    with torch.no_grad():
        vectors = model.encode_news(np.arange(model.news.anonymous + 1)).numpy()
    encoder = {
        f"encoder.{name.removeprefix('users.')}": p.numpy()
        for name, p in model.state_dict().items()
        if name.startswith("users.")
    }
    B = len(model.basis.vectors)
    m = len(catalogue.ids)
    names, _ = catalogue.categories()
    about = About(
        name=origin.name,
        family="news",
        form="attention",
        history=served.history,
        sensitivity=math.nextafter(math.sqrt(2) * min(served.theta, 1.0), math.inf),
        delta=origin.delta,
        liked=liked,
        categories=names,
        training=origin.training,
        noise=origin.noise,
        fedrec=__version__,
    )
    users = UserMap.of_linear(model.basis.vectors.detach().numpy(), np.zeros(vectors.shape[1]))
    nothing = {"rows": np.zeros((0, B)), "mean": np.zeros(B), "covariance": np.zeros((B, B))}
    heads = getattr(getattr(model.users, "attention", None), "heads", 0)
    own = {
        "anonymous": vectors[m],
        "theta": np.array(served.theta),
        "padding": np.array(served.padding),
        "heads": np.array(heads),
    }
    return about, bundle_arrays(
        catalogue, Ranking(users, vectors[:m], np.zeros(m)), nothing
    ) | encoder | own


def _columns(*parts: npt.NDArray[np.floating]) -> Float32s:
    return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)
