"""At most k items per user: uniform, or biased to the tail (Chien et al. 2021; Ada-DPALS Sec. 5).

Guarantee (user, add/remove). Each user keeps at most `limit` of its items, whatever its data, so that contributions of norm <= Gamma per
item have norm <= sqrt(limit) Gamma per user. Proof: exactly min(limit, n_k) positions of user k are kept. The choice of a user depends on
the key, its own number, its own items and counts that were released before: removing another user changes nothing of it.
No amplification by sampling is claimed: what is sampled is items within a user, never users.

Priorities are a 64-bit hash of (key, user, item), not a stream that users share: the mask of a user is the same alone, in any shard,
and in any order of users. The hash spreads choices evenly; it is not a cryptographic secret and nothing rests on its being one.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions

Booleans = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]


def uniform(interactions: Interactions, *, limit: int, key: bytes, first_user: int = 0) -> Booleans:
    """Mask (n,): a uniform choice of at most `limit` events of each user.

    key: from a stream, `streams.key("sampling")`. first_user: the number of this batch's first user in the whole population.
    """
    return _smallest(interactions, _priorities(interactions, key, first_user), limit)


def tail(interactions: Interactions, noisy_counts: Float64s, *, limit: int, key: bytes, first_user: int = 0) -> Booleans:
    """Mask (n,): each user's `limit` events on the items of smallest noisy count ("sort by increasing counts, keep the k first").

    noisy_counts: (m,) released before. Equal counts, of which clipping at 1 makes many, are ordered by the hash, not by item
    number: numbers tend to follow age.
    """
    if len(noisy_counts) != interactions.num_items:
        raise ValueError(f"need one count for each of {interactions.num_items} items, found {len(noisy_counts)}")
    rank = np.unique(noisy_counts, return_inverse=True)[1].astype(np.uint64)  # equal counts share a rank
    ties = _priorities(interactions, key, first_user) >> np.uint64(32)
    return _smallest(interactions, (rank[interactions.items] << np.uint64(32)) | ties, limit)


def share_of_examples(interactions: Interactions, *, share: float, key: bytes, first_user: int = 0) -> Booleans:
    """Mask (n,): every example with probability `share`, on its own: the batch B of mini-batch SSP1 (AM-SSP Alg. 4 l. 4).

    A user keeps some of its examples, so a bound on all of them holds for these too. Examples are sampled, not users: nothing is amplified.
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of the examples lies in (0, 1], found {share!r}")
    return np.asarray(_priorities(interactions, key, first_user) <= np.uint64(min(int(share * 2.0**64), 2**64 - 1)))


def _smallest(interactions: Interactions, priorities: Words, limit: int) -> Booleans:
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


def _priorities(interactions: Interactions, key: bytes, first_user: int) -> Words:
    salt = np.frombuffer(hashlib.sha256(b"fedrec/1/sampling" + key).digest()[:8], np.uint64)
    users = interactions.users.astype(np.uint64) + np.uint64(first_user)
    return _mix(_mix(users + salt) ^ _mix(interactions.items.astype(np.uint64)))


def _mix(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit moves half the output bits."""
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
