"""Task weights that minimise the expected error of what is released next, instead of a fixed power of the count.

An item of weighted count c, weight omega and noise std s is seen with signal-to-noise (omega c / s)^2; with a prior variance tau its posterior
error is tau / (1 + tau (omega c / s)^2). Minimising sum_j c_j error_j at a fixed total sum_j c_j omega_j^2 gives
omega_j^2 = max(0, sqrt(tau) (c_j / s) / sqrt(lambda) - 1) / (tau (c_j / s)^2): nothing where the noise would hide the item anyway,
about c^-1/2 where it is popular (between them lies the n^-mu of Ada-DPALS eq. 16).

Guarantee: a function of released counts and public numbers, hence free. The bound on a user comes from scaling its report.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import optimize

Float64s = npt.NDArray[np.float64]

_FLOOR = 0.05  # of (c + 1)^-1/4: an item that the noise hides today may be a user's only one


def waterfill(counts: Float64s, *, std: float, prior_variance: float) -> Float64s:
    """omega (m,), scaled to sum c omega^2 = sum c. counts: (m,) >= 0, released. std 0 (no noise) weighs all items alike."""
    floor = _FLOOR * (counts + 1) ** -0.25
    if std == 0:
        return np.ones(len(counts))
    c = counts + 1e-3
    signal = (c / std) ** 2

    def squares(log_level: float) -> Float64s:
        return np.asarray(np.maximum(prior_variance * np.sqrt(signal) * math.exp(-log_level) - 1, 0) / (prior_variance * signal))

    highest = math.log(prior_variance * float(np.sqrt(signal.max()))) - 1e-9
    level = optimize.brentq(lambda x: float(c @ squares(x) - c.sum()), -60.0, highest)
    omega = np.sqrt(squares(level)) + floor
    return np.asarray(omega / math.sqrt(float(c @ omega**2) / float(c.sum())), np.float64)
