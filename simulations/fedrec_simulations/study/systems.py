"""Which systems are compared, what each may know beside private data, and what its scenario says.

Published systems are made sound: per user, exactly accounted, their settings chosen on validation at every epsilon (`ratings_settings`,
`clicks_settings`, the scenarios of AM-SSP's and convex SSP's figures, or the recipe's own). The one exception is the sampler of fast DP
matrix factorisation as printed, whose guarantee is not established: it is shown, and compared with nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedrec.data.interactions import Kind
from fedrec.settings import Scenario, validated
from fedrec_simulations.bench.rows import Row, merged
from fedrec_simulations.papers.starts import Start
from fedrec_simulations.study import clicks_settings, ratings_settings

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 5.0, 10.0, 20.0, math.inf)
HALF_PUBLIC: Mapping[str, Any] = {"users_share": 0.5}
"""Of [collective], where there is no second source: half of the data's users are made public and leave private data and test."""

Group = Literal["alone", "people"]
"""Systems of a group have the same private users. In "people" other people's data is public; in "alone", item features at most."""
Origin = Literal["ours", "published", "printed", "not private"]
"""published: made sound. printed: its guarantee is not established. not private: a reference without a guarantee."""
Settings = Callable[[str, float], Row]
"""What a scenario says, of the data's name and epsilon."""


@dataclass(frozen=True)
class Place:
    """The data of a study. `path` "planted" is the small planted set; `name` decides which settings for clicks are taken."""

    path: str
    name: str
    kind: Kind


@dataclass(frozen=True)
class System:
    """One line of the tables. `public` is what it knows beside private data; `says` is None where no recipe trains it."""

    name: str
    label: str
    origin: Origin
    public: str
    says: Settings | None
    group: Group = "alone"

    @property
    def knows(self) -> frozenset[str]:
        """The parts of `public`."""
        return frozenset(self.public.split(", ")) - {NOTHING}

    @property
    def epsilons(self) -> tuple[float, ...]:
        """A reference has no budget to spend."""
        return EPSILONS[-1:] if self.origin == "not private" else EPSILONS

    def scenario(self, place: Place, epsilon: float, seed: int) -> Scenario:
        """What `fedrec simulate` would be told. Raises SettingsError where no recipe does it, or refuses this."""
        return validated(merged(_common(place, epsilon, seed), self.says(place.name, epsilon) if self.says else {}), source=self.name)


def _common(place: Place, epsilon: float, seed: int) -> Row:
    """Ratings are divided by the seed, which is the noise's too; clicks come with their test events."""
    return {
        "seed": seed,
        "data": {"path": place.path} if place.path != "planted" else {"preset": "small"},
        "split": {"seed": seed} if place.kind == "ratings" else {"kind": "given"},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "noise": "seeded"},
    }


NOTHING, FEATURES = "nothing", "item features"
PEOPLE, CLICKERS = "item features, half of the users", "half of the users"
ID_ONLY: Row = {"data": {"features": False}, "model": {"encoder": "id"}}


def default(public: str) -> Settings:
    """Ours, as it comes."""
    return lambda data, epsilon: {"recipe": "default"} | (ID_ONLY if public == NOTHING else {})


def recipe(name: str, *, features: bool = False) -> Settings:
    """A published system whose recipe chooses its own settings by epsilon."""
    return lambda data, epsilon: {"recipe": name} | ({} if features else ID_ONLY)


def tuned(method: str, **model: Any) -> Settings:
    """DPALS and Ada-DPALS on ratings, with settings of their own at every epsilon."""
    return lambda data, epsilon: {
        "recipe": "published",
        **ID_ONLY,
        "model": {"encoder": "id", **model, **ratings_settings.model(method, epsilon)},
    }


def encoder(data: str, epsilon: float) -> Row:
    """AM-SSP: the published recipe with an encoder of item features."""
    return {"recipe": "published", **Start("am_ssp_figure1").settings("AM-SSP", epsilon)}


def convex(loss: str) -> Settings:
    """SSP for convex losses, and the same recipe with the quadratic loss."""

    def says(data: str, epsilon: float) -> Row:
        tuned = Start("convex_ssp_amazon_book" if data == "amazon-book" else "convex_ssp_yelp2018").settings(loss, epsilon)
        return {"recipe": "convex-ssp", **ID_ONLY, "model": {"encoder": "id", "loss": loss, **tuned["model"]}}

    return says


def collective(method: str, *names: str) -> Settings:
    """DP-CMF: sides of public data; public people where a side needs them."""
    people = {} if names == ("metadata",) else HALF_PUBLIC

    def says(data: str, epsilon: float) -> Row:
        model, weights = ratings_settings.model(method, epsilon), ratings_settings.sides(method, epsilon)
        return {"recipe": "dp-cmf", "model": {"weights": "normalised", **model}, "collective": {"sides": list(names), **people, **weights}}

    return says


def collective_clicks(data: str, epsilon: float) -> Row:
    """DP-CMF on clicks, with the clicks of public people; the rest as Ada-DPALS."""
    people = {"sides": ["public-users"], "users_values": "binary", **HALF_PUBLIC}
    return {"recipe": "dp-cmf", "model": {"weights": "normalised", **_on_clicks(data, "Ada-DPALS", epsilon)}, "collective": people}


