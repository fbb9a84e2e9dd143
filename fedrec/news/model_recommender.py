"""Recommender of a variant that serves by its model's vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedrec.arrays import Float32s
from fedrec.data.impressions import Impressions
from fedrec.encoders.news_model import NewsModel
from fedrec.news import attention
from fedrec.news.attention import ServingNoise
from fedrec.news.local_update import released_weights, user_vectors
from fedrec.news.prior import products
from fedrec.privacy import gaussian
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.keystream import derive


@dataclass(frozen=True)
class ModelRecommender:
    """Serves from a trained news model: attention over its basis where it has one, else its whole
    user vector.

    A user sends one noised answer per guarantee (click, replace): attention by Alg. 2 with the
    sound calibration, clipped at `theta`, after padding; or the user vector clipped at
    `vector_clip`, two of which are at most 2 `vector_clip` apart (the paper's "VDP"). noise: of
    either; see `attention.serving_plan` and `attention.release_vectors`.
    """

    model: NewsModel
    history: int
    theta: float
    padding: float
    vector_clip: float
    noise: ServingNoise = "gaussian"

    def serve(self, asked: Impressions, *, guarantee: Guarantee, key: bytes) -> Float32s:
        """See `trained.Recommender`."""
        history = asked.last_clicks(self.history)
        U = (
            self._attention(history, guarantee, key)
            if self.model.basis
            else self._vectors(history, guarantee, key)
        )
        with torch.no_grad():
            V = self.model.encode_news(np.arange(asked.num_news)).numpy()
        return products(
            U, np.repeat(asked.users, np.diff(asked.candidate_ptr)), V, asked.candidates
        )

    def _attention(
        self, history: npt.NDArray[np.int32], guarantee: Guarantee, key: bytes
    ) -> Float32s:
        assert self.model.basis is not None
        plan = attention.serving_plan(
            guarantee,
            self.noise,
            theta=self.theta,
            basis=len(self.model.basis.vectors),
            padding=self.padding,
        )
        keys = [
            [derive(key, f"{purpose}/{k}") for k in range(len(history))]
            for purpose in ("padding", "noise")
        ]
        weights = released_weights(self.model, history, plan, (keys[0], keys[1]))
        renormalise = (
            attention.renormalise_softplus if plan.noise_std else attention.renormalise_relu
        )
        with torch.no_grad():
            U = self.model.basis.reconstruct(
                torch.from_numpy(renormalise(weights).astype(np.float32))
            )
        return np.asarray(U.numpy(), np.float32)

    def _vectors(
        self, history: npt.NDArray[np.int32], guarantee: Guarantee, key: bytes
    ) -> Float32s:
        with torch.no_grad():
            U = user_vectors(self.model, history).double().numpy()
        if not guarantee.private:
            return U.astype(np.float32)
        if self.noise != "gaussian":
            order: Literal[1, 2] = 1 if self.noise == "laplace" else 2
            return attention.release_vectors(
                U, radius=self.vector_clip, epsilon=guarantee.epsilon, order=order, key=key
            )[0].astype(np.float32)
        U *= np.minimum(
            1.0, self.vector_clip / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), 1e-30)
        ) * (1 - 1e-12)
        # a power of two divides exactly
        step = 2.0 ** (math.floor(math.log2(self.vector_clip)) - 20)
        mu = mu_for(guarantee.epsilon, guarantee.delta)
        std = gaussian.noise_std(radius=2 * self.vector_clip, mu=mu, coarsest_step=step)
        # towards zero: no vector becomes longer than its clip
        return gaussian.add_to_rows(
            np.trunc(U / step).astype(np.int64), step=step, std=std, key=key
        ).astype(np.float32)
