"""Verification of a model by its certificate alone: every round is told again, and what comes of it
is compared with what lies there.

Nothing of a deployment is loaded: numpy, scipy and the recipe's own modules are enough.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from fedrec.certificates.model_files import ARRAYS, MANIFEST, TRAINING, Told, model_files
from fedrec.certificates.statements import Signed, fails, require_signed
from fedrec.certificates.writing import (
    FILE,
    FOLDER,
    FORMAT,
    FactorizationInputs,
    ServerSide,
    code_digest,
    digests,
    output_file,
    own_digest,
    read_inputs,
    round_file,
    settings_of,
)
from fedrec.data.features import PublicFeatures
from fedrec.errors import FedRecError, RunError
from fedrec.factorization.held_out import evaluation_of
from fedrec.federation.messages import Question, Release, State
from fedrec.federation.releases import noise_stds, priced, require_week
from fedrec.federation.wire import digest_of, pack_release, unpack_release
from fedrec.numerics.threads import one_blas_thread
from fedrec.output_folders import MARKER, noted
from fedrec.preparing import until
from fedrec.privacy.accounting import LARGEST_CHECKED, GaussianEvent, Opinions, opinions
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.serving.bundle import FACTS, packed, read
from fedrec.serving.bundle import FILE as BUNDLE
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import bundle_of, facts_of
from fedrec.settings import Scenario, validated
from fedrec.storage import bounded_bytes, finite, json_bytes, packed_arrays, read_json

_ROUNDING = 1e-6
"""Relative: a price is recomputed from the noise that was drawn, as a difference of squares, which
loses digits."""
_PLD_GRID = 1e-3  # relative, by which the grid of losses may exceed the exact epsilon
_CONTENT = {
    "format", "run", "code", "settings", "users", "plan", "rounds", "statements",
    "files", "sha256",
}  # fmt: skip
_LARGEST_ROUNDING = 1e-4
"""Of the largest number of an array: what another processor's order of sums in float32 changes. A
model of other releases differs by far more."""


@dataclass(frozen=True)
class Verified:
    """What a certificate proved.

    guarantee: as stated with the model. price: of the releases, by three accountants, from the
    noise that they state. signed: what each aggregator signed, in the order of their places; ()
    where none did. same_code: whether this package's code is that of the certificate. difference:
    largest between the released numbers and the recomputed ones, 0 where all bytes are the same.
    bundle: whether the serving bundle beside the model follows from it, False where it is one of
    news, None where there is none. evaluation: what people said of the model, "" where nobody was
    asked. stream: which weeks of one the releases are, "" of none. sha256: of the certificate:
    compare it with the one that the publisher states.
    """

    folder: Path
    sha256: str
    guarantee: Guarantee
    price: Opinions
    rounds: int
    release_bytes: int
    noise: str
    signed: tuple[Signed, ...]
    same_code: bool
    difference: float
    bundle: bool | None
    evaluation: str = ""
    stream: str = ""

    @property
    def proved(self) -> tuple[str, ...]:
        """What follows from the files alone, a sentence each."""
        exactly = "byte for byte" if not self.difference else (
            f"but for rounding, by at most {self.difference:.1e} of the largest number of an array"
        )  # fmt: skip
        told = [
            f"The model's numbers follow from {self.rounds} noised releases and public inputs, "
            f"{exactly}: nothing else is in them.",
            f"The noise that the releases state, at the bounds of their questions, costs epsilon "
            f"{self.price.gdp:.4g} at delta {self.guarantee.delta:g} by exact composition, and "
            f"{self.price.pld:.4g} by the privacy loss distribution.",
        ]
        if self.stream:
            told.append(self.stream)
        if self.bundle:
            told.append("The serving bundle beside it follows from the model.")
        if self.evaluation:
            told.append(
                "One of these releases says how good the model is on rows that it was not trained "
                f"on: {self.evaluation}."
            )
        if not self.guarantee.established:
            told.append(f"The guarantee is not established: {self.guarantee.note}.")
        return (*told, *(one.words for one in self.signed if one.pin))

    @property
    def trusted(self) -> tuple[str, ...]:
        """What no file can prove, a sentence each."""
        who = "the three aggregators, of whom two must be honest," if len(self.signed) == 3 else (
            "the aggregator" if self.signed else "whoever trained the model"
        )  # fmt: skip
        told = [
            f"That {who} added the noise that is stated, and forgot the reports. Attested builds "
            "could show it; fedrec has none.",
            "That clients held reports to the bounds of the questions, or aggregators clipped them."
            if self.signed
            else "That reports were held to the bounds of the questions.",
            "That this is the only model of these people: other trainings add up, and are in the "
            "ledgers and budget files of those who trained.",
            "That what is called public was not measured on these people: items, their features, "
            "vectors and links, public users, and the model that a warm start begins with.",
            "What the folder tells of rows that were read, of other trainings and of its own name.",
            *(one.words for one in self.signed if not one.pin),
            "That these keys are those of the aggregators: compare them with the pins that their "
            "operators state."
            if any(one.pin for one in self.signed)
            else "No aggregator signed anything: the releases are what this certificate says.",
        ]
        if self.bundle is False:
            told.append("That the serving bundle is of this model: one of news is not recomputed.")
        if not self.same_code:
            told.append(
                "The model was made by other code than this package's, and this package computes "
                "the same from the releases."
            )
        return tuple(told)

    @property
    def words(self) -> str:
        """All of it, for a terminal."""
        lines = [
            f"holds: {self.folder}, {self.guarantee}",
            f"certificate sha256 {self.sha256}",
            f"{self.rounds} releases, {self.release_bytes / 1e6:,.1f} MB",
            "",
            "proved",
            *(f"  {words}" for words in self.proved),
            "",
            "rests on trust",
            *(f"  {words}" for words in self.trusted),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON has."""
        told = {"folder": str(self.folder), "signed": [asdict(one) for one in self.signed]}
        words = {"proved": list(self.proved), "trusted": list(self.trusted)}
        return dict(finite({**asdict(self), **told, **words}))


