"""Keys of a call's metadata in which a caller shows who it is, as both ends of a connection know
them."""

from __future__ import annotations

from typing import Literal, TypeAlias

Role: TypeAlias = Literal["client", "server", "aggregator"]

AUTHORIZATION = "authorization"
BEARER = "Bearer "
ROLE_KEY = "fedrec-role"
NAME_KEY = "fedrec-name"
"""Metadata of a caller without TLS."""
