"""Public side of items as the prior of item-item weights: what is alike by features, links or
vectors that everybody may know, beside what the releases say.

    S = (P P')^1/2, P (m, f) the leading directions of what is public: the prior of the weight of a
        click on i for item j, of all items; counts b make it (b_j / b_i)^`POPULAR` S_ij, since of
        equally similar items the popular one is clicked, and a rare click tells more of a taste
    score = (1 - w) x B / |x B| + w x S / |x S|, x B by the private model, lengths of a user's
        scores being their root mean square over all items

The weight w, and which source it belongs to, follows from a charged release (`worth`). The blend
stays an inner product, of few numbers.

Guarantee: post-processing of releases, and public data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float32s, Float64s
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.public_sources import ITEM_VECTORS, SIMILAR_ITEMS
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel
from fedrec.numerics.segments import leading_eigenvectors
from fedrec.randomness import Streams

Arrays = Mapping[str, npt.NDArray[np.generic]]

POPULAR = 0.25
"""Exponent of counts. Validation NDCG@20 of tags alone on 1,892 listeners x 17,632 artists, with
counts released at epsilon 1, 5 and 20, to the power of 0, 1/4, 1/2 and 1: .106, .157, .146, .132;
.106, .171, .165, .152; .106, .176, .170, .155. A click on i that counts b_i^-1/4 gains 0 to 5%
(planted citations, and those tags); MovieLens stays the same."""
LINKS = 300
"""Directions of links; features have as many."""
BITS = 1
"""Of directions, as `coding.rounded_rows` has them: devices download them. Validation NDCG@20 on
the same data with 3, 1, 0 and -1 of them, at epsilon 1: .1589, .1589, .1581, .1581; at 5: .1794,
.1796, .1800, .1775; in 2.7, 1.7, 1.2 and 0.7 MB."""
FALLBACK = 1e-6
"""Of counts, beside scores of root mean square 1: the order of items of which nothing else tells,
and of all items for who has clicked nothing."""


def link_directions(features: PublicFeatures | None) -> Float64s | None:
    """(m, f) P of the bag `SIMILAR_ITEMS`: S = D^-1/2 A D^-1/2, A the pairs' weights > 0 in both
    directions, D what they add up to for each item, cut to its largest positive eigenvalues.

    None without such a bag, or where no item is linked with another."""
    bag = None if features is None else features.bags.get(SIMILAR_ITEMS)
    if bag is None:
        return None
    given = sparse.csr_matrix(bag.counts, dtype=np.float64).maximum(0)
    A = sparse.csr_matrix(given + given.T)
    A.setdiag(0)
    sums = np.asarray(A.sum(axis=1)).ravel()
    if not sums.any():
        return None
    unit = sparse.diags(np.divide(1, np.sqrt(sums), out=np.zeros_like(sums), where=sums > 0))
    S = sparse.csr_matrix(unit @ A @ unit)
    # S's eigenvalues are in [-1, 1]: of S + 1 the largest are the largest, and none is negative
    vectors, values = leading_eigenvectors(
        lambda block: np.asarray(S @ block) + block,
        size=len(sums),
        rank=min(LINKS, len(sums)),
        rng=Streams(0).numpy("links"),
    )
    kept = values > 1 + 1e-9
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept] - 1), np.float64)


def vector_directions(features: PublicFeatures | None) -> Float64s | None:
    """(m, f) P of the bag `ITEM_VECTORS`: rows of length 1, less their mean over items that have
    one; f no more than `LINKS`, the leading directions where there are more.

    None without such a bag, or where all vectors are alike."""
    bag = None if features is None else features.bags.get(ITEM_VECTORS)
    if bag is None:
        return None
    rows = bag.counts.toarray().astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    known = lengths > 0
    if not known.any():
        return None
    rows[known] /= lengths[known][:, None]
    rows[known] -= rows[known].mean(axis=0)
    values, E = np.linalg.eigh(rows.T @ rows)
    kept = np.flatnonzero(values > 1e-9 * max(float(np.count_nonzero(known)), 1))[-LINKS:]
    return np.asarray(rows @ E[:, kept]) if len(kept) else None


def flattened(P: Float64s) -> Float64s:
    """(m, f) of P (m, f): its products are (P P')^1/2, half way from the similarity P P', of which
    a few large directions are most, to all directions alike.

    Validation NDCG@20 of tags with P P', with this and with all directions alike, on 1,892
    listeners x 17,632 artists, one draw: .157, .174, .156 at epsilon 1, with a weight of .8 at 5
    .180, .199, .197. Links, whose eigenvalues are much the same, lose nothing by it."""
    values, E = np.linalg.eigh(P.T @ P)
    known = values > 1e-9 * max(float(values[-1]), 1e-300)
    factors = np.where(known, np.where(known, values, 1.0) ** -0.25, 0.0)
    return np.asarray((P @ E) * factors, np.float64)


def public_alone(directions: tuple[Float32s, ...]) -> PublicPriorModel:
    """What public sides say without any release, at epsilon 0: all sources alike, counts as if all
    items were clicked as often."""
    items = len(directions[0])
    private = ClickModel(np.zeros((items, 1), np.float32), np.ones(items), 1.0, 1.0)
    weights = np.full(1 + len(directions), 1 / len(directions))
    weights[0] = 0
    return PublicPriorModel(private, directions, weights)


@dataclass(frozen=True)
class Part:
    """One part's scores, left right': `left` (n, d) of users, `right` (m, d) of items."""

    left: Float64s
    right: Float64s

    @property
    def unit(self) -> Part:
        """With scores of root mean square 1 over items; of users without any, zeros."""
        gram = self.right.T @ self.right / len(self.right)
        # row after row: a user's length does not depend on the batch
        squares = np.array([max(float(u @ gram @ u), 0.0) for u in self.left])
        found = squares > 0
        factors = np.divide(1, np.sqrt(squares), out=np.zeros_like(squares), where=found)
        return Part(self.left * factors[:, None], self.right)


@dataclass(frozen=True)
class PublicPriorModel:
    """A private model of clicks beside public directions of items.

    private: as without public sides. directions: (m, f_q) P of each source. weights: (1 + sources,)
    of the blend."""

    private: ClickModel | ItemItemModel
    directions: tuple[Float32s, ...]
    weights: Float64s
    offset: float = 0.0

    @staticmethod
    def of_arrays(arrays: Arrays) -> PublicPriorModel:
        """The model of a released file."""
        kind = ClickModel if "ridge" in arrays else ItemItemModel
        names = sorted(name for name in arrays if name.startswith("public."))
        directions = tuple(np.asarray(arrays[name], np.float32) for name in names)
        return PublicPriorModel(
            kind.of_arrays(arrays), directions, np.asarray(arrays["weights"], np.float64)
        )

    def arrays(self) -> Arrays:
        """Everything a device needs, for the released file."""
        public = {f"public.{q}": P for q, P in enumerate(self.directions)}
        return {**self.private.arrays(), **public, "weights": self.weights}

    @property
    def item_vectors(self) -> Float32s:
        """(m, D): the items' side of every part with a weight, and popularity."""
        counts = self.private.counts
        columns = [part for part, w in zip(self.items_of_parts, self.weights, strict=True) if w]
        popular = FALLBACK * counts / max(float(counts.max()), 1e-9)
        return np.column_stack([*columns, popular]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, D): sums over the user's clicks, scaled as the module says, and a one."""
        users = self.users_of_parts(history)
        parts = [
            w * Part(left, right).unit.left
            for left, right, w in zip(users, self.items_of_parts, self.weights, strict=True)
            if w
        ]
        return np.column_stack([*parts, np.ones(history.num_users)])

    @property
    def items_of_parts(self) -> list[Float64s]:
        """The items' side (m, d) of each part's scores."""
        popular = self._popular
        return [self.private.own_items, *(P.astype(np.float64) * popular for P in self.directions)]

    def users_of_parts(self, history: Interactions) -> list[Float64s]:
        """The users' side (n, d) of each part's scores."""
        popular = self._popular
        public = [clicked_sums(P / popular, history) for P in self.directions]
        return [self.private.own_vectors(history), *public]

    @property
    def _popular(self) -> Float64s:
        counts = np.maximum(self.private.counts, FALLBACK)
        return np.asarray(counts[:, None] ** POPULAR, np.float64)


def clicked_sums(P: npt.NDArray[np.floating], history: Interactions) -> Float64s:
    """(n, f) sums of directions P (m, f) over each user's clicks, in their order."""
    ones = np.ones(len(history))
    clicks = sparse.csr_matrix(
        (ones, history.items, history.user_ptr), shape=(history.num_users, history.num_items)
    )
    return np.asarray(clicks @ P.astype(np.float64), np.float64)