def verify(folder: str | Path, *, up_to_rounding: bool = False) -> Verified:
    """Recompute a released model from its noised releases and public inputs, and price the
    releases.

    Args:
        folder: Of a model, or of the run that holds one.
        up_to_rounding: Accept a model whose numbers differ in their last digits: another processor
            or BLAS rounds differently. What is hidden in last digits is not seen then.

    Returns:
        What is proved thereby, and what still rests on trust.

    Raises:
        RunError: A byte was changed, the model does not follow from the releases, they cost more
            than is promised, or there is no certificate.

    >>> import fedrec, tempfile
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> model = fedrec.Popularity(epsilon=2, noise="system").fit(data)
    >>> found = fedrec.verify(model.save(tempfile.mkdtemp()))
    >>> found.difference, round(found.price.gdp, 2)
    (0.0, 2.0)
    """
    place = Path(folder)
    if not (place / FILE).exists() and (place / "model" / FILE).exists():
        place = place / "model"
    if not (place / FILE).exists():
        raise RunError(
            f"{place} holds no {FILE}",
            "Give the folder of a model of ratings, clicks or central news; earlier versions wrote "
            "no certificates.",
        )
    try:
        with one_blas_thread():  # as whoever trained it: bytes depend on their number
            return _verified(place, Path(folder), up_to_rounding=up_to_rounding)
    except RunError:
        raise
    except FedRecError as failure:
        fails(failure.cause)
    except Exception as failure:  # whatever a forger made the recipe meet
        fails(f"{type(failure).__name__}: {failure}")


