"""Choice of a bounded number of each user's examples: uniform, or the rarest items first (Chien et
al. 2021; Ada-DPALS Sec. 5).

Guarantee (user, add/remove). Each user keeps at most `limit` of its items, whatever its data, so
that contributions of norm <= Gamma per item have norm <= sqrt(limit) Gamma per user. Proof: exactly
min(limit, n_k) positions of user k are kept. The choice of a user depends on the key, its own id,
its own items and counts that were released before: removing another user changes nothing of it. No
amplification by sampling is claimed: what is sampled is items within a user, never users.

Priorities are a 64-bit hash of (key, user id, item id), not a stream that users share, and not of
numbers, which shift when somebody leaves: the mask of a user is the same alone, in any shard and
under any numbering. Nothing rests on the key's being secret.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedrec.arrays import Bools, Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import Words, below


def uniform_choice(interactions: Interactions, *, limit: int, key: bytes) -> Bools:
    """Mask (n,): a uniform choice of at most `limit` events of each user.

    key: from a stream, `streams.key("sampling")`.
    """
    return _smallest(interactions, _priorities(interactions, key), limit)


def tail_choice(
    interactions: Interactions, noisy_counts: Float64s, *, limit: int, key: bytes
) -> Bools:
    """Mask (n,): each user's `limit` events on the items of smallest noisy count ("sort by
    increasing counts, keep the k first").

    noisy_counts: (m,) released before. Equal counts, of which clipping at 1 makes many, are ordered
    by the hash, not by item number: numbers tend to follow age.
    """
    if len(noisy_counts) != interactions.num_items:
        raise ValueError(
            f"need one count for each of {interactions.num_items} items, found {len(noisy_counts)}"
        )
    # equal counts share a rank
    rank = np.unique(noisy_counts, return_inverse=True)[1].astype(np.uint64)
    ties = _priorities(interactions, key) >> np.uint64(32)
    return _smallest(interactions, (rank[interactions.items] << np.uint64(32)) | ties, limit)


def share_of_examples(interactions: Interactions, *, share: float, key: bytes) -> Bools:
    """Mask (n,): every example with probability `share`, on its own: the batch B of mini-batch SSP1
    (AM-SSP Alg. 4 l. 4).

    A user keeps some of its examples, so a bound on all of them holds for these too. Examples are
    sampled, not users: nothing is amplified.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the examples lies in (0, 1], found {share!r}")
    return below(_priorities(interactions, key), share)


def _smallest(interactions: Interactions, priorities: Words, limit: int) -> Bools:
    """Keep the `limit` smallest of each user; exactly min(limit, n_k), even if two were equal."""
    if limit < 1:
        raise ValueError(f"a user must be allowed at least one item, found limit {limit}")
    mask = np.ones(len(interactions), np.bool_)
    ptr = interactions.user_ptr
    for k in np.flatnonzero(np.diff(ptr) > limit):
        mine = slice(int(ptr[k]), int(ptr[k + 1]))
        chosen = np.argpartition(priorities[mine], limit - 1)[:limit]
        mask[mine] = False
        mask[int(ptr[k]) + chosen] = True
    return mask


def _priorities(interactions: Interactions, key: bytes) -> Words:
    return interactions.draws(hashlib.sha256(b"fedrec/1/sampling" + key).digest())
