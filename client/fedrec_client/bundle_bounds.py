"""Bounds on a public bundle, checked before a history is looked at: what a server may choose, and a
rehearsal on invented histories.

The server is not trusted with the bundle. It learns whether a query follows the download of one, so
that may depend on the bundle alone. A bundle is refused on public grounds, and then by a rehearsal:
histories without anything, with one item, and with all places taken are asked for, and their
answers thrown away. What fails after that fails for one history, and is not shown (`recommending`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import ProtocolError
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving.asking import ask
from fedrec.serving.bundle import Bundle

_REMEDY = "Nothing was asked and nothing was charged. Do not use this server."


@dataclass(frozen=True)
class BundleBounds:
    """What a bundle may ask of this device.

    places: H, of a history; coefficients: B; width: of a vector of the encoder; largest: of a
    number that a query is made from, small enough for every product of the encoder to be finite in
    single precision; scale: least and largest; padding: the largest probability of hiding a click;
    theta: shortest clipping of the attention, whose noise is drawn on a grid of its size.
    """

    places: int = 1_000
    coefficients: int = 1_024
    width: int = 4_096
    largest: float = 1e6
    scale: tuple[float, float] = (1e-9, 1e9)
    padding: float = 0.99
    theta: float = 1e-6


def require_bounded(bundle: Bundle, bounds: BundleBounds = BundleBounds()) -> None:
    """Raises ProtocolError on a bundle that is too large, or has numbers that could fail for some
    histories alone."""
    about, low, high = bundle.about, *bounds.scale
    if about.history > bounds.places:
        raise _refused(
            f"its histories have {about.history} places, expected at most {bounds.places}"
        )
    if bundle.coefficients > bounds.coefficients:
        raise _refused(
            f"a query has {bundle.coefficients} numbers, expected at most {bounds.coefficients}"
        )
    if not low <= about.scale <= high:
        raise _refused(f"its scale is {about.scale:g}, expected {low:g} to {high:g}")
    public: dict[str, npt.NDArray[Any]] = {"mean": bundle.mean, "covariance": bundle.covariance}
    public |= {name: array for name, array in bundle.more.items() if name.startswith("sizes.")}
    if about.form == "attention":
        public |= {"items": bundle.items, "users.linear": bundle.users.linear, **_encoder(bundle)}
        _require_attention(bundle, bounds)
    for name, array in public.items():
        if not _largest(array) <= bounds.largest:  # false for what is not a number, too
            raise _refused(
                f"{name} has a number that is not finite, or larger than {bounds.largest:g}"
            )


def rehearse(bundle: Bundle, guarantee: Guarantee) -> None:
    """Raises ProtocolError where invented histories cannot be asked for with `guarantee`.

    Touches no private data."""
    H = bundle.about.history
    rows = bundle.size + (bundle.about.form == "attention")  # the anonymous item too
    invented = np.full((3, H), -1, np.int32)
    invented[1, -1] = rows - 1
    invented[2] = np.arange(H) % max(rows, 1)
    try:
        # the answers are thrown away, so the key may be known
        ask(bundle, invented, guarantee=guarantee, key=bytes(32))
    except Exception as failure:  # of invented histories: its words are public
        raise _refused(
            f"it cannot be asked ({type(failure).__name__}: {str(failure)[:200]})"
        ) from None


def _require_attention(bundle: Bundle, bounds: BundleBounds) -> None:
    for name, least, most in (
        ("padding", 0.0, bounds.padding),
        ("theta", bounds.theta, bounds.largest),
        ("heads", 0, bounds.width),
    ):
        value = bundle.more.get(name, np.array(np.nan))
        if value.shape or not least <= float(value) <= most:
            raise _refused(f"{name} is {value}, expected {least:g} to {most:g}")
    moved = math.sqrt(2) * min(float(bundle.more["theta"].item()), 1.0)
    if not moved <= bundle.about.sensitivity <= moved * (1 + 1e-9):
        raise _refused(
            f"its attention can move by {moved:g}, it states {bundle.about.sensitivity:g}"
        )
    arrays = _encoder(bundle)
    if not arrays.keys() >= {"anonymous", "encoder.pool.dense"}:
        raise _refused("it lacks the user encoder")
    if (
        max(
            (length for array in (bundle.items, *arrays.values()) for length in array.shape[-1:]),
            default=0,
        )
        > bounds.width
    ):
        raise _refused(f"a vector of its encoder is longer than {bounds.width}")


def _encoder(bundle: Bundle) -> dict[str, npt.NDArray[np.generic]]:
    return {
        name: array
        for name, array in bundle.more.items()
        if name == "anonymous" or name.startswith("encoder.")
    }


def _largest(array: npt.NDArray[np.generic]) -> float:
    """The largest size of an entry; NaN where there is one.

    Without a copy: `items` may be most of the memory."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "fiu":
        return np.nan
    return max(-float(numbers.min(initial=0)), float(numbers.max(initial=0)))


def _refused(cause: str) -> ProtocolError:
    return ProtocolError(f"the server's bundle cannot be used: {cause}", _REMEDY)
