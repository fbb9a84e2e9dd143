"""Asking a bundle with an attention form (Alg. 2 of PrivateRec) on the device. It brings torch;
`asking` loads it when it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedrec.encoders.news import NamlUsers, NrmsUsers
from fedrec.news import attention
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.keystream import derive
from fedrec.serving.asked import Asked
from fedrec.serving.bundle import Bundle


def ask_attention(
    bundle: Bundle, history: npt.NDArray[np.integer], *, guarantee: Guarantee, key: bytes
) -> Asked:
    """Alg. 2 on the device: (n, B) shares of the basis that leave, for histories (n, H) of rows, m
    for the anonymous item, -1 for no click; `models.ModelRecommender` serves the same.

    Guarantee: that of `attention.gaussian_plan`, per click replaced, at the theta and padding that
    the bundle states.
    """
    padding = float(_scalar(bundle, "padding")) if guarantee.private else 0.0
    plan = attention.gaussian_plan(
        guarantee, theta=float(_scalar(bundle, "theta")), padding=padding
    )
    pads, noises = (
        [derive(key, f"{purpose}/{k}") for k in range(len(history))]
        for purpose in ("padding", "noise")
    )
    if padding:
        hidden = np.concatenate(
            [attention.padded_clicks(1, history.shape[1], padding=padding, key=pad) for pad in pads]
        )
        history = np.where(hidden & (history >= 0), bundle.size, history)
    alpha = attention.attention(
        _user_vectors(bundle, history), np.asarray(bundle.users.linear, np.float64)
    )
    raw = attention.release_each(alpha, plan, keys=noises)
    shares = (
        attention.renormalise_softplus(raw) if plan.noise_std else attention.renormalise_relu(raw)
    )
    return Asked(shares.astype(np.float32), raw, plan.noise_std, plan.event)


def _user_vectors(bundle: Bundle, history: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """(n, d) by the user encoder of the bundle; row m of the news is the anonymous one."""
    news = torch.from_numpy(
        np.concatenate([bundle.items, np.asarray(bundle.more["anonymous"], np.float32)[None]])
    )
    arrays = {
        name.removeprefix("encoder."): a
        for name, a in bundle.more.items()
        if name.startswith("encoder.")
    }
    # overwritten at once
    (width, queries), rng = arrays["pool.dense"].shape, np.random.default_rng(0)
    heads = int(_scalar(bundle, "heads"))
    users = (
        NrmsUsers(width, heads, queries, rng=rng) if heads else NamlUsers(width, queries, rng=rng)
    )
    # buffers that a bundle of an earlier version does not have keep their neutral values
    users.load_state_dict(
        users.state_dict()
        | {name: torch.from_numpy(np.array(a, np.float32)) for name, a in arrays.items()}
    )
    places = torch.from_numpy(np.asarray(history, np.int64))
    with torch.no_grad():
        return users.encode(news, places.clamp(min=0), places >= 0).double().numpy()


def _scalar(bundle: Bundle, name: str) -> Any:
    return bundle.more[name].item()
