"""Systems of the study: whose design each is, what model it fits, what it knows beside private
data, and what its scenario says.

Published systems are made sound: per user, exactly accounted, their settings chosen on validation
(`ratings_settings`, `clicks_settings`, the scenarios of AM-SSP's and convex SSP's figures, or the
recipe's own). The one exception is the sampler of fast DP matrix factorisation as printed, whose
guarantee is not established: it is shown, and compared with nobody.

`differences` decides which two systems a published claim may be judged by: those that differ in
what the claim is about alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedrec.data.kinds import KINDS, Kind
from fedrec.settings import Scenario, validated
from fedrec_research.papers.starts import Start
from fedrec_research.study import clicks_settings, ratings_settings, searched
from fedrec_research.study.forms import METHODS, TRIALS, Form, Method, line
from fedrec_research.trials import Row, merged

DELTA = 1e-5
LIKED = 4.0
"""The lowest rating that is a click."""
LIKES = "-likes"
"""Ends the name of ratings that are read as clicks."""
EPSILONS = (0.5, 1.0, 5.0, 10.0, 20.0, math.inf)
HALF_PUBLIC: Mapping[str, Any] = {"users_share": 0.5}
"""Of [collective], where there is no second source: half of the data's users are made public and
leave private data and test."""

Group = Literal["alone", "one model", "people"]
"""Systems of a group have the same private users. In "people" other people's data is public; in the
others, item features at most. Those of "one model" are the lines of `forms`, which claims are
judged by."""
Origin = Literal["ours", "published", "adapted", "own", "printed", "not private"]
"""ours: our default. published: a paper's algorithm and model, made sound. adapted: a paper's
algorithm with another model or start of ours. own: another design of ours after a paper. printed:
as published, its guarantee not established. not private: a reference without a guarantee."""
OTHERS: tuple[Origin, ...] = ("published", "adapted", "own")
"""Those that our default is compared with."""
Settings = Callable[[str, float], Row]
"""What a scenario says, of the data's name and epsilon."""
_WORDS = {
    "item_vectors": "item vectors",
    "biases": "item biases",
    "user_means": "users' own means",
    "start": "start",
}
NOTHING = "nothing"
FEATURES = "item features"
PEOPLE = "item features, half of the users"
CLICKERS = "half of the users"
ALL_SIDES = ("metadata", "similar-items", "public-users")
_CONSTANT = {"weights": "constant"}
MU_0 = "Ada-DPALS, μ = 0 (uniform weights)"


@dataclass(frozen=True)
class Place:
    """The data of a study.

    `path` "planted" is the small planted set, "planted-skewed" that of a preset; `name` decides
    which settings for clicks are taken. likes: ratings of `LIKED` or more are read as clicks and
    divided at random, as both papers do with MovieLens 20M (Liang et al. 2018).
    """

    path: str
    name: str
    kind: Kind
    likes: bool = False

    @property
    def source(self) -> Row:
        """Keys of [data]."""
        if self.path.partition("-")[0] != "planted":
            return {"path": self.path}
        return {"preset": self.path.removeprefix("planted").removeprefix("-") or "small"}

    @property
    def given(self) -> bool:
        """Whether test events come with the data."""
        return not (KINDS[self.kind].rated or self.likes)


@dataclass(frozen=True)
class Model:
    """What a system fits, whatever algorithm fits it. Ratings have the noisy global mean besides.

    item_vectors: one free vector an item, a function of public features alone, or both. user_means:
    each user's own mean, beside its vector. start: where item vectors start, at random, from public
    data, or from a private release of what goes together.
    """

    item_vectors: Literal["free", "of features", "free and of features"]
    biases: bool
    user_means: bool
    start: Literal["random", "public data", "private tastes"]


@dataclass(frozen=True)
class System:
    """One line of the tables.

    public: what it knows beside private data. says: None where no recipe trains it. model: None for
    references without a guarantee. tried: fewest and most settings of which the best at one epsilon
    was taken, None where nobody counted. where: the epsilons at which the line exists, of the
    data's name and epsilon. form: of the group "one model".
    """

    name: str
    label: str
    origin: Origin
    public: str
    says: Settings | None
    model: Model | None = None
    tried: tuple[int, int] | None = None
    group: Group = "alone"
    form: Form | None = None
    where: Callable[[str, float], bool] = lambda data, epsilon: True

    @property
    def knows(self) -> frozenset[str]:
        """The parts of `public`."""
        return frozenset(self.public.split(", ")) - {NOTHING}

    def epsilons(self, data: str) -> tuple[float, ...]:
        """Those of this data at which it runs; a reference has no budget to spend."""
        return tuple(
            e
            for e in (EPSILONS[-1:] if self.origin == "not private" else EPSILONS)
            if self.where(data, e)
        )

    def scenario(self, place: Place, epsilon: float, seed: int) -> Scenario:
        """What `fedrec simulate` would be told.

        Raises SettingsError where no recipe does it, or refuses this."""
        return validated(
            merged(
                common(place, epsilon, seed), self.says(place.name, epsilon) if self.says else {}
            ),
            source=self.name,
        )


