"""Bounded least squares that a few odd observations do not bend.

    minimise  sum rho(weights * (design @ x - measured))  +  pull^2 * |x / scale - target|^2,   x >= 0,   rho = soft-L1

Iteratively reweighted: each round solves a plain bounded problem and then trusts an observation by how well it fits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear

Floats = npt.NDArray[np.float64]
ROBUST_SCALE = 0.10  # residual from which an observation counts less
_ROUNDS = 12


def robust_fit(design: Floats, measured: Floats, scale: Floats, target: Floats, weights: Floats, pull: float) -> Floats:
    """x >= 0 that minimises soft-L1 of weights * (design @ (scale * x) - measured) + pull^2 * |x - target|^2.

    The first round trusts every step: judged by start values that are far off, all of one kind would look like outliers.
    """
    a = design * scale * weights[:, None]
    b = measured * weights
    tie = pull * np.eye(len(scale))
    trust = np.ones(len(b))
    x = target
    for _ in range(_ROUNDS):
        stacked = np.vstack([a * trust[:, None], tie])
        answer = lsq_linear(stacked, np.concatenate([b * trust, tie @ target]), bounds=(0.0, np.inf))
        x = np.maximum(answer.x, 0.0)
        trust = (1.0 + ((a @ x - b) / ROBUST_SCALE) ** 2) ** -0.25  # square root of the soft-L1 weight
    result: Floats = x
    return result
