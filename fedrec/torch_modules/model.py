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
from torch import Tensor, nn

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.storage import parsed_json
from fedrec.torch_modules.contract import clicks_in_order, made, with_numbers
from fedrec.torch_modules.gradient import one_thread

Arrays = Mapping[str, npt.NDArray[np.generic]]


_WORDS: Mapping[str, type] = {"name": str, "digest": str, "options": dict, "most": int}
"""What `TorchModel.about` holds, and nothing else."""


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
        arrays do not fit each other, or hold what is no number."""
        about = np.asarray(arrays["about"], np.uint8).tobytes().decode()
        numbers, features, popular = (
            np.asarray(arrays[name], np.float32) for name in ("numbers", "features", "popular")
        )
        if (numbers.ndim, features.ndim) != (1, 2) or popular.shape != features.shape[:1]:
            raise ValueError("its arrays do not fit each other")
        if not all(np.isfinite(array).all() for array in (numbers, features, popular)):
            raise ValueError("its arrays hold what is no number")
        found = TorchModel(numbers, features, popular, about)
        assert found.item_vectors is not None  # now, so that a missing module is told when loading
        return found

    @cached_property
    def module(self) -> nn.Module:
        """The module with these parameters."""
        told = self._told
        size = len(self.numbers)
        fresh = made(told["name"], told["digest"], self.features, told["options"], numbers=size)
        return with_numbers(fresh, self.numbers)

    @cached_property
    def _told(self) -> dict[str, Any]:
        """Raises ValueError where a file says something else."""
        told = parsed_json(self.about)
        whole = isinstance(told, dict) and told.keys() == _WORDS.keys()
        if not (whole and all(isinstance(told[key], kind) for key, kind in _WORDS.items())):
            raise ValueError(f"about holds more or less than {', '.join(_WORDS)}")
        if not 2 <= told["most"] <= 10_000:  # as `recipes.torch` has it
            raise ValueError(f"about.most is {told['most']}, expected 2 to 10000")
        return dict(told)

    @cached_property
    def item_vectors(self) -> Float32s:
        """(m, d + 1): V, and popularity."""
        with torch.no_grad(), one_thread():
            V = self._made("items", shape=(len(self.popular), -1))
        return np.column_stack([V, self.popular]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, d + 1): u by the person's own clicks, and 1."""
        V = torch.from_numpy(self.item_vectors[:, :-1].copy())
        found = np.zeros((history.num_users, V.shape[1] + 1))
        found[:, -1] = 1.0
        most = self._told["most"]
        with torch.no_grad(), one_thread():
            for row, clicked in zip(found, clicks_in_order(history, most), strict=True):
                if len(clicked):
                    own = torch.from_numpy(clicked)
                    row[:-1] = self._made("user", own, V, shape=(V.shape[1],))
        return found

    def _made(self, method: str, *given: Tensor, shape: tuple[int, ...]) -> Float32s:
        """What the module's method returns; -1 stands for any length.

        Raises SettingsError where it fails, or returns something else."""
        module = self.module
        try:
            value: Tensor = getattr(module, method)(*given)
            fits = [wanted in {-1, n} for wanted, n in zip(shape, value.shape, strict=True)]
            if not all(fits) or not value.isfinite().all():
                raise ValueError(f"found shape {tuple(value.shape)}, or what is no number")
        except Exception as failure:  # whatever a person's own module raises
            raise SettingsError(
                f"{method}() of {self._told['name']!r} returns no numbers of shape {shape}: "
                f"{type(failure).__name__}: {failure}",
                "Correct it, or train with a smaller own.learning_rate.",
            ) from failure
        return value.numpy()

    def arrays(self) -> Arrays:
        """What is written into the released file."""
        about = np.frombuffer(self.about.encode(), np.uint8)
        return {
            "numbers": self.numbers,
            "features": self.features,
            "popular": self.popular,
            "about": about,
        }
