"""A kind of block from outside: squares of a vector's entries are added up."""

from fedrec.federation.block_kinds import BlockKind

SQUARES = BlockKind(
    "squares",
    2,
    lambda width: width,
    lambda X: X**2,
    "a vector that stands for its squares",
    "c x^2",
    bits=(13, 11),
)
TOO_LONG = BlockKind("too-long", 1, lambda width: width, lambda X: 2 * X, "a vector", "2 c x")
