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

The module's code is never sent. Each party finds it by name, in this process (`register`), in the
entry points `fedrec.torch_modules` of an installed package, or in a file that the environment
variable FEDREC_TORCH_MODULES names, and refuses another source by its digest. So a server or a
model's file holds numbers alone. A module that is sent would be a program of whoever sent it:
`torch.export.load` of PyTorch 2.13 reads pickles that run code, and TorchScript is deprecated.
Modules are used in evaluation mode: dropout does nothing, and batch normalisation keeps
what it began with, so that what is trained is a function of the parameters alone.

Options come from a server's scenario or from a model's file, and set sizes. So they are bounded,
and a module is made twice: first on PyTorch's meta device, where tensors have shapes and no memory,
and its size compared with a limit and with the parameters that are at hand.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrec.arrays import Float32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError

GROUP = "fedrec.torch_modules"
FILES = "FEDREC_TORCH_MODULES"
"""Environment variable: Python files with modules, joined as in PATH. Whoever starts a process
trusts them with it; no other party names a file."""
Options = Mapping[str, Any]
Module = Callable[..., nn.Module]
LARGEST_OPTION = 1 << 16
"""A constructor may make so many layers before anything of them can be counted."""
MOST_BYTES = 1 << 28
"""Of a module's parameters and buffers, beyond what is public of the items."""
_ORDER = b"fedrec/torch-modules/order"
"""Key of the order of clicks that have no times: public, and the same on every device."""
_REGISTERED: dict[str, Module] = {}


def register(module: Module) -> str:
    """Make a class known to this process by its name, `package.module:Class`, which is returned;
    one of a script has the name that the script's file gives it elsewhere.

    Raises SettingsError where it is none."""
    if not issubclass(type(module), type):
        raise SettingsError(
            f"a {type(module).__name__} is no class of a module", "Give the class, not an instance."
        )
    home = module.__module__
    if home == "__main__":
        home = Path(getattr(sys.modules[home], "__file__", None) or home).stem
    name = f"{home}:{module.__qualname__}"
    _REGISTERED[name] = module
    return name


def found(name: str) -> Module:
    """The class of this name: registered here, or named by an installed package, or of a file of
    `FILES`.

    Raises SettingsError where there is none; nothing is imported because of a name alone."""
    for point in metadata.entry_points(group=GROUP, name=name):
        loaded: Module = point.load()
        return loaded
    if name not in _REGISTERED:
        _register_of_files(name)
    if name not in _REGISTERED:
        raise SettingsError(
            f"there is no module {name!r} here",
            f"Name its file in {FILES}, install the package that names it in its entry points "
            f"{GROUP!r}, or in Python call fedrec.TorchRecommender(Class) first.",
        )
    return _REGISTERED[name]


def _register_of_files(name: str) -> None:
    """Run the file of `FILES` that has the name's first part, unless it is imported, and register
    the class.

    Raises SettingsError where it cannot be run."""
    stem, _, own = name.partition(":")
    for path in map(Path, filter(None, os.environ.get(FILES, "").split(os.pathsep))):
        spec = spec_from_file_location(stem, path)
        if path.stem != stem or spec is None or spec.loader is None:
            continue
        if stem not in sys.modules:
            sys.modules[stem] = module_from_spec(spec)  # where `digest_of` looks for its source
            try:
                spec.loader.exec_module(sys.modules[stem])
            except Exception as failure:  # whatever a person's own file raises
                del sys.modules[stem]
                raise SettingsError(
                    f"{path} cannot be run: {type(failure).__name__}: {failure}",
                    f"Correct {FILES}.",
                ) from failure
        module = getattr(sys.modules[stem], own, None)
        if isinstance(module, type) and issubclass(module, nn.Module):
            register(module)


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


def made(
    name: str, digest: str, features: Float32s, options: Options, *, numbers: int | None = None
) -> nn.Module:
    """The module at its public start, the same at every party. features: (m, f). numbers: how many
    parameters it learns, where the caller holds them.

    Raises SettingsError where its source is another one, it is too large or has another number of
    parameters, or it cannot be made."""
    module = found(name)
    if (ours := digest_of(module)) != digest:
        raise SettingsError(
            f"the source of {name!r} is another one here ({ours[:16]}) than at the server "
            f"({digest[:16]})",
            "Install the same version of it at all parties.",
        )
    seed = int.from_bytes(hashlib.sha256(f"fedrec/1/{name}".encode()).digest()[:7], "big")
    _require_modest(name, options)
    public = torch.from_numpy(features)
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                sized = module(len(features), public.to("meta"), **options)
            _require_size(name, sized, most=features.nbytes + MOST_BYTES, numbers=numbers)
            torch.manual_seed(seed)
            mine = module(len(features), public, **options)
        except SettingsError:
            raise
        except Exception as failure:  # whatever a person's own constructor raises
            raise SettingsError(
                f"{name!r} cannot be made: {type(failure).__name__}: {failure}",
                "Check own.options; PyTorch's meta device must be able to make it, too.",
            ) from failure
    return mine.eval()


def _require_modest(name: str, options: Options) -> None:
    """SettingsError where an option is long or large."""
    for key, value in options.items():
        size = len(value) if isinstance(value, str) else value
        # not abs(size) > largest: a number that is none is refused as well
        if not (isinstance(size, int | float) and abs(size) <= LARGEST_OPTION):
            raise SettingsError(
                f"option {key!r} of {name!r} is no text or number of at most {LARGEST_OPTION}",
                "Correct own.options.",
            )


def _require_size(name: str, sized: nn.Module, *, most: int, numbers: int | None) -> None:
    """SettingsError where a module that has no memory yet would take more, or learns another number
    of parameters."""
    held = sum(one.nbytes for one in (*sized.parameters(), *sized.buffers()))
    learned = sum(one.numel() for one in trained_parameters(sized))
    if held > most or learned != (learned if numbers is None else numbers):
        raise SettingsError(
            f"{name!r} would have {held} bytes and learn {learned} numbers; at most {most} bytes "
            + ("are taken" if numbers is None else f"are taken, and {numbers} numbers are here"),
            "Choose smaller own.options, the same at all parties.",
        )


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
