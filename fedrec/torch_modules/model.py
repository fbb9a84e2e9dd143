"""The released model of a module: its parameters, what is public of the items, and which module it
needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.storage import parsed_json
from fedrec.torch_modules.contract import clicks_in_order, made, with_numbers
from fedrec.torch_modules.gradient import one_thread

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class TorchModel:
    """Scores V u + popular; a person without clicks has everybody's list.

    numbers: (P,) parameters. features: (m, f). popular: (m,). about: name and digest of the module,
    its options, and how many clicks of a person are looked at.
    """

    numbers: Float32s
    features: Float32s
    popular: Float32s
    about: str
    offset: float = 0.0

    @staticmethod
    def of(
        module: Mapping[str, Any], numbers: Float32s, features: Float32s, popular: Float32s
    ) -> TorchModel:
        """module: name, digest, options and most."""
        return TorchModel(numbers, features, popular, json.dumps(dict(module), sort_keys=True))

    @staticmethod
    def of_arrays(arrays: Arrays) -> TorchModel:
        """The model of a released file.

        Raises SettingsError where the module is not known here, or is another one, ValueError where
        arrays do not fit each other."""
        about = np.asarray(arrays["about"], np.uint8).tobytes().decode()
        numbers, features, popular = (
            np.asarray(arrays[name], np.float32) for name in ("numbers", "features", "popular")
        )
        if (numbers.ndim, features.ndim) != (1, 2) or popular.shape != features.shape[:1]:
            raise ValueError("its arrays do not fit each other")
        found = TorchModel(numbers, features, popular, about)
        assert found.module is not None  # made now, so that a missing one is told when loading
        return found

    @cached_property
    def module(self) -> nn.Module:
        """The module with these parameters."""
        fresh = made(
            self._told["name"],
            self._told["digest"],
            self.features,
            self._told["options"],
            numbers=len(self.numbers),
        )
        return with_numbers(fresh, self.numbers)

    @cached_property
    def _told(self) -> Any:
        return parsed_json(self.about)

    @cached_property
    def item_vectors(self) -> Float32s:
        """(m, d + 1): V, and popularity."""
        with torch.no_grad(), one_thread():
            V = self.module.items().numpy()  # type: ignore[operator]  # see the contract
        return np.column_stack([V, self.popular]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, d + 1): u by the person's own clicks, and 1."""
        V = torch.from_numpy(self.item_vectors[:, :-1].copy())
        found = np.zeros((history.num_users, V.shape[1] + 1))
        found[:, -1] = 1.0
        most = int(self._told["most"])
        with torch.no_grad(), one_thread():
            for row, clicked in zip(found, clicks_in_order(history, most), strict=True):
                if len(clicked):
                    u = self.module.user(torch.from_numpy(clicked), V)  # type: ignore[operator]
                    row[:-1] = u.numpy()
        return found

    def arrays(self) -> Arrays:
        """What is written into the released file."""
        about = np.frombuffer(self.about.encode(), np.uint8)
        return {
            "numbers": self.numbers,
            "features": self.features,
            "popular": self.popular,
            "about": about,
        }
