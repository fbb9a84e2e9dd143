"""Verification of a model by its certificate alone: every round is told again, and what comes of it
is compared with what lies there.

Nothing of a deployment is loaded: numpy, scipy and the recipe's own modules are enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.certificates.statements import Signed, fails, require_signed
from fedrec.certificates.writing import (
    FILE,
    FOLDER,
    FORMAT,
    Arrays,
    ServerSide,
    code_digest,
    digests,
    output_file,
    own_digest,
    read_inputs,
    round_file,
    settings_of,
)
from fedrec.errors import FedRecError, RunError
from fedrec.federation.messages import Question, Release, State
from fedrec.federation.releases import priced
from fedrec.federation.wire import digest_of, unpack_release
from fedrec.privacy.accounting import LARGEST_CHECKED, GaussianEvent, Opinions, opinions
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings import validated
from fedrec.storage import finite, packed_arrays, read_arrays, read_json

_SERVED = "serving.json"
_COUNTS = "popularity.safetensors"
"""What `serving.model_bundles` makes a bundle of, where the folder has it."""
_ROUNDING = 1e-6
_PLD_GRID = 1e-3  # relative, by which the grid of losses may exceed the exact epsilon
_CONTENT = {
    "format", "run", "fedrec", "code", "settings", "users", "plan", "rounds", "statements",
    "files", "sha256",
}  # fmt: skip


@dataclass(frozen=True)
class Verified:
    """What a certificate proved.

    guarantee: as stated with the model. price: of the releases, by three accountants, from the
    noise that they state. signed: what each aggregator signed, in the order of their places; ()
    where none did. same_code: whether this package's code is that of the certificate. difference:
    largest between the released numbers and the recomputed ones, 0 where all bytes are the same.
    sha256: of the certificate: compare it with the one that the publisher states.
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
            "vectors and links, public users, the model that a warm start begins with, and what "
            "other files of the folder say.",
            *(one.words for one in self.signed if not one.pin),
            "That these keys are those of the aggregators: compare them with the pins that their "
            "operators state."
            if any(one.pin for one in self.signed)
            else "No aggregator signed anything: the releases are what this certificate says.",
        ]
        if self.noise == "seeded":
            told.append(
                "The noise was drawn from a seed, an experiment: who knows it removes the noise."
            )
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
    >>> model = fedrec.Popularity(epsilon=2, noise="seeded").fit(data)
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
        return _verified(place, up_to_rounding=up_to_rounding)
    except RunError:
        raise
    except FedRecError as failure:
        fails(failure.cause)
    except Exception as failure:  # whatever a forger made the recipe meet
        fails(f"{type(failure).__name__}: {failure}")


def _verified(folder: Path, *, up_to_rounding: bool) -> Verified:
    content = _read(folder)
    scenario = validated(content["settings"], source=f"{folder / FILE}")
    _require(settings_of(scenario) == content["settings"], "its settings say what decides nothing")
    inputs = read_inputs(folder / FOLDER, content["users"])
    side = inputs.server_side(scenario)
    plan: Plan = side.recipe.plan
    manifest = read_json(folder / "manifest.json")
    promised = manifest["guarantee"]
    told = finite(asdict(plan.guarantee))
    _require(finite(plan.content()) == content["plan"], "its plan is not that of its settings")
    for key in ("epsilon", "delta", "unit", "neighbours", "established"):
        _require(promised[key] == told[key], f"the model promises another {key} than its plan")
    _require(manifest.get("plan", plan.digest()) == plan.digest(), "the model names another plan")
    if (folder / _SERVED).exists():
        served = read_json(folder / _SERVED)["origin"]["guarantee"]  # of this training or of more
        same = all(served[key] == told[key] for key in ("unit", "neighbours"))
        least = all(float(served[key]) >= float(told[key]) for key in ("epsilon", "delta"))
        _require(same and least, "what is served promises more than the plan")
    files = content["files"]
    numbers = range(len(content["rounds"]))
    outputs = _outputs(folder, content, plan)
    state, events = _told_again(folder, content, side, outputs)
    price = _price(events, plan)
    kept = {round_file(k) for k in numbers} | {output_file(k, i) for k in numbers for i in range(3)}
    other = sorted(name for name in {*files} - kept if name.startswith(f"{FOLDER}/round-"))
    _require(not other, f"{', '.join(other)} is of none of its rounds: nothing here prices it")
    sha256 = [files[round_file(k)] for k in numbers]
    signed = require_signed(content, plan, sha256, outputs)
    return Verified(
        folder,
        content["sha256"],
        plan.guarantee,
        price,
        len(content["rounds"]),
        sum((folder / round_file(k)).stat().st_size for k in numbers),
        manifest["noise"],
        signed,
        content["code"] == code_digest(),
        max(
            _difference(folder / name, arrays, up_to_rounding=up_to_rounding)
            for name, arrays in _numbers(folder, side, state)
        ),
    )


def _numbers(folder: Path, side: ServerSide, state: State) -> Iterator[tuple[str, Arrays]]:
    """Files of numbers of a model, and what they must be."""
    yield "model.safetensors", side.released(state)
    if (folder / _COUNTS).exists():
        yield _COUNTS, {"counts": np.asarray(state["counts"], np.float64)}


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
            _require(path.read_bytes() == canonical.encode(), f"{path.name} is not canonical JSON")
    found = digests(folder)
    for name in sorted({*found, *content["files"]}):
        _require(name in found, f"{name} is missing")
        _require(name in content["files"], f"it does not name {name}")
        _require(found[name] == content["files"][name], f"{name} was changed")
    return dict(content)


def _is_one(content: Mapping[str, Any]) -> bool:
    """Whether it has a certificate's keys, and values of their types."""
    return (
        set(content) == _CONTENT
        and all(type(content[key]) is str for key in ("run", "fedrec", "code", "sha256"))
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
        events.append(list(priced(question, answer.noise_std, recipe.plan)))
        standing = answer.standing_for(content["users"], reported=round["reported"])
        state = recipe.tell(state, question, standing)
    _require(recipe.ask(state) is None, "rounds are missing: its recipe asks more")
    return state, events


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


def _difference(path: Path, arrays: Arrays, *, up_to_rounding: bool) -> float:
    """0 where the model's file has the recomputed bytes.

    Raises RunError where it has not, or, up to rounding, where numbers differ."""
    if packed_arrays(arrays) == path.read_bytes():
        return 0.0
    kept = read_arrays(path)
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
    if not (up_to_rounding and off <= _LARGEST_ROUNDING):
        raise RunError(
            f"the certificate does not hold: the model differs from the recomputed one, by up to "
            f"{off:.1e} of the largest number of an array",
            "Where it is about 1e-6, another processor or BLAS may round differently: verify it on "
            "a machine like the one that trained, or up to rounding.",
        )
    return off


_LARGEST_ROUNDING = 1e-4


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        fails(otherwise)