def _verified(folder: Path, given: Path, *, up_to_rounding: bool) -> Verified:
    content = _read(folder)
    scenario = validated(content["settings"], source=f"{folder / FILE}")
    same = json_bytes(settings_of(scenario)) == json_bytes(content["settings"])
    _require(same, "its settings say what decides nothing")
    inputs = read_inputs(folder / FOLDER, content["users"])
    side = inputs.server_side(scenario)
    plan: Plan = side.recipe.plan
    if plan.horizon:  # a model of the weeks so far
        weeks = len(content["rounds"]) // len(plan.releases)
        side = replace(side, recipe=until(side.recipe, weeks))
    same = json_bytes(plan.content()) == json_bytes(content["plan"])  # 5 is not 5.0
    _require(same, "its plan is not that of its settings")
    _require(scenario.privacy.noise != "seeded", "an experiment with seeded noise has none")
    for name, kept in inputs.files().items():
        same = (folder / FOLDER / name).read_bytes() == kept
        _require(same, f"{name} holds more than public inputs")
    files = content["files"]
    numbers = range(len(content["rounds"]))
    outputs = _outputs(folder, content, plan)
    state, events = _told_again(folder, content, side, outputs)
    price = _price(events, plan)
    sha256 = [files[round_file(k)] for k in numbers]
    signed = require_signed(content, plan, sha256, outputs)
    if isinstance(inputs, FactorizationInputs):
        told = _told(folder, content, plan, inputs.public)
        noise = told.noise
        others = _accountants(folder, price)
        made = model_files(
            scenario, inputs.public, inputs.users, side.recipe, state, plan, others, told
        )
    else:
        manifest, made = _news_files(folder, scenario, side, state, plan, price)
        noise = manifest["noise"]
    known = {f"{FOLDER}/{name}" for name in inputs.files()} | {round_file(k) for k in numbers}
    known |= {output_file(k, i) for k in numbers for i in range(3)} if outputs else set()
    _require_names(files, {*made, *known, MARKER})
    off = max(
        _difference(folder / name, must, up_to_rounding=up_to_rounding)
        for name, must in made.items()
    )
    marker = json_bytes(noted("model", {*files, FILE} - {MARKER}))
    _require((folder / MARKER).read_bytes() == marker, f"{MARKER} names other files")
    bundles = [path for path in (folder / BUNDLE, given / BUNDLE) if path.exists()]
    bundled = None if not bundles else FACTS in made
    for path in {*bundles} if bundled else ():
        off = max(off, _bundle_difference(folder, path, up_to_rounding=up_to_rounding))
    return Verified(
        folder,
        content["sha256"],
        plan.guarantee,
        price,
        len(content["rounds"]),
        sum((folder / round_file(k)).stat().st_size for k in numbers),
        noise,
        signed,
        content["code"] == code_digest(),
        off,
        bundled,
        "" if (said := evaluation_of(side.recipe, state)) is None else said.words,
        f"They are week 1 to {weeks} of {plan.horizon}: all weeks together, also those to come, "
        "have this one guarantee."
        if plan.horizon
        else "",
    )


def _require_names(files: Iterable[str], known: set[str]) -> None:
    """That a folder's files are those of a model, and no more."""
    for name in sorted({*files} - known):
        round = name.startswith(f"{FOLDER}/round-")
        what = "of none of its rounds: nothing here prices it" if round else "no file of a model"
        fails(f"{name} is {what}")
    for name in sorted(known - {*files}):
        fails(f"{name} is missing")


