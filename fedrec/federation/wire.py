"""Messages as bytes: sizes are known and bounded before anything is allocated; integers little
endian; never pickle.

A batch of reports (`pack_reports`), n users and e events, after a header of 44 bytes:

    4 s "FRR1" | 32 s digest of question and quorum | u32 n | u32 e
    n x 16 report ids | n x 16 user pseudonyms | n x u32 events of each user | e x u32 items
    for every block of the question: coefficients i16 (e, or n where the block is dense) | vectors
        i16 (n x folds x width)

so the length follows from the header and the public specs alone. A release is a safetensors file
(no code can hide in it). A question is canonical JSON beside its public arrays, each named by
dtype, shape and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedrec.federation.block_kinds import kind_named
from fedrec.federation.coding import Announced, announced
from fedrec.federation.messages import (
    BlockSpec,
    Question,
    Release,
    ReleaseSpec,
)
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.federation.protocol import refused as refused
from fedrec.privacy.calibration import Plan

_PLAN_BYTES = 2**20
"""Read of a plan, which names at most some hundred releases: parsing JSON takes many times its
bytes."""


# --- questions ---
_Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[\w/.-]+$")]
# no product of three is zero or infinite
_Step = Annotated[float, Field(gt=1e-30, lt=1e12, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Model = TypeVar("_Model", bound=BaseModel)


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _known_kind(name: str) -> str:
    return kind_named(name).name


class _BlockHeader(_Closed):
    name: _Name
    kind: Annotated[str, AfterValidator(_known_kind)]
    rows: int = Field(ge=1, le=2**31 - 1)
    width: int = Field(ge=1, le=2**26)
    folds: int = Field(1, ge=1, le=2**10)
    coefficient_step: _Step
    vector_step: _Step


class _ReleaseHeader(_Closed):
    name: _Name
    blocks: list[_BlockHeader] = Field(min_length=1, max_length=64)
    radius: _Step
    isometric: bool
    week: int = Field(0, ge=0, le=10**6)


class _ArrayHeader(_Closed):
    dtype: str = Field(pattern=r"^<?(f4|f8|i4|i8)$")
    shape: list[int] = Field(max_length=4)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class QuestionHeader(_Closed):
    """A question without its arrays."""

    run: _Name
    plan: str = Field(pattern=r"^[0-9a-f]{64}$")
    round: int = Field(ge=0, le=10**6)
    step: _Name
    releases: list[_ReleaseHeader] = Field(min_length=1, max_length=256)
    public: dict[_Name, _ArrayHeader] = Field(max_length=64)

    def arrays(self) -> dict[str, Announced]:
        """What its public arrays are."""
        return {
            name: Announced(array.dtype, tuple(array.shape), array.sha256)
            for name, array in self.public.items()
        }

    def specs(self) -> tuple[ReleaseSpec, ...]:
        """What is reported and released."""
        return tuple(
            ReleaseSpec(
                r.name,
                tuple(BlockSpec(**block.model_dump()) for block in r.blocks),
                r.radius,
                r.isometric,
                r.week,
            )
            for r in self.releases
        )


def question_header(question: Question, *, run: str, plan: str) -> bytes:
    """Canonical JSON of everything about a question but the arrays' content; `plan` is the plan's
    digest."""
    releases = [
        {
            "name": release.name,
            "radius": release.radius,
            "isometric": release.isometric,
            "blocks": [_block_header(block) for block in release.blocks],
            # without a stream, bytes and digests are those of before there were any
            **({"week": release.week} if release.week else {}),
        }
        for release in question.releases
    ]
    public = {name: vars(announced(array)) for name, array in question.public.items()}
    content = {
        "run": run,
        "plan": plan,
        "round": question.round,
        "step": question.step,
        "releases": releases,
        "public": public,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _block_header(block: BlockSpec) -> dict[str, Any]:
    """Without the folds where there is one: version 1 of the messages knows none, and its bytes and
    digests stay (`versions`)."""
    content = dict(vars(block))
    if block.folds == 1:
        del content["folds"]
    return content


def question_digest(header: bytes) -> str:
    """SHA-256 that names run, plan, round, specs and every public array: it travels in every
    report."""
    return hashlib.sha256(header).hexdigest()


def digest_of(question: Question, *, run: str, plan: Plan) -> str:
    """`question_digest` of a question of this run and plan."""
    return question_digest(question_header(question, run=run, plan=plan.digest()))


def report_digest(digest: str, quorum: int) -> str:
    """What every report names: the question's digest, and how many users must have reported before
    their sum is released.

    Whoever changes the quorum between server and client, or between server and aggregator, gets
    reports that are not counted. Apart from the question's digest, so that a round that was short
    may be asked again with another quorum: it is the same question, charged once. Without a quorum
    (0) it is the question's digest. Raises RefusedError where it is no number of users.
    """
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 0 <= quorum < 2**53:
        raise refused(Refusal.MALFORMED, f"a quorum is a number of users, found {quorum!r}")
    return (
        hashlib.sha256(
            b"fedrec/quorum" + bytes.fromhex(digest) + quorum.to_bytes(8, "big")
        ).hexdigest()
        if quorum
        else digest
    )


def read_header(header: bytes) -> QuestionHeader:
    """Raises RefusedError where it is not what `question_header` writes."""
    if len(header) > 2**20:
        raise refused(
            Refusal.TOO_LARGE,
            f"a question's header has at most a mebibyte, found {len(header)} bytes",
        )
    parsed = _parsed(QuestionHeader, header)
    names = [block.name for release in parsed.releases for block in release.blocks]
    if any(
        block.rows == 1 and block.folds > 1
        for release in parsed.releases
        for block in release.blocks
    ):
        raise refused(Refusal.MALFORMED, "folds are of items: a block with one row has none")
    if len(set(names)) != len(names) or len({release.name for release in parsed.releases}) != len(
        parsed.releases
    ):
        raise refused(Refusal.MALFORMED, "names of blocks and releases must differ")
    return parsed


def read_question(header: bytes, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Question:
    """The question, its arrays checked against the header. Raises RefusedError."""
    parsed = read_header(header)
    if set(arrays) != set(parsed.public):
        raise refused(
            Refusal.WRONG_QUESTION,
            f"the question announces arrays {sorted(parsed.public)}, found {sorted(arrays)}",
        )
    for name, expected in parsed.arrays().items():
        if announced(arrays[name]) != expected:
            raise refused(
                Refusal.WRONG_QUESTION, f"array {name!r} is not the one that the question announces"
            )
    return Question(parsed.round, parsed.step, dict(arrays), parsed.specs())


# --- releases ---


def pack_release(release: Release) -> bytes:
    """A safetensors file: one float64 array per block, and their noise stds in the metadata.

    The same release gives the same bytes."""
    stds = json.dumps({name: std.hex() for name, std in release.noise_std.items()}, sort_keys=True)
    # one key: safetensors writes several in any order
    return save(
        {name: np.ascontiguousarray(array) for name, array in release.values.items()},
        metadata={"noise_std": stds},
    )


def unpack_release(data: bytes, specs: Sequence[ReleaseSpec]) -> Release:
    """Raises RefusedError where names, shapes or numbers are not what the question asked for."""
    try:
        values = load(data)
        length = int.from_bytes(data[:8], "little")
        stated = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["noise_std"])
        stds = {name: float.fromhex(std) for name, std in stated.items()}
    except (
        SafetensorError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as failure:
        raise refused(Refusal.MALFORMED, f"this is no release: {failure}") from None
    expected = {block.name: (block.rows, block.columns) for spec in specs for block in spec.blocks}
    if {name: array.shape for name, array in values.items()} != expected or set(stds) != set(
        expected
    ):
        raise refused(
            Refusal.MALFORMED,
            f"the release holds {sorted(values)}, asked for was {sorted(expected)}",
        )
    if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in values.values()):
        raise refused(Refusal.MALFORMED, "a release holds finite float64 numbers only")
    if not all(std >= 0 and math.isfinite(std) for std in stds.values()):
        raise refused(Refusal.MALFORMED, "a release states a finite noise std for every block")
    return Release(values, stds)


# --- what goes between server and clients besides questions ---


class _Terms(_Closed):
    run: _Name
    recipe: str = Field(max_length=2**16)
    kind: Literal["ratings", "clicks", "news"]
    value_range: tuple[_Finite, _Finite]
    items: tuple[Annotated[str, Field(max_length=1_000)], ...] = Field(
        min_length=1, max_length=2**27
    )
    digest: str


class _Answer(_Closed):
    client: Annotated[str, Field(max_length=200)]
    users: _Count
    accepted: _Count
    rejected: dict[Annotated[str, Field(max_length=40)], _Count] = Field(max_length=40)
    refusal: str = Field(max_length=40)
    cause: str = Field(max_length=2_000)


def pack_terms(terms: Terms) -> bytes:
    """Canonical JSON, with a digest of the rest: another letter in an item's id would give a client
    other numbers for its data."""
    return _json({**vars(terms), "digest": _digest_of(terms)})


def read_terms(content: bytes) -> Terms:
    """Raises RefusedError."""
    parsed = dict(_parsed(_Terms, content))
    digest = parsed.pop("digest")
    terms = Terms(**parsed)
    if terms.value_range[0] > terms.value_range[1] or len(set(terms.items)) != len(terms.items):
        raise refused(
            Refusal.MALFORMED, "the terms need a scale from low to high, and items that differ"
        )
    if digest != _digest_of(terms):
        raise refused(Refusal.MALFORMED, "the terms are not those that their digest names")
    return terms


def _digest_of(terms: Terms) -> str:
    low, high = terms.value_range
    return hashlib.sha256(
        _json({**vars(terms), "value_range": (float(low), float(high))})
    ).hexdigest()


def pack_answer(answer: Answer) -> bytes:
    """Canonical JSON."""
    return _json(vars(answer))


def read_answer(content: bytes) -> Answer:
    """Raises RefusedError."""
    return Answer(**dict(_parsed(_Answer, content)))


def pack_invitation(invitation: Invitation) -> tuple[bytes, bytes]:
    """The question's header and the plan, both canonical JSON; the arrays travel beside them,
    however the transport likes."""
    return question_header(
        invitation.question, run=invitation.run, plan=invitation.plan.digest()
    ), _json(invitation.plan.content())


def invitation_bytes(invitation: Invitation) -> int:
    """What a client downloads in a round that has those of the round before: header, plan and
    arrays."""
    return sum(map(len, (*pack_invitation(invitation), *invitation.payloads.values())))


def read_invitation(
    header: bytes, plan: bytes, arrays: Mapping[str, npt.NDArray[np.generic]], *, quorum: int = 0
) -> Invitation:
    """Raises RefusedError where the question or the plan is not what the header names, PrivacyError
    where the plan is not true."""
    try:
        promised = Plan.of(json.loads(plan[:_PLAN_BYTES]))
    except (ValueError, RecursionError):
        raise refused(Refusal.WRONG_PLAN, "the plan is not JSON") from None
    parsed = read_header(header)
    if promised.digest() != parsed.plan:
        raise refused(Refusal.WRONG_PLAN, "the plan is not the one that the question names")
    return Invitation(parsed.run, promised, read_question(header, arrays), quorum=quorum)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _parsed(model: type[_Model], content: bytes) -> _Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:100]  # may be the sender's words
        raise refused(
            Refusal.MALFORMED,
            f"the message is wrong at {where or 'its start'!a}: {first['msg'][:300]}",
        ) from None


def described(terms: Terms, invitation: Invitation) -> tuple[dict[str, bytes], bytes]:
    """Files by SHA-256, and what is told of the round, as a light device reads both."""
    question = invitation.question
    plan = invitation.plan
    header = question_header(question, run=invitation.run, plan=plan.digest())
    named = pack_terms(terms)
    arrays = [array.tobytes() for array in question.public.values()]
    contents = [named, header, json.dumps(plan.content(), sort_keys=True).encode(), *arrays]
    told = {
        "run": invitation.run,
        "round": question.round,
        "question": question_digest(header),
        "quorum": invitation.quorum,
    }
    told["terms"] = hashlib.sha256(named).hexdigest()
    return {hashlib.sha256(content).hexdigest(): content for content in contents}, json.dumps(
        told
    ).encode()
