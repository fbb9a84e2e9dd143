"""[news]: the variants of news recommendation."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from fedrec.settings_tables import Table
from fedrec.settings_tables.data import Epsilon


class NewsSettings(Table):
    """News recommendation, `recipe = "privaterec"`. Zero lets the variant choose."""

    variant: str = Field(
        "additive",
        json_schema_extra={
            "examples": [
                "additive",
                "local",
                "central",
                "central-encoder",
                "printed",
                "fedrec",
                "dp-fedrec",
                "centralized",
            ]
        },
        description="local where recipe is privaterec and nothing is said; "
        "additive: one noised report a user, then training on reports; "
        "local, central, central-encoder, printed, fedrec and dp-fedrec train in rounds "
        "(PrivateRec Alg. 3); centralized collects the data; or one that a package names",
    )
    model: Literal["nrms", "naml", "plm-nr"] = Field(
        "nrms", description="news and user encoder of all variants but additive"
    )
    topics: Literal["directions", "text", "categories"] = Field(
        "directions",
        description=(
            "public rows of additive and central: leading directions of item vectors, clusters "
            "of texts, or the categories"
        ),
    )
    open_categories: tuple[str, ...] = Field(
        (),
        description=(
            "additive: categories that need no protection; clicks on items of these alone are "
            "told as they are"
        ),
    )
    no_click: Literal["leave-out", "report"] = Field(
        "leave-out",
        description=(
            "of additive: leave-out, impressions without a click send nothing; report, they "
            "send an answer too, and all answers have one more symbol"
        ),
    )
    basis: int = Field(
        0,
        ge=0,
        le=512,
        description="B: directions or topics from text, basis vectors of the others; 0 = 32, or 5",
    )
    history: int = Field(
        50, ge=1, le=1000, description="H: how many of the latest clicks make a history"
    )
    serving_epsilons: tuple[Epsilon, ...] = Field(
        ("inf", 10, 5, 1),
        min_length=1,
        validate_default=True,
        description="epsilon of one served answer; the first makes the headline",
    )
    max_user_epsilon: Epsilon = Field(
        math.inf,
        description=(
            "the most that training may cost one person, per user (replace), with a full history "
            "and all labels"
        ),
    )
    padding: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "p: share of clicks hidden behind the anonymous news, on the device; not for additive"
        ),
    )
    attention_noise: Literal["gaussian", "laplace"] = Field(
        "gaussian",
        description="of attention released in training (local, printed): laplace is pure, its "
        "guarantee needs no delta, and its answers' epsilons add up",
    )
    serving_noise: Literal["gaussian", "laplace", "laplace-printed"] = Field(
        "gaussian",
        description="of answers of an encoder (attention, or whole user vectors of fedrec and "
        "dp-fedrec): laplace is pure and clips in L1; laplace-printed clips in L2 and takes that "
        "for the sensitivity: NOT ESTABLISHED",
    )
    accounting: Literal["whole", "per-round"] = Field(
        "whole",
        description="of local and dp-fedrec: epsilon is of all rounds together, or of each alone, "
        "as the paper has it: NOT ESTABLISHED, and what all cost is printed beside it",
    )
    sizes: Literal["small", "published"] = Field(
        "small",
        description="of the encoders: width 64, or those of the papers (256 for NRMS and PLM-NR, "
        "400 for NAML, words of 300)",
    )
    printed: tuple[Literal["raw-score", "softplus", "own-labels", "public-start"], ...] = Field(
        (),
        description=(
            "of printed, what is taken otherwise: raw-score, Alg. 3 l. 20 to the letter; softplus, "
            "Alg. 2 l. 10 in training too; own-labels, local's answers; public-start, local's basis"
        ),
    )
    clip: float = Field(
        0.0,
        ge=0,
        description=(
            "theta: longest attention vector, or longest gradient; 0 = chosen by the variant"
        ),
    )
    rounds: int = Field(
        0,
        ge=0,
        le=100_000,
        description=(
            "rounds of training; local, printed, fedrec and dp-fedrec round up to whole passes "
            "over all users; 0 = chosen by the variant"
        ),
    )
    users_per_round: int = Field(
        0, ge=0, description="users of a round, on average; 0 = chosen by the variant"
    )
    bands: int = Field(
        1,
        ge=1,
        le=16,
        description=(
            "b of central-encoder: noise is correlated over so many rounds (banded matrix "
            "mechanism); 1 = independent"
        ),
    )
    epochs: int = Field(
        0,
        ge=0,
        le=1000,
        description=(
            "passes over the reports (additive) or the clicks (centralized); 0 = chosen by the "
            "variant"
        ),
    )
    learning_rate: float = Field(0.0, ge=0, description="0 = chosen by the variant")
    word_vectors: str = Field(
        "",
        description=(
            "GloVe text file to start word embeddings from; empty starts from the public texts"
        ),
    )
    entity_vectors: str = Field(
        "",
        description="MIND's entity_embedding.vec; its vectors join those of the items, on average",
    )
    language_model: str = Field(
        "",
        description=(
            "folder of a Hugging Face encoder, for plm-nr; empty takes vectors of the public "
            "features"
        ),
    )
