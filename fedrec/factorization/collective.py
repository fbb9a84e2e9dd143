"""DP-CMF: private matrix factorisation with public item features (Alg. 1, Curmei et al. 2023),
exactly accounted.

Public data of items is one more matrix S to factorise with the same item vectors: S_kj says that
item j carries feature value k, is similar to item k, or was rated by public user k. In every outer
step the users report as under the published recipe, and the item update adds exact public
statistics to the noised private ones:

    v_j = (A_j + lambda I + sum over sides of alpha A'_j)^-1      (l. 9-11)
          (b_j + sum over sides of alpha b'_j)

Guarantee (user, add/remove): that of `ssp.PublishedRecipe` without an encoder, whose questions and
client steps these are, letter for letter. F^t is a function of S, which is public, and of V^(t-1),
which earlier releases made (l. 3); so are A' and b'. All of the above is post-processing of the
releases that the plan lists (Prop. 3.1's argument, with the exact composition in the place of its
bound, which asks for 29 to 37% more noise). It holds only while no private user's data is in S: see
`data.public_sources`.

Errata. l. 7 prints max(|u|, Gamma) u / |u|, which lengthens: min. l. 6 clips ratings from above:
both sides. Section 2.2 has neighbours replace a user, the proof removes one: add/remove (where one
is replaced, A moves by sqrt(2), b by 2: sqrt(3) more noise). Eq. (2) has W inside the square:
outside.
Where we leave the paper: l. 10 adds alpha lambda' I to the items' ridge, though eq. (1) has lambda'
on F alone: left out, as in eq. (1); l. 9 projects A_j + lambda I: A_j is projected, then lambda I
added, which no noise makes singular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s, Floats
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.factorization.am_ssp.recipe import PublishedRecipe
from fedrec.factorization.item_statistics import ItemStatistics, item_statistics
from fedrec.factorization.least_squares import (
    LocalStageModel,
    solve_packed,
    solve_rows,
)
from fedrec.federation.messages import Question, Release, State
from fedrec.numerics.segments import order_by_item, pack, unpack
from fedrec.numerics.threads import map_ranges
from fedrec.privacy.calibration import Plan

_BLOCK = 512  # matrices unpacked at a time, in bounded memory


@dataclass(frozen=True)
class Side:
    """One public matrix S (s, m) in CSR, and how much it counts.

    weight: alpha. ridge: lambda', of each row of F, beside entries of weight 1 (eq. 3). unobserved:
    weight of |F V'|^2, which draws to 0 what is not an entry (Remark 3.1); 0 for ratings, whose
    absence says nothing.
    """

    name: str
    entries: sparse.csr_matrix
    weight: float
    ridge: float
    unobserved: float = 0.0


def feature_vectors(side: Side, V: Float64s) -> Float64s:
    """F (s, d), l. 3: f_k = (sum v v' + unobserved V'V + lambda' I)^-1 sum S_kj v_j over the
    entries of row k."""
    S = side.entries
    ptr = S.indptr.astype(np.int64)
    items = S.indices.astype(np.int32)
    targets = S.data.astype(np.float64)
    return np.asarray(
        solve_rows(
            ptr, items, V, ridge=side.ridge, targets=targets, base=side.unobserved * (V.T @ V)
        ),
        np.float64,
    )


def exact_statistics(side: Side, V: Float64s) -> ItemStatistics:
    """alpha A'_j and alpha b'_j (l. 10) at F of `V`: sum f f' + unobserved F'F, and sum S_kj f."""
    F = feature_vectors(side, V)
    S = side.entries
    order = order_by_item(S.indptr.astype(np.int64), S.indices.astype(np.int32), S.shape[1])
    found = item_statistics(order, F.astype(np.float32), S.data.astype(np.float32))
    everywhere = pack((side.unobserved * F.T @ F)[None])
    return ItemStatistics(
        side.weight * (found.gram + everywhere), side.weight * found.moment.astype(np.float64)
    )


def project_psd(packed: Floats, width: int, *, floor: float = 0.0) -> Floats:
    """The nearest symmetric matrices with no eigenvalue below `floor`, packed (m, d(d+1)/2) to
    packed; the input's type.

    A matrix that needs nothing comes back unchanged. Raises ValueError where an entry is not finite
    or LAPACK does not converge.
    """
    unfit = ~np.isfinite(packed).all(axis=1)
    if bool(unfit.any()):
        raise ValueError(
            f"{int(unfit.sum())} matrices have no eigenvalues, the first is row "
            f"{int(np.argmax(unfit))}"
        )
    projected = np.array(packed)

    def piece(first: int, last: int) -> None:
        for low in range(first, last, _BLOCK):
            block = projected[low : min(low + _BLOCK, last)]
            values, Q = np.linalg.eigh(unpack(block, width))
            lift = np.maximum(floor - values, 0).astype(block.dtype)
            low_rows = lift.any(axis=1)  # the others stay bit for bit
            Q = Q[low_rows]
            block[low_rows] += pack((Q * lift[low_rows, None, :]) @ Q.swapaxes(1, 2))

    map_ranges(piece, len(projected))
    return projected


def item_update(
    private: ItemStatistics, public: Sequence[ItemStatistics], *, ridge: float | Float64s
) -> Float64s:
    """V (m, d), l. 9-11: the noised A_j made positive semidefinite, the ridge and the exact
    statistics added, solved in float64."""
    gram = project_psd(private.gram.astype(np.float64), private.width)
    A = np.sum([gram, *(side.gram for side in public)], axis=0)
    b = np.sum([private.moment.astype(np.float64), *(side.moment for side in public)], axis=0)
    return np.asarray(solve_packed(A, b, ridge=ridge), np.float64)


@dataclass(frozen=True)
class CollectiveRecipe:
    """The server: the published recipe without an encoder, but for the item update.

    `start_passes`: passes over the public sides alone before the first question, in the place of a
    random V^0; 0 as in the paper.
    """

    private: PublishedRecipe
    sides: tuple[Side, ...]
    start_passes: int

    @property
    def plan(self) -> Plan:
        """That of the private part: public data has no price."""
        return self.private.plan

    def begin(self) -> State:
        """Item vectors from the run's seed, then from public data.

        Raises SettingsError without any."""
        if not self.sides:
            raise SettingsError(
                'recipe = "dp-cmf" found nothing public',
                "Give item features, or choose other collective.sides.",
            )
        state = dict(self.private.begin())
        V = np.asarray(state["V"], np.float64)
        for _ in range(self.start_passes):
            V = self._public_pass(V)
        return {**state, "V": V.astype(np.float32)}

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per outer step."""
        return self.private.ask(state)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The noisy counts and mean after round 0, then Alg. 1 l. 3 and 9-11."""
        t = int(state["round"])
        if t == 0:
            return self.private.tell(state, question, answer)
        public = self._public(np.asarray(state["V"], np.float64))
        moved = item_update(
            self.private.statistics(t - 1, 0, answer),
            public,
            ridge=self.private.ridge(state),
        )
        return {**state, "V": moved.astype(np.float32), "round": np.array(t + 1)}

    def model(self, state: State) -> PublishedModel | LocalStageModel:
        """What a device needs. F stays behind: it predicts no rating."""
        return self.private.model(state)

    def _public_pass(self, V: Float64s) -> Float64s:
        m, d = V.shape
        nothing = ItemStatistics(np.zeros((m, d * (d + 1) // 2)), np.zeros((m, d)))
        return item_update(nothing, self._public(V), ridge=self.private.settings.item_ridge)

    def _public(self, V: Float64s) -> list[ItemStatistics]:
        """Exact statistics of every side; an item's bias, the last coordinate where it has one,
        explains no public entry."""
        extra = V.shape[1] - self.private.settings.dimension
        vectors = np.ascontiguousarray(V[:, : V.shape[1] - extra])
        return [_with_zeros(exact_statistics(side, vectors), extra) for side in self.sides]


def _with_zeros(statistics: ItemStatistics, extra: int) -> ItemStatistics:
    """These statistics with `extra` more coordinates of zeros."""
    if not extra:
        return statistics
    full = unpack(np.asarray(statistics.gram), statistics.width)
    gram = np.pad(full, ((0, 0), (0, extra), (0, extra)))
    return ItemStatistics(pack(gram), np.pad(np.asarray(statistics.moment), ((0, 0), (0, extra))))
