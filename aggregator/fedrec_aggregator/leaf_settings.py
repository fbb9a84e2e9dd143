"""Tables of a tree of aggregators: what a leaf is, and which leaves a root has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fedrec.federation.leaves import TokenRange, require_all_once
from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import FilePath, RangeTable, with_pin
from fedrec.transport.channel import Access

ROOT = "root"
"""What a leaf calls its root, and the root itself where there is no TLS."""


class LeafTable(RangeTable):
    """This aggregator as a leaf: it takes reports of a range of pseudonyms for a root, and releases
    nothing."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="as in its certificate, fedrec:aggregator:<name>",
    )
    root: str = Field(
        "",
        description="the root's name, as in its certificate; empty: aggregator, or of three "
        "parties its place",
    )
    root_pin: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of the root's public key; pins fills it",
    )


class LeafOfRoot(RangeTable):
    """One leaf of this root."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="as in its certificate, fedrec:aggregator:<name>",
    )
    address: str = Field(min_length=1, description="host:port")
    pin: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="SHA-256 of its public key; pins fills it"
    )
    ca: FilePath = Field(
        "", description="file of the authority that vouches for it; without it the pin alone"
    )
    max_users: int = Field(
        100_000_000,
        ge=1,
        description="users that may enrol there; a leaf that says more is not believed",
    )

    def access(self, certificate: Path | None, key: Path | None) -> Access:
        """The root's way to it; without a certificate on loopback, as the root by its word."""
        if certificate is None or key is None:
            return Access(self.address, name=ROOT, insecure=True)
        return Access(
            self.address, ca=self.ca, pin=self.pin, certificate=str(certificate), key=str(key)
        )


def token_range(table: RangeTable) -> TokenRange:
    """The pseudonyms of a table. Raises ValueError where there are none."""
    return TokenRange(int(table.first, 16), int(table.last, 16))


def tree_pinned(content: dict[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """The root's key in a leaf's table, and the leaves' in a root's. known: keys of aggregators, by
    name."""
    if (
        isinstance(leaf := content.get("leaf"), dict)
        and not leaf.get("root_pin")
        and not content.get("insecure")
    ):
        three = content.get("three_party")
        place = str(three.get("place")) if isinstance(three, dict) else "aggregator"
        root = str(leaf.get("root") or place)
        content = content | {"leaf": leaf | {"root_pin": known.get(root, "")}}
    if isinstance(leaves := content.get("leaves"), list) and not content.get("insecure"):
        content = content | {"leaves": [with_pin(leaf, "", known) for leaf in leaves]}
    return content


def require_tree(
    leaf: LeafTable | None, leaves: Sequence[LeafOfRoot], *, insecure: bool, tokens: bool
) -> None:
    """Raises ValueError on a leaf or leaves that cannot be: without keys of their own, or with
    ranges that do not hold everybody once."""
    if leaf is None and not leaves:
        return
    if leaf is not None and leaves:
        raise ValueError(
            "leaf is an aggregator below a root, leaves are those of a root: drop one or the other"
        )
    if tokens:
        raise ValueError(
            "root and leaves know each other by certificates (tls.client_ca): leave out tokens"
        )
    if leaf is not None:
        token_range(leaf)
        if not insecure and not leaf.root_pin:
            raise ValueError(
                "leaf.root_pin is missing: whoever the authority calls an aggregator could "
                "take sums. Give pins, or root_pin"
            )
        return
    require_all_once([token_range(each) for each in leaves])
    if insecure:
        if any(each.pin for each in leaves) or not all(
            Address.of(each.address).loopback for each in leaves
        ):
            raise ValueError("leaves: insecure = true is for leaves on loopback, without pins")
    elif not all(each.pin for each in leaves):
        raise ValueError("leaves: each needs its pin: give pins, or leaves.pin")
    for what, values in (
        ("name", [each.name for each in leaves]),
        ("address", [each.address for each in leaves]),
    ):
        if len(set(values)) != len(values):
            raise ValueError(f"leaves: each has a {what} of its own, found {values}")
    if not insecure and len({each.pin for each in leaves}) != len(leaves):
        raise ValueError("leaves: two have one key, so one process would be merged twice")
