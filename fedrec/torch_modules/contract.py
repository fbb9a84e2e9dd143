"""Contract of a module of a person's own, and how all parties come to the same one.

    class Mine(torch.nn.Module):
        def __init__(self, items: int, features: Tensor, **options) -> None
        def items(self) -> Tensor                                 # (m, d)
        def user(self, clicked: Tensor, V: Tensor) -> Tensor      # (h,) item numbers -> (d,)
        def loss(self, clicked: Tensor, V: Tensor, popular: Tensor) -> Tensor    # optional

`items` is how many there are, `features` (m, f) float32 the leading directions of what is public of
them, f = 0 where nothing is. `clicked` are one person's clicks, oldest first, at least one; V is
what `items()` returned. A list is ordered by V u + popular; `popular` (m,) is the logarithm of
released counts, so that what is learned is what popularity does not say. Without `loss`, the last
third of a person's clicks is predicted from those before, by softmax over all items
(`next_clicks_loss`).

The module's code is never sent. Each party finds it by name, in this process (`register`) or in the
entry points `fedrec.torch_modules` of an installed package, and refuses another source by its
digest. Modules are used in evaluation mode: dropout does nothing, and batch normalisation keeps
what it began with, so that what is trained is a function of the parameters alone.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError

GROUP = "fedrec.torch_modules"
Options = Mapping[str, Any]
Module = Callable[..., nn.Module]
_ORDER = b"fedrec/torch-modules/order"
"""Key of the order of clicks that have no times: public, and the same on every device."""
_REGISTERED: dict[str, Module] = {}


def register(module: Module) -> str:
    """Make a class known to this process by its name, `package.module:Class`, which is returned."""
    name = f"{module.__module__}:{module.__qualname__}"
    _REGISTERED[name] = module
    return name


def found(name: str) -> Module:
    """The class of this name: registered here, or named by an installed package.

    Raises SettingsError where there is none; nothing is imported because of a name alone."""
    for point in metadata.entry_points(group=GROUP, name=name):
        loaded: Module = point.load()
        return loaded
    if name not in _REGISTERED:
        raise SettingsError(
            f"there is no module {name!r} here",
            f"Call fedrec.TorchRecommender(Class) of the class first, or install the package that "
            f"names it in its entry points {GROUP!r}.",
        )
    return _REGISTERED[name]


def digest_of(module: Module) -> str:
    """SHA-256 of the file that defines the class, or of the class where it has no file.

    Raises SettingsError where there is no source."""
    try:
        try:
            source = inspect.getsource(sys.modules[module.__module__])
        except (OSError, TypeError):  # a notebook's cell, or typed
            source = inspect.getsource(module)
    except (OSError, TypeError):
        raise SettingsError(
            f"the source of {module.__qualname__} cannot be read", "Put the class into a file."
        ) from None
    return hashlib.sha256(source.encode()).hexdigest()


def made(name: str, digest: str, features: Float32s, options: Options) -> nn.Module:
    """The module at its public start, the same at every party. features: (m, f).

    Raises SettingsError where its source is another one, or it cannot be made."""
    module = found(name)
    if (ours := digest_of(module)) != digest:
        raise SettingsError(
            f"the source of {name!r} is another one here ({ours[:16]}) than at the server "
            f"({digest[:16]})",
            "Install the same version of it at all parties.",
        )
    seed = int.from_bytes(hashlib.sha256(f"fedrec/1/{name}".encode()).digest()[:7], "big")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            mine = module(len(features), torch.from_numpy(features), **options)
        except Exception as failure:  # whatever a person's own constructor raises
            raise SettingsError(
                f"{name!r} cannot be made: {type(failure).__name__}: {failure}",
                "Check own.options.",
            ) from failure
    return mine.eval()


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that are learned, in their order."""
    return [p for p in module.parameters() if p.requires_grad]


def numbers_of(module: nn.Module) -> Float32s:
    """(P,) parameters that are learned."""
    flat: Float32s = nn.utils.parameters_to_vector(trained_parameters(module)).detach().numpy()
    return flat.astype(np.float32)


def with_numbers(module: nn.Module, numbers: Float32s) -> nn.Module:
    """The module itself, with these parameters."""
    given = torch.from_numpy(np.array(numbers, np.float32))
    nn.utils.vector_to_parameters(given, trained_parameters(module))
    return module


def clicks_in_order(mine: Interactions, most: int) -> Iterator[Int64s]:
    """The latest `most` clicks of each user, oldest first; clicks without times stand in an order
    by hash."""
    draws = mine.draws(_ORDER)
    for start, stop in zip(mine.user_ptr[:-1], mine.user_ptr[1:], strict=True):
        part = slice(start, stop)
        order = np.argsort(draws[part], kind="stable")
        if mine.times is not None:
            order = order[np.argsort(mine.times[part][order], kind="stable")]
        yield mine.items[part][order][-most:].astype(np.int64)


def next_clicks_loss(module: nn.Module, clicked: Tensor, V: Tensor, popular: Tensor) -> Tensor:
    """Mean of -log softmax(V u + popular)[j] over the last third of the clicks, u by those before;
    there are at least two."""
    cut = max(1, (2 * len(clicked)) // 3)
    u = module.user(clicked[:cut], V)  # type: ignore[operator]  # see the contract above
    return -functional.log_softmax(V @ u + popular, 0)[clicked[cut:]].mean()