def _told(folder: Path, content: Mapping[str, Any], plan: Plan, public: PublicData) -> Told:
    """What a model's files say that nothing else shows, each of its kind.

    Where the noise of real parties came from the aggregator alone knows."""
    manifest = read_json(folder / MANIFEST)
    took_part = manifest.get("rounds")
    noise = manifest["noise"]
    _require(
        noise == "system" or (took_part is not None and noise == "aggregator"),
        "an experiment, or noise of nowhere, has no certificate",
    )
    training: Mapping[str, Any] = {"not_covered": [], "spent": []}
    if took_part is None:
        training = read_json(folder / TRAINING)
    else:
        kinds = [{name: type(value) for name, value in one.items()} for one in took_part]
        named = dict.fromkeys(("round", "reported", "asked", "joined", "quorum"), int)
        _require(kinds == [named] * len(content["rounds"]), "rounds say more than who took part")
        reported = [(one["round"], one["reported"]) for one in took_part]
        same = reported == [(k, one["reported"]) for k, one in enumerate(content["rounds"])]
        _require(same, "rounds say that others reported")
    origin, listed = None, list[list[str]]()
    if (folder / FACTS).exists():
        served = read_json(folder / FACTS)
        origin, listed = facts_of(folder).origin, served["catalogue"]["listed"]
        _require(origin.noise == noise, "what is served has other noise")
        _require_origin(origin, plan, alone=took_part is None)
        items = PublicItems.of_features(
            public.items, public.titles, public.features or PublicFeatures({})
        )
        kept = public.features is None or listed == [list(one) for one in items.listed]
        _require(kept, "items have other categories than the public data")
        _require(all(map(_texts, listed)), "categories are no names")
        same = list(origin.not_covered) == training["not_covered"]
        _require(same, "what is served says otherwise what is not covered")
    said = [training["not_covered"], training["spent"], [manifest["fedrec"]]]
    _require(all(map(_texts, said)), "what is told is no text")
    numbered = "item_ids" in training
    _require(not numbered or all(map(str.isdecimal, public.items)), "ids are no numbers")
    return Told(
        noise,
        origin,
        listed,
        training["not_covered"],
        training["spent"],
        numbered,
        took_part,
        manifest["fedrec"],
    )


def _texts(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(one, str) for one in given)


def _require_origin(origin: Origin, plan: Plan, *, alone: bool) -> None:
    """That what is served promises no more than the plan, of this training or of more."""
    told, served = plan.guarantee, origin.guarantee
    several = not alone and origin.runs > 1
    counted = type(origin.runs) is int and (several or origin.runs == 1)
    _require(counted, "it is served as of no training")
    least = served.epsilon >= told.epsilon * (1 - _ROUNDING) and served.delta >= told.delta
    if not several:
        least &= served.epsilon <= told.epsilon * (1 + _ROUNDING) and served.delta == told.delta
    # of several trainings, one of which may be established less, notes stand together
    own = (told.established, told.note) if not several else (
        served.established and told.established, served.note
    )  # fmt: skip
    same = replace(told, established=own[0], note=own[1]) == replace(
        served, epsilon=told.epsilon, delta=told.delta
    )
    spent = (origin.delta, origin.spent) == (told.delta, served.epsilon)
    _require(same and least and spent, "what is served promises more than the plan")
    _require(type(origin.name) is str, "what is served has no name")


def _accountants(folder: Path, price: Opinions) -> Mapping[str, float]:
    """By each accountant what the model says, where that is the price but for rounding."""
    exact = asdict(price)
    if not (folder / TRAINING).exists():
        return exact
    said = read_json(folder / TRAINING)["accountants"]
    near = {*said} == {*exact} and all(
        type(said[name]) is float and math.isclose(said[name], exact[name], rel_tol=_ROUNDING)
        for name in exact
    )
    return said if near else exact


def _news_files(
    folder: Path, scenario: Scenario, side: ServerSide, state: State, plan: Plan, price: Opinions
) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """Manifest and files of a model of news."""
    manifest = read_json(folder / MANIFEST)
    noise, version = manifest["noise"], manifest["fedrec"]
    _require(noise in {"system", "aggregator"}, "an experiment has no certificate")
    _require(type(version) is str, "what is told is no text")
    about = {
        "recipe": "privaterec",
        "variant": scenario.news.variant,
        "fedrec": version,
        "guarantee": asdict(plan.guarantee),
        "noise": noise,
    }
    if noise == "aggregator":  # as its server counts it
        spent = manifest["spent"]
        # a server that composed in another order differs in the last digits
        near = type(spent) is float and math.isclose(spent, price.gdp, rel_tol=_ROUNDING)
        about["spent"] = spent if near else price.gdp
    made = {ARRAYS: packed_arrays(side.released(state)), MANIFEST: json_bytes(about)}
    return manifest, made


