"""Claims of DP-CMF (Curmei et al. 2023): public matrices beside private ratings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from fedrec_research.claims import lines
from fedrec_research.claims.claim import Claim, not_tested_by, proved
from fedrec_research.claims.points import (
    Pair,
    Spot,
    ahead,
    along,
    computed,
    never_behind,
    of_other_data,
)

NAME = "dp-cmf"
FIGURE = "dp-cmf/figure1"
NONE = "DPALS (no sides)"
BINARY = "public users, binary"
RAW = "public users, raw"
EPSILONS = (1, 5, 10, 20)
BUCKET = "rmse in bucket, epsilon 1"
_SHARE = "share of entries in bucket"
_WAYS = ("inner-product", "cosine")
_ALS = "the ALS of this figure has item and user biases, and neither end of the gap has any"


def _closed(values: Sequence[float]) -> tuple[int, int, str]:
    """The largest share of the gap from no sides to ALS that all sides close."""
    *ends, als = values
    shares = [
        (none - best) / (none - als) for none, best in zip(ends[::2], ends[1::2], strict=True)
    ]
    said = " / ".join(f"{share:.2f}" for share in shares)
    return 0, 1, f"All sides close {said} of it at ε = 1, 5, 10, 20"


CLAIMS = (
    Claim(
        NAME,
        "figure1",
        "4.2",
        "On ratings item metadata helps.",
        lines.on_one_model("dp-cmf", "ada-dpals", about=lines.FEATURES, kinds=("ratings",)),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "Similar items help.",
        ahead(along(FIGURE, "similar items", NONE, EPSILONS)),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "Public users, as clicks, are ahead of the other single sources.",
        ahead(
            [
                p
                for other in ("similar items", "metadata")
                for p in along(FIGURE, BINARY, other, EPSILONS)
            ]
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "All sides together are ahead of public users alone.",
        ahead(along(FIGURE, "all sides", RAW, EPSILONS)),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2",
        "Sides close up to this share of the gap to ALS.",
        not_tested_by(
            _ALS,
            computed(
                [
                    *(Spot(FIGURE, s, e) for e in EPSILONS for s in (NONE, "all sides")),
                    Spot(FIGURE, "ALS (not private)", "any"),
                ],
                _closed,
            ),
        ),
        "0.6",
    ),
    Claim(
        NAME,
        "figure1",
        "4.2.1",
        "At ε = 1, in buckets 2 to 4, metadata gain most.",
        ahead(
            [
                p
                for other in (BINARY, "similar items")
                for p in along(FIGURE, "metadata", other, (2, 3, 4), BUCKET)
            ],
            "bucket",
        ),
        main=True,
    ),
    Claim(
        NAME,
        "figure1",
        "4.2.1",
        "Four buckets of films have these shares of the ratings.",
        of_other_data(
            [Spot("dp-cmf/figure2", "ratings", b, _SHARE) for b in (1, 2, 3, 4)],
            "a number of ML-10M",
        ),
        "0.866 / 0.094 / 0.03 / 0.01",
    ),
    Claim(
        NAME,
        "figure2",
        "4.2.1",
        "Public users and metadata have these shares of entries on popular films.",
        of_other_data(
            [Spot("dp-cmf/figure2", s, 1, _SHARE) for s in ("public-users", "metadata")],
            "a number of ML-20M and Wikidata",
        ),
        "0.9 / 0.37",
    ),
    Claim(
        NAME,
        "figure2",
        "4.2.1",
        "Metadata are less biased to popular films than public users.",
        ahead(along("dp-cmf/figure2", "public-users", "metadata", (1,), _SHARE), "bucket"),
    ),
    Claim(
        NAME,
        "figure3",
        "4.2.2",
        "The cast alone brings most of what all metadata bring.",
        ahead(along("dp-cmf/figure3", "cast", NONE, EPSILONS)),
        main=True,
    ),
    Claim(
        NAME,
        "figure3",
        "4.2.2",
        "The cast is the best of the metadata.",
        ahead(
            [
                p
                for other in ("genre", "topic")
                for p in along("dp-cmf/figure3", "cast", other, EPSILONS)
            ]
        ),
    ),
    Claim(
        NAME,
        "figure3",
        "4.2.2",
        "So it is on frequent and on rare films, at ε = 1.",
        ahead(
            [
                p
                for other in ("genre", "topic")
                for p in along("dp-cmf/figure3", "cast", other, (1, 2, 3, 4), BUCKET)
            ],
            "bucket",
        ),
    ),
    Claim(
        NAME,
        "figure4",
        "4.2.2",
        "More neighbours are better.",
        ahead(
            [
                p
                for way, (few, many) in product(_WAYS, pairwise((10, 30, 100)))
                for p in along(
                    "dp-cmf/figure4",
                    f"{way}, k = {many}",
                    f"{way}, k = {few}",
                    EPSILONS,
                    reading=f"{way}, {many} against {few}",
                )
            ]
        ),
    ),
    Claim(
        NAME,
        "figure4",
        "4.2.2",
        "Inner products beat cosines.",
        ahead(
            [
                p
                for k in (10, 30, 100)
                for p in along(
                    "dp-cmf/figure4",
                    f"inner-product, k = {k}",
                    f"cosine, k = {k}",
                    EPSILONS,
                    reading=f"k = {k}",
                )
            ]
        ),
    ),
    Claim(
        NAME,
        "figure4",
        "4.2.2",
        "On rare films inner products are weaker.",
        ahead(
            [
                Pair(
                    f"cosine against inner product, k = {k}",
                    4,
                    *(
                        Spot("dp-cmf/figure4", f"{way}, k = {k}", 4, BUCKET)
                        for way in reversed(_WAYS)
                    ),
                )
                for k in (10, 30, 100)
            ],
            "bucket",
        ),
    ),
    Claim(
        NAME,
        "figure5",
        "4.2.2",
        "More public users are better.",
        ahead(
            [
                p
                for way, (few, many) in product(
                    (RAW, BINARY), pairwise(("100", "300", "1000", "all"))
                )
                for p in along(
                    "dp-cmf/figure5",
                    f"{way}, {many}",
                    f"{way}, {few}",
                    EPSILONS,
                    reading=f"{way}, {many} against {few}",
                )
            ]
        ),
    ),
    Claim(
        NAME,
        "figure5",
        "4.2.2",
        "1,000 public users do what the best metadata does.",
        never_behind(
            [
                Pair(
                    "1,000 public users against all metadata on ml-1m",
                    e,
                    Spot("dp-cmf/figure5", f"{RAW}, 1000", e),
                    Spot(FIGURE, "metadata", e),
                )
                for e in EPSILONS
            ]
        ),
        "comparable",
        main=True,
    ),
    Claim(
        NAME,
        "figure5",
        "4.2.2",
        "Raw ratings of public users beat clicks.",
        ahead(
            [
                p
                for n in ("100", "300", "1000", "all")
                for p in along(
                    "dp-cmf/figure5",
                    f"{RAW}, {n}",
                    f"{BINARY}, {n}",
                    EPSILONS,
                    reading=f"{n} users",
                )
            ]
        ),
    ),
    Claim(
        NAME,
        "",
        "Alg. 1",
        "Clipping as printed bounds a user.",
        proved(
            "did not hold",
            "a maximum stands for a minimum, and one clip has one side alone; both are read as "
            "they are meant",
            "tests/factorization/test_collective.py",
        ),
        main=True,
    ),
)
