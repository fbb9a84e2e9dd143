"""[model]: what recipes for ratings and clicks may be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedrec.settings_tables.table import Table


class ModelSettings(Table):
    """Settings of the published recipe; 0 takes fedrec's own value.

    The default recipe takes `encoder` and refuses the others."""

    dimension: int = Field(
        0, ge=0, le=512, description="length of user and item vectors; 0 = chosen by the recipe"
    )
    steps: int = Field(
        0,
        ge=0,
        le=100,
        description="outer steps of alternating minimisation; 0 = chosen by the recipe",
    )
    encoder: Literal["features", "id", "two-layer"] = Field(
        "features",
        description="item vectors from public features, or one free vector per item; of am-dpsgd "
        "on ratings also two-layer: AM-SSP Alg. 6 as printed, on batches of example_share",
    )
    user_ridge: float = Field(
        0.0, ge=0, description="ridge of the user solve; 0 = chosen by the recipe"
    )
    item_ridge: float = Field(
        0.0, ge=0, description="ridge of the item update; 0 = chosen by the recipe"
    )
    user_radius: float = Field(
        0.0,
        ge=0,
        description=(
            "Gamma_u, the longest user vector; of dp-gd and am-dpsgd on clicks, of what the "
            "Gramian is summed from; 0 = chosen by the recipe"
        ),
    )
    target_radius: float = Field(
        0.0, ge=0, description="Gamma_y, the largest centred rating; 0 = chosen by the recipe"
    )
    weights: Literal["printed", "normalised", "clipped", "uniform", "constant"] = Field(
        "normalised",
        description="of the published recipe: AM-SSP App. E to the letter, exactly normalised, "
        "Ada-DPALS eq. 12, all alike for a user, or all alike for everybody (DPALS; needs "
        "max_items_per_user)",
    )
    biases: bool = Field(
        True,
        description=(
            "of dp-gd and am-dpsgd: item biases and users' own means, which the papers' models lack"
        ),
    )
    own_means: bool = Field(
        False,
        description=(
            "of published and dp-cmf, on ratings: item biases and users' own means, as "
            "model.biases has them for descent"
        ),
    )
    own_vectors: bool = Field(
        True,
        description=(
            "of am-dpsgd: each item has an entry of its own beside its features; AM-SSP's "
            "encoder has none"
        ),
    )
    gradient_radius: float = Field(
        0.0,
        ge=0,
        description=(
            "of am-dpsgd on ratings: Gamma_g, to which the gradient of each example is clipped, as "
            "AM-SSP Alg. 6 prints; 0 = each user's gradient is scaled instead"
        ),
    )
    optimizer: Literal["adam", "plain"] = Field(
        "adam",
        description="of AM-SSP's encoder: adam, or plain gradient steps as Alg. 2 to 5 print them",
    )
    solve: Literal["projected", "pseudo-inverse"] = Field(
        "projected",
        description=(
            "of the item update without features: projected statistics plus a ridge, or the "
            "pseudo-inverse of Ada-DPALS Alg. 1"
        ),
    )
    loss: Literal["logistic", "quadratic"] = Field(
        "logistic", description="of convex-ssp: what a click and its absence cost"
    )
    click_weight: float = Field(
        0.0,
        ge=0,
        description="of convex-ssp: alpha; a click weighs 1 + alpha; 0 is the plain likelihood",
    )
    weight_exponent: float = Field(
        0.25, ge=0, le=1, description="mu in n^-mu: larger favours rare items"
    )
    count_share: float = Field(
        0.0, ge=0, lt=1, description="share of mu^2 for item counts; 0 = chosen by the recipe"
    )
    resamples: int = Field(
        1,
        ge=1,
        le=64,
        description="1: noise once (SSP2); more: fresh noise in that many steps (SSP1)",
    )
    example_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the examples in each resample (mini-batch SSP1); 1 = all",
    )
    encoder_steps: int = Field(
        0,
        ge=0,
        description="gradient steps of the encoder per outer step; 0 = chosen by the recipe",
    )
    learning_rate: float = Field(0.0, ge=0, description="of the encoder; 0 = chosen by the recipe")
    item_batch: int = Field(0, ge=0, description="items per gradient step; 0 = all (AM-SSP Alg. 5)")
    max_items_per_user: int = Field(
        0, ge=0, description="sample at most so many items of a user; 0 = keep all"
    )
    sampling: Literal["uniform", "tail"] = Field(
        "uniform", description="which items a user keeps: any, or the rarest"
    )

    def chosen(self) -> set[str]:
        """Names of the keys that differ from their defaults."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