def _bundle_difference(folder: Path, path: Path, *, up_to_rounding: bool) -> float:
    """Difference of the bundle that lies beside a model from the one that follows from it."""
    kept = read(path).about
    about, arrays = bundle_of(folder)
    about = about.model_copy(update={"fedrec": kept.fedrec})  # the version that exported it
    return _difference(path, packed(about, arrays), up_to_rounding=up_to_rounding)


def _read(folder: Path) -> Mapping[str, Any]:
    """The certificate, once every byte of the folder is the one that it names."""
    path = folder / FILE
    content = read_json(path)
    _require(content.get("format") == FORMAT, f"it is not of format {FORMAT}")
    _require(_is_one(content), "it says more or less than a certificate does")
    _require(own_digest(content) == content["sha256"], "it is not the one that its digest names")
    for path in folder.rglob("*"):
        plain = path.is_file() or path.is_dir()
        _require(plain and not path.is_symlink(), f"{path.name} is neither a file nor a folder")
        if path.suffix == ".json":
            canonical = json.dumps(read_json(path), indent=2, sort_keys=True) + "\n"
            _require(
                bounded_bytes(path) == canonical.encode(), f"{path.name} is not canonical JSON"
            )
    found = {name: sha256 for name, sha256 in digests(folder).items() if name != BUNDLE}
    for name in sorted({*found, *content["files"]}):
        _require(name in found, f"{name} is missing")
        _require(name in content["files"], f"it does not name {name}")
        _require(found[name] == content["files"][name], f"{name} was changed")
    return dict(content)


def _is_one(content: Mapping[str, Any]) -> bool:
    """Whether it has a certificate's keys, and values of their types."""
    return (
        set(content) == _CONTENT
        and all(type(content[key]) is str for key in ("run", "code", "sha256"))
        and type(content["rounds"]) is type(content["statements"]) is list
        and all(set(one) == {"question", "reported"} for one in content["rounds"])
        and all(
            type(number) is int and number >= 0
            for number in (content["users"], *(one["reported"] for one in content["rounds"]))
        )
    )


def _told_again(
    folder: Path,
    content: Mapping[str, Any],
    side: ServerSide,
    outputs: Sequence[Sequence[bytes]],
) -> tuple[State, list[list[GaussianEvent]]]:
    """The last state, and what each round's releases cost."""
    recipe = side.recipe
    state: State = recipe.begin()
    events = list[list[GaussianEvent]]()
    for number, round in enumerate(content["rounds"]):
        question = recipe.ask(state)
        if question is None:
            fails(f"round {number} is released, and its recipe asks no such round")
        digest = digest_of(question, run=content["run"], plan=recipe.plan)
        _require(digest == round["question"], f"round {number} asked another question")
        release = (folder / round_file(number)).read_bytes()
        if outputs:
            _require_sum(release, outputs[number], question, round["reported"], recipe.plan)
        answer: Release = unpack_release(release, question.releases)
        _require(pack_release(answer) == release, f"round {number} holds more than its release")
        events.append(list(priced(question, answer.noise_std, recipe.plan)))
        if recipe.plan.horizon:
            _require_noise(answer, question, recipe.plan)
        else:
            answer = answer.standing_for(content["users"], reported=round["reported"])
        state = recipe.tell(state, question, answer)
    _require(recipe.ask(state) is None, "rounds are missing: its recipe asks more")
    return state, events


def _require_noise(answer: Release, question: Question, plan: Plan) -> None:
    """That a week of a stream states the noise that its first week was charged for."""
    require_week(question, plan)
    (spec,) = question.releases
    least = noise_stds(question, plan)[spec.name] * (1 - _ROUNDING)
    enough = all(answer.noise_std[block.name] >= least for block in spec.blocks)
    _require(enough, f"round {question.round} has less noise than its stream was charged for")