def differences(
    first: System, second: System, *, about: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """In what two systems differ beside their algorithms, in words; none: a published claim may be
    judged by them.

    about: what the claim varies on purpose, of "item_vectors", "biases", "user_means", "start",
    "public", and "origin", for a finding about designs of our own.
    """
    ours = [
        system.label
        for system in (first, second)
        if system.origin in {"ours", "own"} and "origin" not in about
    ]
    found = [f"{label} is a design of our own" for label in ours]
    found += [
        f"{system.label} has no declared model"
        for system in (first, second)
        if system.model is None
    ]
    if first.model is not None and second.model is not None:
        for field in fields(Model):
            pair = getattr(first.model, field.name), getattr(second.model, field.name)
            if pair[0] != pair[1] and field.name not in about:
                found.append(f"{_WORDS[field.name]} ({_shown(pair[0])} against {_shown(pair[1])})")
    if first.knows != second.knows and "public" not in about:
        found.append(f"public data ({first.public} against {second.public})")
    if first.tried is None or first.tried != second.tried or first.tried[0] != first.tried[1]:
        found.append(f"settings tried for each ε ({tried(first)} against {tried(second)})")
    return tuple(found)


def tried(system: System) -> str:
    """How many settings were tried at an epsilon."""
    if system.tried is None:
        return "not counted"
    return "-".join(str(count) for count in dict.fromkeys(system.tried))


def _shown(value: object) -> str:
    return (
        {True: "with", False: "without"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )


def common(place: Place, epsilon: float, seed: int) -> Row:
    """What every scenario says.

    Ratings are divided by the seed, which is the noise's too; clicks come with their test events.
    """
    likes: Row = {"kind": "clicks", "click_threshold": LIKED} if place.likes else {}
    return {
        "seed": seed,
        "data": {**place.source, **likes},
        "split": {"kind": "given", "validation_share": 0.1} if place.given else {"seed": seed},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "noise": "seeded"},
    }


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
        tuned = Start(
            "convex_ssp_amazon_book" if data == "amazon-book" else "convex_ssp_yelp2018"
        ).settings(loss, epsilon)
        return {
            "recipe": "convex-ssp",
            **ID_ONLY,
            "model": {"encoder": "id", "loss": loss, **tuned["model"]},
        }

    return says


def collective(method: str, *names: str) -> Settings:
    """DP-CMF: sides of public data; public people where a side needs them."""
    people = {} if names == ("metadata",) else HALF_PUBLIC

    def says(data: str, epsilon: float) -> Row:
        model = ratings_settings.model(method, epsilon)
        weights = ratings_settings.sides(method, epsilon)
        return {
            "recipe": "dp-cmf",
            "model": {"weights": "normalised", **model},
            "collective": {"sides": list(names), **people, **weights},
        }

    return says


def collective_clicks(data: str, epsilon: float) -> Row:
    """DP-CMF on clicks, with the clicks of public people; the rest as Ada-DPALS."""
    people = {"sides": ["public-users"], "users_values": "binary", **HALF_PUBLIC}
    return {
        "recipe": "dp-cmf",
        "model": {"weights": "normalised", **_on_clicks(data, "Ada-DPALS", epsilon)},
        "collective": people,
    }


def people_alone(data: str, epsilon: float) -> Row:
    """Passes over the ratings of public people, for `training` to stop there."""
    return {
        "recipe": "dp-cmf",
        "collective": {"sides": ["public-users"], "start_passes": 30, **HALF_PUBLIC},
    }


def default_with(*names: str, **more: Any) -> Settings:
    """Ours with the same public people."""
    return lambda data, epsilon: {
        "recipe": "default",
        "collective": {"sides": list(names), **more, **HALF_PUBLIC},
    }


def tuned_clicks(method: str, **model: Any) -> Settings:
    """Return the settings of DPALS and Ada-DPALS on clicks, their own at every epsilon."""
    return lambda data, epsilon: {
        "recipe": "published",
        **ID_ONLY,
        "model": {"encoder": "id", **model, **_on_clicks(data, method, epsilon)},
    }


def _on_clicks(data: str, method: str, epsilon: float) -> Mapping[str, Any]:
    """[model] of a method; yelp2018's for other data."""
    known = clicks_settings.TUNED
    return (known.get((data, method)) or known["yelp2018", method])[epsilon]


def _on_one_model(kind: Kind) -> tuple[System, ...]:
    """Every method in every form that there is."""
    return tuple(
        _line(name, method, form)
        for name, method in METHODS.items()
        for form in method.forms_of(kind)
    )


def _line(name: str, method: Method, form: Form) -> System:
    added = form == "with our additions"
    label = line(name, form)
    return System(
        label,
        f"{method.label}, {form}",
        "adapted" if added else "published",
        NOTHING if method.features == "free" else FEATURES,
        lambda data, epsilon: merged(method.forms[form], searched.best(data, label, epsilon)),
        Model(method.features, biases=added, user_means=added, start="random"),
        (TRIALS, TRIALS),
        "one model",
        form,
        lambda data, epsilon: searched.trials(data, label, epsilon) > 0,
    )


def _ours(*systems: System) -> Mapping[str, System]:
    return {system.name: system for system in systems}


def _references(*labels: str, group: Group = "alone") -> tuple[System, ...]:
    names = {
        label: label.lower().replace(" + ", "-").replace(" ", "-")
        + ("-half" if group == "people" else "")
        for label in labels
    }
    return tuple(
        System(name, label, "not private", "not private", None, group=group)
        for label, name in names.items()
    )


def adaptive(data: str, epsilon: float) -> bool:
    """Whether Ada-DPALS's weights depend on counts: the search for its settings took exponents of 0
    too, which are uniform weights."""
    return float(ratings_settings.model("Ada-DPALS", epsilon)["weight_exponent"]) > 0


def adaptive_clicks(data: str, epsilon: float) -> bool:
    """Whether Ada-DPALS's weights depend on counts where it learns from clicks; see `adaptive`."""
    return float(_on_clicks(data, "Ada-DPALS", epsilon)["weight_exponent"]) > 0


def _uniform(data: str, epsilon: float) -> bool:
    return not adaptive(data, epsilon)


def _uniform_clicks(data: str, epsilon: float) -> bool:
    return not adaptive_clicks(data, epsilon)


_PLAIN = Model("free", biases=False, user_means=False, start="random")
_EXTENDED = Model("free", biases=True, user_means=True, start="random")
_SIDES = Model("free and of features", biases=False, user_means=False, start="public data")
_PEOPLE_SIDE = Model("free", biases=False, user_means=False, start="public data")
_OURS = Model("free and of features", biases=True, user_means=True, start="public data")
_OURS_PLAIN = Model("free", biases=True, user_means=True, start="private tastes")
_CLICKS = Model("free", biases=False, user_means=False, start="private tastes")
_CONVEX = Model("free", biases=True, user_means=False, start="private tastes")
_AM_SSP = Model("of features", biases=False, user_means=False, start="random")
_AM_DPSGD = Model("free and of features", biases=True, user_means=True, start="random")
_SAMPLER = Model("free", biases=False, user_means=True, start="random")
_ADA = tuned("Ada-DPALS", weights="normalised")
_ADA_CLICKS = tuned_clicks("Ada-DPALS", weights="normalised")
_TAIL = {
    name: make("DPALS (tail)", **_CONSTANT, sampling="tail")
    for name, make in (("ratings", tuned), ("clicks", tuned_clicks))
}
_EVEN = {
    name: make("DPALS (uniform)", **_CONSTANT, sampling="uniform")
    for name, make in (("ratings", tuned), ("clicks", tuned_clicks))
}
RATINGS = _ours(
    System("default", "default", "ours", FEATURES, default(FEATURES), _OURS),
    System(
        "default-plain", "default without features", "ours", NOTHING, default(NOTHING), _OURS_PLAIN
    ),
    System("am-ssp", "AM-SSP", "published", FEATURES, encoder, _AM_SSP, (58, 193)),
    System(
        "encoder-descent",
        "descent on an item encoder, with biases",
        "adapted",
        FEATURES,
        recipe("encoder-descent", features=True),
        _AM_DPSGD,
    ),
    System(
        "dp-cmf-metadata",
        "DP-CMF, metadata",
        "adapted",
        FEATURES,
        collective("DP-CMF metadata", "metadata"),
        _SIDES,
        (37, 71),
    ),
    System("ada-dpals", "Ada-DPALS", "published", NOTHING, _ADA, _PLAIN, (17, 44), where=adaptive),
    System("dpals-mu0", MU_0, "published", NOTHING, _ADA, _PLAIN, (17, 44), where=_uniform),
    System("dpals-tail", "DPALS (tail)", "published", NOTHING, _TAIL["ratings"], _PLAIN, (14, 38)),
    System(
        "dpals-uniform", "DPALS (uniform)", "published", NOTHING, _EVEN["ratings"], _PLAIN, (16, 43)
    ),
    System(
        "fast-dpmf",
        "noisy descent after fast DPMF",
        "own",
        NOTHING,
        recipe("noisy-descent"),
        _EXTENDED,
    ),
    System("dp-gd", "Ada-DPGD, with biases", "adapted", NOTHING, recipe("dp-gd"), _EXTENDED),
    System("dp-sgd", "DP-SGD, with biases, trusted curator", "adapted", NOTHING, None, _EXTENDED),
    System("sgld", "fast DPMF, sampler", "printed", NOTHING, None, _SAMPLER, (12, 12)),
    *_references("global mean", "item mean", "item + user bias", "ALS"),
    System(
        "default-people",
        "default",
        "ours",
        PEOPLE,
        default_with("metadata", "public-users"),
        _OURS,
        group="people",
    ),
    System(
        "default-half",
        "default without the people",
        "ours",
        FEATURES,
        default(FEATURES),
        _OURS,
        group="people",
    ),
    System(
        "dp-cmf-all",
        "DP-CMF, all sides",
        "adapted",
        PEOPLE,
        collective("DP-CMF all", *ALL_SIDES),
        _SIDES,
        (38, 54),
        "people",
    ),
    System(
        "dp-cmf-users",
        "DP-CMF, public users",
        "adapted",
        CLICKERS,
        collective("DP-CMF users", "public-users"),
        _PEOPLE_SIDE,
        (22, 62),
        "people",
    ),
    System(
        "ada-dpals-half",
        "Ada-DPALS without the people",
        "published",
        NOTHING,
        _ADA,
        _PLAIN,
        (17, 44),
        "people",
        where=adaptive,
    ),
    System(
        "dpals-mu0-half",
        f"{MU_0} without the people",
        "published",
        NOTHING,
        _ADA,
        _PLAIN,
        (17, 44),
        "people",
        where=_uniform,
    ),
    System(
        "public-users-alone",
        "public users alone",
        "not private",
        "nothing private",
        people_alone,
        group="people",
    ),
    *_references("ALS", group="people"),
    *_on_one_model("ratings"),
)
CLICKS = _ours(
    System("default", "default", "ours", NOTHING, default(NOTHING), _CLICKS),
    System(
        "ada-dpals",
        "Ada-DPALS",
        "published",
        NOTHING,
        _ADA_CLICKS,
        _PLAIN,
        (2, 10),
        where=adaptive_clicks,
    ),
    System(
        "dpals-mu0", MU_0, "published", NOTHING, _ADA_CLICKS, _PLAIN, (2, 10), where=_uniform_clicks
    ),
    System("dpals-tail", "DPALS (tail)", "published", NOTHING, _TAIL["clicks"], _PLAIN, (1, 4)),
    System(
        "dpals-uniform", "DPALS (uniform)", "published", NOTHING, _EVEN["clicks"], _PLAIN, (1, 4)
    ),
    System(
        "convex-logistic",
        "convex SSP, logistic loss",
        "own",
        NOTHING,
        convex("logistic"),
        _CONVEX,
        (3, 40),
    ),
    System(
        "convex-quadratic",
        "convex SSP, quadratic loss",
        "own",
        NOTHING,
        convex("quadratic"),
        _CONVEX,
        (3, 39),
    ),
    *_references("popularity", "ALS"),
    System(
        "default-people",
        "default",
        "ours",
        CLICKERS,
        default_with("public-users", users_values="binary"),
        _CLICKS,
        group="people",
    ),
    System(
        "default-half",
        "default without the people",
        "ours",
        NOTHING,
        default(NOTHING),
        _CLICKS,
        group="people",
    ),
    System(
        "dp-cmf-users",
        "DP-CMF, public users",
        "published",
        CLICKERS,
        collective_clicks,
        _PLAIN,
        (1, 1),
        "people",
    ),
    *_references("ALS", group="people"),
    *_on_one_model("clicks"),
)
SYSTEMS: Mapping[Kind, Mapping[str, System]] = {"ratings": RATINGS, "clicks": CLICKS}
"""By kind of data and name, in the tables' order."""