def people_alone(data: str, epsilon: float) -> Row:
    """Passes over the ratings of public people, for `training` to stop there."""
    return {"recipe": "dp-cmf", "collective": {"sides": ["public-users"], "start_passes": 30, **HALF_PUBLIC}}


def default_with(*names: str, **more: Any) -> Settings:
    """Ours with the same public people."""
    return lambda data, epsilon: {"recipe": "default", "collective": {"sides": list(names), **more, **HALF_PUBLIC}}


def tuned_clicks(method: str, **model: Any) -> Settings:
    """The same on clicks."""
    return lambda data, epsilon: {
        "recipe": "published",
        **ID_ONLY,
        "model": {"encoder": "id", **model, **_on_clicks(data, method, epsilon)},
    }


def _on_clicks(data: str, method: str, epsilon: float) -> Mapping[str, Any]:
    """[model] of a method; yelp2018's for other data."""
    known = clicks_settings.TUNED
    return (known.get((data, method)) or known["yelp2018", method])[epsilon]


def _ours(*systems: System) -> Mapping[str, System]:
    return {system.name: system for system in systems}


def _references(*labels: str, group: Group = "alone") -> tuple[System, ...]:
    names = {label: label.lower().replace(" + ", "-").replace(" ", "-") + ("-half" if group == "people" else "") for label in labels}
    return tuple(System(name, label, "not private", "not private", None, group) for label, name in names.items())


ALL_SIDES = ("metadata", "similar-items", "public-users")
_CONSTANT = {"weights": "constant"}
RATINGS = _ours(
    System("default", "default", "ours", FEATURES, default(FEATURES)),
    System("default-plain", "default without features", "ours", NOTHING, default(NOTHING)),
    System("am-ssp", "AM-SSP", "published", FEATURES, encoder),
    System("am-dpsgd", "AM-DPSGD", "published", FEATURES, recipe("am-dpsgd", features=True)),
    System("dp-cmf-metadata", "DP-CMF, metadata", "published", FEATURES, collective("DP-CMF metadata", "metadata")),
    System("ada-dpals", "Ada-DPALS", "published", NOTHING, tuned("Ada-DPALS", weights="normalised")),
    System("dpals-tail", "DPALS (tail)", "published", NOTHING, tuned("DPALS (tail)", **_CONSTANT, sampling="tail")),
    System("dpals-uniform", "DPALS (uniform)", "published", NOTHING, tuned("DPALS (uniform)", **_CONSTANT, sampling="uniform")),
    System("fast-dpmf", "fast DPMF, noisy descent", "published", NOTHING, recipe("fast-dpmf")),
    System("dp-gd", "Ada-DPGD", "published", NOTHING, recipe("dp-gd")),
    System("dp-sgd", "DP-SGD, trusted curator", "published", NOTHING, None),
    System("sgld", "fast DPMF, sampler", "printed", NOTHING, None),
    *_references("global mean", "item mean", "item + user bias", "ALS"),
    System("default-people", "default", "ours", PEOPLE, default_with("metadata", "public-users"), "people"),
    System("default-half", "default without the people", "ours", FEATURES, default(FEATURES), "people"),
    System("dp-cmf-all", "DP-CMF, all sides", "published", PEOPLE, collective("DP-CMF all", *ALL_SIDES), "people"),
    System("dp-cmf-users", "DP-CMF, public users", "published", PEOPLE, collective("DP-CMF users", "public-users"), "people"),
    System("ada-dpals-half", "Ada-DPALS without the people", "published", NOTHING, tuned("Ada-DPALS", weights="normalised"), "people"),
    System("public-users-alone", "public users alone", "not private", "nothing private", people_alone, "people"),
    *_references("ALS", group="people"),
)  # fmt: skip
CLICKS = _ours(
    System("default", "default", "ours", NOTHING, default(NOTHING)),
    System("ada-dpals", "Ada-DPALS", "published", NOTHING, tuned_clicks("Ada-DPALS", weights="normalised")),
    System("dpals-tail", "DPALS (tail)", "published", NOTHING, tuned_clicks("DPALS (tail)", **_CONSTANT, sampling="tail")),
    System("dpals-uniform", "DPALS (uniform)", "published", NOTHING, tuned_clicks("DPALS (uniform)", **_CONSTANT, sampling="uniform")),
    System("convex-logistic", "convex SSP, logistic loss", "published", NOTHING, convex("logistic")),
    System("convex-quadratic", "convex SSP, quadratic loss", "published", NOTHING, convex("quadratic")),
    *_references("popularity", "ALS"),
    System("default-people", "default", "ours", CLICKERS, default_with("public-users", users_values="binary"), "people"),
    System("default-half", "default without the people", "ours", NOTHING, default(NOTHING), "people"),
    System("dp-cmf-users", "DP-CMF, public users", "published", CLICKERS, collective_clicks, "people"),
    *_references("ALS", group="people"),
)
SYSTEMS: Mapping[Kind, Mapping[str, System]] = {"ratings": RATINGS, "clicks": CLICKS}
"""By kind of data and name, in the tables' order."""