def _outputs(folder: Path, content: Mapping[str, Any], plan: Plan) -> list[list[bytes]]:
    """Outputs of each round, of three aggregators that signed; none of one, or where none did."""
    if plan.aggregation == "trusted" or not content["statements"]:
        return []
    rounds = range(len(content["rounds"]))
    return [[_read_output(folder / output_file(k, place)) for place in range(3)] for k in rounds]


def _read_output(path: Path) -> bytes:
    _require(path.exists(), f"{path.name}, an aggregator's output, is missing")
    return path.read_bytes()


def _require_sum(
    release: bytes, three: Sequence[bytes], question: Question, reported: int, plan: Plan
) -> None:
    """That a release is the sum of three outputs of one attempt, of the users who are counted."""
    from fedrec.sharing.three_endpoints import sum_of  # brings numba; one aggregator does without

    summed, users = sum_of(three, question, plan)
    _require(summed == release, "a release is not the sum of three outputs")
    # news counts nobody
    _require(reported in {0, users}, "three outputs are of other users than are counted")


def _price(events: Sequence[Sequence[GaussianEvent]], plan: Plan) -> Opinions:
    """Each planned release once, for no more than its share; all of them for no more than the
    promise."""
    made = [event for round in events for event in round]
    names = [event.name for event in made]
    _require(len(set(names)) == len(names), "a release was made twice")
    for event in made:
        planned = plan.event(event.name).mu
        _require(event.mu <= planned * (1 + _ROUNDING), f"{event.name} costs more than planned")
    promised = plan.guarantee
    price = opinions(made, promised.delta)
    if promised.established and promised.private:
        _require(
            price.gdp <= promised.epsilon * (1 + _ROUNDING), "releases cost more than promised"
        )
        bounded = price.pld <= promised.epsilon * (1 + _PLD_GRID)
        _require(bounded or promised.epsilon > LARGEST_CHECKED, "a second accountant finds more")
    return price


def _difference(path: Path, content: bytes, *, up_to_rounding: bool) -> float:
    """0 where a file has the recomputed bytes.

    Raises RunError where it has not, or, up to rounding, where numbers differ."""
    found = path.read_bytes()
    if found == content:
        return 0.0
    if path.name == MANIFEST:  # of numbers that are rounded, which are compared themselves
        said = json.loads(content)
        if up_to_rounding and said.get("sha256"):
            said["sha256"] = hashlib.sha256((path.parent / ARRAYS).read_bytes()).hexdigest()
        wrong = [key for key, value in said.items() if json.loads(found).get(key) != value]
        _require(found == json_bytes(said), f"the model names another {', '.join(wrong) or 'fact'}")
        return 0.0
    _require(path.suffix == ".safetensors", f"{path.name} does not follow from its certificate")
    kept, arrays = load(found), load(content)
    same = {name: (a.dtype, a.shape) for name, a in arrays.items()}
    _require(
        same == {name: (a.dtype, a.shape) for name, a in kept.items()},
        "the model has other arrays than the recomputed one",
    )
    off = max(
        float(np.max(np.abs(np.float64(kept[name]) - np.float64(array)), initial=0.0))
        / max(float(np.max(np.abs(array), initial=0.0)), 1e-12)
        for name, array in arrays.items()
    )
    header = 8 + int.from_bytes(content[:8], "little")
    if not (up_to_rounding and off <= _LARGEST_ROUNDING and found[:header] == content[:header]):
        raise RunError(
            f"the certificate does not hold: {path.name} differs from the recomputed one, by up to "
            f"{off:.1e} of the largest number of an array",
            "Where it is about 1e-6, another processor or BLAS may round differently: verify it on "
            "a machine like the one that trained, or up to rounding.",
        )
    return off


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        fails(otherwise)
