"""The leaves that a client lists: of a trusted tree, or of three parties."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.federation.leaves import TokenRange, require_all_once
from fedrec.operations.party_settings import LeafAccess, require_three_keys


def range_of(leaf: LeafAccess) -> TokenRange:
    """Raises ValueError where it is none."""
    return TokenRange(int(leaf.first, 16), int(leaf.last, 16))


def require_leaves(leaves: Sequence[LeafAccess]) -> None:
    """Raises ValueError unless every pseudonym is of one leaf; or of one of each of three parties,
    with the same ranges, and three keys each."""
    if {leaf.place for leaf in leaves} == {0}:
        return require_all_once([range_of(leaf) for leaf in leaves])
    by_place = {place: [leaf for leaf in leaves if leaf.place == place] for place in (1, 2, 3)}
    if any(leaf.place == 0 for leaf in leaves) or not all(by_place.values()):
        raise ValueError(
            "leaves: of three parties, each has its place, 1, 2 or 3; of one, none has"
        )
    for own in by_place.values():
        require_all_once([range_of(leaf) for leaf in own])
    by_range = three_by_range(leaves)
    if any(len(three) != 3 for three in by_range.values()):
        raise ValueError("leaves: the three parties have the same ranges, each a leaf of its own")
    for three in by_range.values():
        if len({leaf.insecure for leaf in three}) != 1:
            raise ValueError("leaves: all insecure, in a trial, or none")
        keys = [leaf.address if leaf.insecure else leaf.pin for leaf in three]
        require_three_keys(keys, insecure=three[0].insecure)
    return None


def three_by_range(leaves: Sequence[LeafAccess]) -> dict[TokenRange, list[LeafAccess]]:
    """Leaves of three parties by rising range, in the order of their places."""
    found: dict[TokenRange, list[LeafAccess]] = {}
    for leaf in sorted(leaves, key=lambda each: (each.first, each.place)):
        found.setdefault(range_of(leaf), []).append(leaf)
    return found
