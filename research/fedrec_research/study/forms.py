"""Lines on one model: what a published claim compares, each in up to three forms, its settings
found by one search for all.

- **as printed**: the paper's own choices where the code has them (weights, pseudo-inverse, plain
  descent, examples that are clipped one by one), under the exact accounting. Misprints are read as
  they are meant, as the min of a clip that is printed as max.
- **made sound**: the paper's algorithm and model as `fedrec` runs it: every user's report bounded,
  everything released charged.
- **with our additions**: the same, and item biases and users' own means beside the vectors, which
  no paper here has.

No line has another's additions: within a form all fit the same model from a random start. On
clicks there are no additions, as users have no means of clicks. `Method.space` is what `search`
chooses from, and `Method.on_clicks` what it chooses from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedrec.data.kinds import KINDS, Kind
from fedrec_research.trials import Row, merged

Form = Literal["as printed", "made sound", "with our additions"]
FORMS: tuple[Form, ...] = ("as printed", "made sound", "with our additions")
JUDGED: tuple[Form, ...] = ("made sound", "as printed")
"""Forms that a published claim is judged by, the first above all."""
EPSILONS = (1.0, 5.0, 20.0)
"""Of the search, and of the lines."""
TRIALS = 15
"""Settings tried for every line, epsilon and data set."""
NOT_ON_CLICKS = {
    "fast DPMF, sampler": "its posterior is of ratings alone: it has no term for what a user did "
    "not click, and where all values are 1 it is greatest at vectors that rank nothing; a term for "
    "every other item would make a user's part of the log likelihood grow with the catalogue, and "
    "the paper bounds it by the number of ratings",
    "DP-SGD, trusted curator": "not built: our copy has the loss of ratings alone. AM-SSP (E.1) "
    "measured one on MovieLens 20M, below all others, and prints no loss for it",
    "noisy descent after fast DPMF": "a design of our own: on clicks it would be Ada-DPGD with "
    "weights that are all the same",
    "Ada-DPGD, as printed": "has none on ratings either: Alg. 2 clips the sum over users, which "
    "bounds none of them",
    "AM-DPSGD, as printed": "Alg. 6 clips the gradient of each example, and what was not clicked "
    "is no example of anybody's; the paper does not say how it charges that part",
    "DP-CMF, as printed": "its paper has ratings alone",
}
"""Lines of the page that are not there on clicks, and why."""
Space = Mapping[str, tuple[float | int, ...]]
_IDS: Row = {"data": {"features": False}, "model": {"encoder": "id"}}
_VECTORS: Space = {
    "model.dimension": (2, 3, 4, 6, 8),
    "model.steps": (2, 3, 4, 6, 10),
    "model.user_ridge": (0.1, 0.3, 1.0, 3.0, 10.0),
    "model.item_ridge": (1.0, 3.0, 10.0, 30.0, 100.0),
    "model.user_radius": (0.15, 0.25, 0.5, 1.0, 2.0),
    "model.target_radius": (0.5, 1.0, 2.0, 4.0),
    "model.count_share": (0.03, 0.06, 0.12, 0.2),
}
_EXPONENT: Space = {"model.weight_exponent": (0.125, 0.25, 0.333333, 0.5)}
_DESCENT: Space = {
    "model.dimension": (1, 2, 3, 4, 6),
    "model.steps": (3, 6, 12, 24),
    "model.learning_rate": (0.1, 0.3, 0.5, 0.7, 1.0),
    "model.user_ridge": (0.3, 1.0, 2.0, 4.0, 10.0),
    "model.item_ridge": (3.0, 10.0, 30.0, 60.0, 100.0),
}
_ENCODER: Space = {
    **_VECTORS,
    "model.dimension": (2, 3, 4, 6),
    "model.steps": (3, 4, 6, 10),
    "model.user_ridge": (0.03, 0.1, 0.3, 1.0, 3.0),
    "model.item_ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "model.user_radius": (0.07, 0.15, 0.35, 0.7, 1.5),
    "model.encoder_steps": (5, 10, 20, 50),
    "model.learning_rate": (0.002, 0.005, 0.01, 0.02),
}
_CLICK_VECTORS: Space = {
    "model.dimension": (4, 8, 16, 32, 64),
    "model.steps": (2, 3, 4, 6),
    "model.user_ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "model.item_ridge": (30.0, 100.0, 300.0, 1000.0, 3000.0, 30000.0),
    "model.user_radius": (0.15, 0.25, 0.5, 1.0, 2.0),
    "model.count_share": (0.03, 0.06, 0.12, 0.2),
}
_CLICK_DESCENT: Space = {
    "model.dimension": (2, 4, 8, 16, 32),
    "model.steps": (3, 6, 12, 24),
    "model.learning_rate": (0.1, 0.3, 1.0, 2.0, 4.0),
    "model.user_ridge": (0.1, 0.3, 1.0, 3.0, 10.0),
    "model.item_ridge": (1.0, 3.0, 10.0, 30.0, 100.0),
    "model.user_radius": (0.05, 0.1, 0.2, 0.4, 0.8),
}
_CLICK_ENCODER: Space = {
    **_CLICK_VECTORS,
    "model.dimension": (4, 8, 16, 24, 32),
    "model.encoder_steps": (10, 20, 50, 80),
    "model.learning_rate": (0.002, 0.005, 0.01, 0.02),
}
_KEPT_ITEMS: Space = {"model.max_items_per_user": (20, 50, 100, 200, 1000)}
_METADATA: Space = {
    "collective.metadata_weight": (0.1, 1.0, 10.0, 100.0),
    "collective.metadata_ridge": (1.0, 10.0, 100.0, 300.0),
    "collective.unobserved": (0.01, 0.03, 0.1),
}
_PLAIN_RATES: Space = {"model.learning_rate": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)}
_CLICK_PLAIN_RATES: Space = {"model.learning_rate": (3e-8, 1e-7, 3e-7, 1e-6, 3e-6)}
"""What was not clicked makes the loss steeper: plain descent diverges from 1e-5 on."""
_EXAMPLES: Space = {
    "model.encoder_steps": (1, 2, 4),
    "model.learning_rate": (0.01, 0.03, 0.1, 0.3, 1.0),
    "model.item_ridge": (0.0001, 0.0003, 0.001, 0.003, 0.01),
    "model.gradient_radius": (0.1, 0.3, 1.0, 3.0, 10.0),
}
"""Of AM-SSP Alg. 6 as printed: an absolute rate, and a ridge on item vectors."""
_OF_FEATURES: Row = {"model": {"own_vectors": False}}
_CLIPPED_EXAMPLES: Row = merged(
    {"recipe": "encoder-descent", "model": {"biases": False, "gradient_radius": 1.0}}, _OF_FEATURES
)
_SIDE: Row = {
    "recipe": "dp-cmf",
    "model": {"weights": "normalised"},
    "collective": {"sides": ["metadata"], "start_passes": 0},
}
_AM_SSP: Row = {"recipe": "published", "model": {"weights": "normalised"}}


@dataclass(frozen=True)
class Method:
    """A published algorithm: what its scenario says in each form that the code has, and what its
    settings are chosen from.

    features: whether its item vectors are functions of features, free, or both (beside a public
    side). forms_on_clicks: which of `forms` there are on clicks (`NOT_ON_CLICKS`).
    """

    label: str
    features: Literal["free", "of features", "free and of features"]
    forms: Mapping[Form, Row]
    space: Space
    on_clicks: Space
    spaces: Mapping[Form, Space] | None = None
    spaces_on_clicks: Mapping[Form, Space] | None = None
    forms_on_clicks: tuple[Form, ...] = JUDGED

    def choices(self, form: Form, kind: Kind = "ratings") -> Space:
        """`space` or `on_clicks`, but for what a form has of its own."""
        rated = KINDS[kind].rated
        of_kind = self.space if rated else self.on_clicks
        own = self.spaces if rated else self.spaces_on_clicks
        return {**of_kind, **((own or {}).get(form, {}))}

    def forms_of(self, kind: Kind) -> tuple[Form, ...]:
        """Those that the method has on this kind of data."""
        return tuple(
            form for form in self.forms if KINDS[kind].rated or form in self.forms_on_clicks
        )


def line(method: str, form: Form) -> str:
    """The name of a system of the study."""
    return f"{method}, {form}"


_TWO_LAYERS: Space = {
    "model.dimension": (2, 3, 4, 6, 8),
    "model.steps": (3, 6, 12, 16),
    "model.encoder_steps": (1, 2),
    "model.learning_rate": (0.3, 1.0, 3.0, 10.0, 30.0),
    "model.user_ridge": (0.3, 1.0, 2.0, 4.0, 10.0),
    "model.item_ridge": (0.0003, 0.001, 0.003, 0.01, 0.03),
    "model.gradient_radius": (0.1, 0.3, 1.0, 3.0, 10.0),
}
"""Of AM-SSP Alg. 6 with its encoder of two layers."""


def _statistics(weights: str, printed_weights: str, **more: str) -> Mapping[Form, Row]:
    """Return the forms of DPALS and Ada-DPALS: the printed item update is the pseudo-inverse."""
    base: Row = merged({"recipe": "published", "model": more}, _IDS)
    return {
        "as printed": merged(
            base, {"model": {"weights": printed_weights, "solve": "pseudo-inverse"}}
        ),
        "made sound": merged(base, {"model": {"weights": weights}}),
        "with our additions": merged(base, {"model": {"weights": weights, "own_means": True}}),
    }


def _descent(recipe: str, base: Row) -> Mapping[Form, Row]:
    """Clipping the sum of gradients, as Ada-DPALS Alg. 2 prints, bounds no user: it has no printed
    form that any noise would make private."""
    return {
        "made sound": merged({"recipe": recipe}, base, {"model": {"biases": False}}),
        "with our additions": merged({"recipe": recipe}, base, {"model": {"biases": True}}),
    }


METHODS: Mapping[str, Method] = {
    "ada-dpals": Method(
        "Ada-DPALS",
        "free",
        _statistics("normalised", "clipped"),
        {**_VECTORS, **_EXPONENT},
        {**_CLICK_VECTORS, **_EXPONENT},
    ),
    "dpals-tail": Method(
        "DPALS (tail)",
        "free",
        _statistics("constant", "constant", sampling="tail"),
        {**_VECTORS, **_KEPT_ITEMS},
        {**_CLICK_VECTORS, **_KEPT_ITEMS},
    ),
    "dpals-uniform": Method(
        "DPALS (uniform)",
        "free",
        _statistics("constant", "constant", sampling="uniform"),
        {**_VECTORS, **_KEPT_ITEMS},
        {**_CLICK_VECTORS, **_KEPT_ITEMS},
    ),
    "ada-dpgd": Method(
        "Ada-DPGD",
        "free",
        _descent("dp-gd", _IDS),
        {**_DESCENT, **_EXPONENT},
        {**_CLICK_DESCENT, **_EXPONENT},
    ),
    "am-ssp": Method(
        "AM-SSP",
        "of features",
        {
            "as printed": merged(_AM_SSP, {"model": {"weights": "printed", "optimizer": "plain"}}),
            "made sound": _AM_SSP,
            "with our additions": merged(_AM_SSP, {"model": {"own_means": True}}),
        },
        {**_ENCODER, **_EXPONENT},
        {**_CLICK_ENCODER, **_EXPONENT},
        {"as printed": _PLAIN_RATES},
        {"as printed": _CLICK_PLAIN_RATES},
    ),
    "am-dpsgd": Method(
        "AM-DPSGD",
        "of features",
        {"made sound": {"recipe": "am-dpsgd"}},  # printed, a clipped example bounds no user
        _TWO_LAYERS,
        _TWO_LAYERS,
        forms_on_clicks=(),
    ),
    "encoder-descent": Method(
        "Descent on one layer",
        "of features",
        {"as printed": _CLIPPED_EXAMPLES, **_descent("encoder-descent", _OF_FEATURES)},
        {
            **_DESCENT,
            "model.dimension": (1, 2, 3, 4),
            "model.steps": (3, 6, 12, 16),
            "model.encoder_steps": (1, 2),
        },
        {**_CLICK_DESCENT, "model.steps": (3, 6, 12), "model.encoder_steps": (1, 2)},
        {"as printed": _EXAMPLES},
        forms_on_clicks=("made sound",),
    ),
    "dp-cmf": Method(
        "DP-CMF, metadata",
        "free and of features",
        {
            "as printed": merged(_SIDE, {"model": {"weights": "clipped"}}),
            "made sound": _SIDE,
            "with our additions": merged(_SIDE, {"model": {"own_means": True}}),
        },
        {**_VECTORS, **_EXPONENT, **_METADATA},
        {**_CLICK_VECTORS, **_EXPONENT, **_METADATA},
        forms_on_clicks=("made sound",),
    ),
}
"""By name, in the page's order."""
