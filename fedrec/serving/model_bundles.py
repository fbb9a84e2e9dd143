"""The serving bundle of a released factorisation model: made of its model folder alone, by whoever
trained it and by `fedrec export`.

    model/model.safetensors, model/manifest.json    the model (`fedrec.factorization.released`)
    model/serving.json                              what a bundle says besides: catalogue,
                                                    guarantee, scale, the run's name and seed
    model/popularity.safetensors                    counts (m,) as they were released

All of it is the release or public, so a bundle is post-processing: no event is read. The same
folder gives the same bytes.

The serving bundle of a factorisation model, ratings or clicks: scores are linear in B
coefficients, so items need B numbers too.

    score_j = directions_j . query + prior_j = items_j . q + bias_j,    q = query / scale

items = scale directions (m, B), bias = prior (`factorization_basis`), and the server's user map is
the identity. Scores are those of the model's ranker. The released model goes along, for devices
that rank by their own exact solve and spend nothing.

Serving bundle of news with articles that came after training: what ranks them follows from what
everybody may know of them.

    Y = 1 mean' + X B,    X (m, f) leading directions of texts, categories and vectors of the news

Y are the vectors, biases and public rows of the known news, and B is the ridge regression of
`factorization.released`. So a new article is ranked, and is read in histories too.

Guarantee: post-processing of a release, and public data. A device draws the noise of an answer for
the longest distance of any two public rows, those of new articles among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.data.added_items import AddedItems
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import RunError, SettingsError
from fedrec.factorization.am_ssp.recipe import PublishedRecipe
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.later_items import expected, extended, public_directions
from fedrec.factorization.released import arrays_of, load, trained_items
from fedrec.federation.messages import Recipe, State
from fedrec.privacy.bounded_mean import BITS, topic_table
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, generator_of
from fedrec.recipes import TrainableRecipe
from fedrec.serving.bundle import FACTS, FILE, About, Bundle, Texts, read, write
from fedrec.serving.exporting import Asking, Export, Origin, PublicItems, Ranking, additive_bundle
from fedrec.serving.factorization_basis import (
    BasisSettings,
    Released,
    SyntheticSettings,
    factorization_basis,
)
from fedrec.serving.user_map import UserMap
from fedrec.settings import DataScenario
from fedrec.storage import read_arrays, read_json, write_arrays, write_bytes, write_json

Today = Callable[[Sequence[str], Sequence[str]], AddedItems]
"""From ids and titles of the trained catalogue to those of today, `added_items.added_items`."""
FORMAT = "fedrec-model-serving/1"
COUNTS = "popularity.safetensors"
_REMEDY = (
    "It was trained by an older version, or with a recipe that releases no counts: train again."
)


def with_news(bundle: Bundle, today: Today) -> Export:
    """About and arrays of the bundle with the articles that `today` adds.

    An article of which today's table says nothing has the mean vector. Raises DataError as
    `added_items` and `later_items.public_directions`."""
    added = today(bundle.ids.all(), bundle.titles.all())
    X = public_directions(added.features)
    told = added.described & X[: bundle.size].any(axis=1)
    about = bundle.about

    def extended(Y: Floats) -> npt.NDArray[np.float64]:
        return np.concatenate([np.asarray(Y, np.float64), expected(Y, X, told)])

    rows = bundle.rows
    if about.form == "additive":
        public = extended(bundle.rows * 2.0**-BITS)
        longest = np.maximum(np.linalg.norm(public, axis=1, keepdims=True), 1.0)
        table = topic_table(public / longest)
        rows = table.rows.astype(np.int32)
        apart = math.nextafter(table.diameter / about.history, math.inf)
        about = about.model_copy(update={"sensitivity": max(apart, about.sensitivity)})
    bias = np.minimum(extended(bundle.bias[:, None])[:, 0], bundle.bias.max())
    listed = PublicItems.of_features(added.ids, added.titles, added.features).listed
    bit = {name: 1 << k for k, name in enumerate(about.categories)}
    new = [sum(bit.get(name, 0) for name in set(names)) for names in listed[bundle.size :]]
    ids = Texts.of(added.ids)
    titles = Texts.of(PublicItems(added.ids, added.titles, listed).shown)
    return about, {
        **bundle.users.arrays(),
        **bundle.more,
        "items": extended(bundle.items).astype(np.float32),
        "bias": bias.astype(np.float32),
        "categories": np.concatenate([bundle.categories, np.array(new, np.uint64)]),
        "rows": rows,
        "mean": bundle.mean,
        "covariance": bundle.covariance,
        "ids.content": ids.content,
        "ids.ptr": ids.ptr,
        "titles.content": titles.content,
        "titles.ptr": titles.ptr,
    }


def factorization_bundle(
    released: Released,
    catalogue: PublicItems,
    origin: Origin,
    *,
    liked: float = 0.0,
    settings: BasisSettings | None = None,
    synthetic: SyntheticSettings | None = None,
    rng: np.random.Generator,
) -> Export:
    """About and arrays; no event is an argument.

    Raises SettingsError where item vectors are all alike, so that none can be ranked."""
    settings = settings or BasisSettings()
    basis = factorization_basis(
        released, settings, synthetic or SyntheticSettings(), liked=liked, rng=rng
    )
    sizes = basis.sizes
    B = basis.table.topics
    scale = math.sqrt(sizes.explained(noise_std=0.0) / B) or 1.0
    ranking = Ranking(
        users=UserMap.of_linear(np.eye(B), np.zeros(B)),
        items=scale * basis.directions,
        bias=basis.prior,
    )
    asking = Asking(basis.table, basis.population, basis.history, scale, liked)
    model = {
        f"model.{name}": np.asarray(array) for name, array in arrays_of(released.model).items()
    }
    return additive_bundle(
        released.like.kind, origin, catalogue, asking, ranking, more={**sizes.arrays(), **model}
    )


@dataclass(frozen=True)
class ServingFacts:
    """What a bundle needs besides the model. events: how many a typical user has, by the counts;
    liked: the least rating for a click."""

    origin: Origin
    kind: Kind
    value_range: tuple[float, float]
    events: float
    liked: float
    draws: str
    catalogue: PublicItems

    @staticmethod
    def of(
        recipe: Recipe,
        state: State,
        facts: PublicFacts,
        scenario: DataScenario,
        catalogue: PublicItems,
        origin: Origin,
    ) -> ServingFacts:
        """The facts of a finished training. Raises SettingsError where it released no counts."""
        if "counts" not in state:
            raise SettingsError(
                "this recipe releases no counts, which a bundle is made with",
                'Serve a model of recipe = "default".',
            )
        events = _events(recipe, state, facts)
        liked = liked_of(scenario, facts.kind, facts.value_range)
        draws = Streams(scenario.seed).key("serving-basis").hex()
        return ServingFacts(origin, facts.kind, facts.value_range, events, liked, draws, catalogue)

    def write(self, folder: Path, counts: Float64s) -> None:
        """In a model folder, beside the model, with counts (m,)."""
        write_arrays(folder / COUNTS, {"counts": counts})
        write_json(folder / FACTS, self.content())

    def content(self) -> dict[str, Any]:
        """What is written of them."""
        return {"format": FORMAT, **asdict(self)}


def bundle_of(folder: Path, today: Today | None = None) -> Export:
    """About and arrays of the bundle of a model folder; with the items that `today` adds to those
    of training.

    Raises RunError where the folder lacks what that takes, SettingsError where its items cannot be
    ranked.
    """
    facts, (model, _) = facts_of(folder), load(folder)
    counts = np.asarray(read_arrays(folder / COUNTS)["counts"], np.float64)
    if today is not None:
        m = trained_items(model, len(counts))
        added = today(facts.catalogue.ids[:m], facts.catalogue.titles[:m])
        X = public_directions(added.features)
        model = extended(model, X, added.described)
        facts, counts = _with_items(facts, counts, added, X)
    released = Released.of(
        model,
        counts,
        events=facts.events,
        empty=_nobody(facts.kind, facts.value_range, len(counts)),
    )
    rng = generator_of(bytes.fromhex(facts.draws))
    return factorization_bundle(released, facts.catalogue, facts.origin, liked=facts.liked, rng=rng)


def serve_items(folder: Path, added: AddedItems, X: Float64s) -> None:
    """Give a model folder the items that came after training, as its bundle will have them.
    Nothing of a folder that no bundle is made of."""
    if not (folder / FACTS).exists():
        return
    counts = np.asarray(read_arrays(folder / COUNTS)["counts"], np.float64)
    facts, counts = _with_items(facts_of(folder), counts, added, X)
    facts.write(folder, counts)
    (folder / FILE).unlink(missing_ok=True)


def _with_items(
    facts: ServingFacts, counts: Float64s, added: AddedItems, X: Float64s
) -> tuple[ServingFacts, Float64s]:
    """Facts and counts with new items, whose counts follow from public data as vectors do
    (`later_items.expected`), in logarithms, and are none above all known ones."""
    known = counts[: len(added.described)]
    logs = np.log(np.maximum(known, max(float(known.max()), 1e-9) * 1e-6))
    new = np.minimum(expected(logs[:, None], X, added.described)[:, 0], logs.max())
    public = PublicItems.of_features(added.ids, added.titles, added.features)
    told = tuple(dict.fromkeys((*facts.origin.not_covered, *added.not_covered)))
    origin = replace(facts.origin, not_covered=told)
    return replace(facts, catalogue=public, origin=origin), np.concatenate([known, np.exp(new)])


def export(source: Path, output: Path, today: Today | None = None) -> About:
    """Write the bundle of a run folder, a server's state folder or a model folder to a file; what
    it says of itself.

    Of a factorisation model it is made anew; of news, whose training makes it, the one that lies
    there is checked and copied, or gets today's articles (`added_news`). today: adds items that
    came after training. Raises RunError where there is neither, SettingsError where the model
    cannot be served, or knows no items of today.
    """
    folder = next((place for place in (source, source / "model") if (place / FACTS).exists()), None)
    if folder is not None:
        about, arrays = bundle_of(folder, today)
        write(output, about, arrays)
        return about
    if not source.exists():
        raise RunError(
            f"{source} does not exist", "Give a run folder, a model folder or a server's state."
        )
    if not (source / FILE).exists():
        raise RunError(f"{source} holds neither a model with its {FACTS} nor a {FILE}", _REMEDY)
    if today is not None:
        known = read(source / FILE)
        if known.about.family != "news":
            raise SettingsError(
                f"{source} holds a bundle alone, to which no items can be added",
                "Give its model folder.",
            )
        about, arrays = with_news(known, today)
        write(output, about, arrays)
        return about
    content = (source / FILE).read_bytes()  # once: a server may be replacing it
    write_bytes(output, content)
    return read(output).about


def released_of(recipe: TrainableRecipe, state: State, facts: PublicFacts) -> Released:
    """What a training in memory released, whose model was not rounded for a file."""
    empty = _nobody(facts.kind, facts.value_range, facts.num_items)
    return Released.of(
        recipe.model(state),
        np.asarray(state["counts"], np.float64),
        events=_events(recipe, state, facts),
        empty=empty,
    )


def write_bundle(folder: Path, export: Callable[[], Export]) -> dict[str, object]:
    """Writes a bundle and returns what the result says of it: version, coefficients and form of the
    bundle that was written, or `refused` with the reason."""
    try:
        about, arrays = export()
    except SettingsError as refusal:
        return {"refused": f"{refusal}"}
    version = write(folder / FILE, about, arrays)
    return {"version": version, "coefficients": len(arrays["users.linear"]), "form": about.form}


def liked_of(scenario: DataScenario, kind: Kind, value_range: tuple[float, float]) -> float:
    """The least rating that counts as a click: the scenario's threshold, or three quarters up the
    scale (4 of 1 to 5); 0 for clicks."""
    low, high = value_range
    return scenario.data.click_threshold or low + 0.75 * (high - low) if KINDS[kind].rated else 0.0


def facts_of(folder: Path) -> ServingFacts:
    """What a model folder keeps for a bundle. Raises RunError where it keeps nothing readable."""
    path = folder / FACTS
    if not path.exists():
        raise RunError(f"{folder} holds no {FACTS}, which a bundle is made with", _REMEDY)
    content = read_json(path)
    try:
        if content.pop("format") != FORMAT:
            raise KeyError("format")
        content["origin"] = _origin(content["origin"])
        content["catalogue"] = PublicItems(**content["catalogue"])
        content["value_range"] = tuple(map(float, content["value_range"]))
        return ServingFacts(**content)
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise RunError(f"{path} is not in format {FORMAT}: {failure}", _REMEDY) from None


def _origin(content: dict[str, Any]) -> Origin:
    guarantee = dict(content["guarantee"])
    noise = content["noise"]
    guarantee["epsilon"] = float(guarantee["epsilon"])  # an infinite one is a string
    origins: tuple[Literal["seeded"], Literal["system"]] = ("seeded", "system")
    known = next(origin for origin in origins if origin == noise)
    return Origin(
        content["name"],
        content["delta"],
        Guarantee(**guarantee),
        float(content["spent"]),
        known,
        content["runs"],
        tuple(content["not_covered"]),
    )


def _events(recipe: Recipe, state: State, facts: PublicFacts) -> float:
    mean = float(np.maximum(np.asarray(state["counts"], np.float64), 0).sum()) / max(
        facts.num_users, 1
    )
    # the default recipes let a user weigh 1 / sqrt(n) on each of its n items, the published one 1
    return mean if isinstance(recipe, PublishedRecipe) else mean**2


def _nobody(kind: Kind, value_range: tuple[float, float], items: int) -> Interactions:
    """One user without events, on the same items and scale."""
    return Interactions(
        np.zeros(2, np.int64),
        np.zeros(0, np.int32),
        np.zeros(0, np.float32),
        items,
        value_range,
        kind,
    )
