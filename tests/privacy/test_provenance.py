"""Whose secret noise comes from, and how far it reaches.

Every key that a training draws with is bytes that the operating system gave for it; keys of parties
that keep a secret depend on both halves of what the system gave for the secret, so that neither
inputs nor a few guessed bits make them. Noise, keystreams, sums and clipping pass ten times the sizes
at which code changes its way."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import random
import shutil
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrec
from fedrec.federation.messages import BlockReports, ReleaseSpec, Reports, train
from fedrec.federation.reports import block, exact_sums, within_radius
from fedrec.in_process import Loopback, ThreeAggregators
from fedrec.privacy import correlated, discrete_gaussian, gaussian, laplace
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.keystream import Keystream
from fedrec.randomness import SecretStreams, SystemStreams, noise_from
from fedrec.run.data.people import key_of
from fedrec.sharing.shares import fresh_seeds
from fedrec_aggregator.opening_checks import clip
from fedrec_client import recommending
from fedrec_client.clicks import Clicks
from fedrec_client.device.ledger import DeviceLedger
from fedrec_client.ledger import ClientLedger, report_ids, user_tokens
from tests.client.test_news_participant import (
    LocalReaders,
    scenario,
    terms,
)
from tests.client.test_news_participant import client as client  # a fixture, as those below
from tests.client.test_news_participant import readers as readers
from tests.factorization.test_recipes import RECIPES, prepared, prepared_for, some_events
from tests.factorization.test_recipes import _clicks_of_few as _clicks_of_few
from tests.recommend.conftest import Asking, PlainServer
from tests.recommend.conftest import served as served

ROOT = Path(fedrec.__file__).parents[1]
KEY = bytes(range(32))
LIMIT = Guarantee(5.0, 1e-5)
Door = Callable[[Path], set[bytes]]
"""Makes what is secret in a fresh folder, and says which keys it had."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the operating system gave, in order: the same in each run of the tests."""
    found = list[bytes]()

    def urandom(size: int) -> bytes:
        found.append(hashlib.shake_256(len(found).to_bytes(8, "big")).digest(size))
        return found[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    return found


def _system(patch: pytest.MonkeyPatch, first: int, second: int) -> None:
    """An operating system of whose every answer the even bytes follow from the one and the odd bytes
    from the other number; an answer of less than 16 bytes is no secret, and is zero."""
    calls = iter(range(10**9))

    def urandom(size: int) -> bytes:
        if size < 16:
            return bytes(size)
        name = f"{next(calls)}/{size}"
        content = bytearray(size)
        for place, number in enumerate((first, second)):
            share = len(content[place::2])
            content[place::2] = hashlib.shake_256(f"{number}/{name}".encode()).digest(share)
        return bytes(content)

    patch.setattr(os, "urandom", urandom)
    patch.setattr(random, "_urandom", urandom)  # of `secrets` and `SystemRandom`


@pytest.fixture
def keystreams(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Every key of which a keystream was begun."""
    found = set[bytes]()
    begin = Keystream.__init__

    def begun(self: Keystream, key: bytes, **given: Any) -> None:
        found.add(key)
        begin(self, key, **given)

    monkeypatch.setattr(Keystream, "__init__", begun)
    return found


def _of_client(folder: Path) -> set[bytes]:
    with closing(ClientLedger(folder / "ledger.sqlite", limit=LIMIT)) as ledger:
        names = user_tokens(ledger.secret, ["ann", "bob"])
        ids = report_ids(ledger.secret, names, run="r", round=1, digest="d")
        return {ledger.secret, *(row.tobytes() for row in (*names, *ids))}


def _of_device(folder: Path) -> set[bytes]:
    with closing(DeviceLedger(folder, epsilon=5.0, delta=1e-5)) as ledger:
        return {ledger.secret}


SECRETS: dict[str, Door] = {
    "a client's names of people and reports": _of_client,
    "a light device": _of_device,
    "sketches of people": lambda folder: {key_of(folder)},
    "shares": lambda _: {seed.tobytes() for seed in fresh_seeds(3).reshape(6, 32)},
    "noise": lambda _: {noise_from("system", 0).key("noise", round=t) for t in (0, 0, 1)},
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_depends_on_both_halves_of_what_the_system_gave(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is no function of inputs, nor of 16, 32 or 64 bits that somebody can try."""
    found = list[set[bytes]]()
    for first, second in ((1, 1), (1, 2), (2, 2)):
        _system(monkeypatch, first, second)
        found.append(SECRETS[name](tmp_path / f"{first}{second}"))
    assert found[0]
    assert not found[0] & found[1]
    assert not found[1] & found[2]


@pytest.mark.filterwarnings("ignore::fedrec.errors.GenericListWarning")
def test_answers_are_noised_under_keys_that_the_system_gives_for_each(
    given: list[bytes], served: PlainServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people of one history, one person of two, a state that was copied or put back: no key is
    drawn twice, and no key is anything but what the system gave."""
    keys = list[bytes]()
    ask = recommending.ask

    def asked(*args: Any, key: bytes, **rest: Any) -> Any:
        keys.append(key)
        return ask(*args, key=key, **rest)

    monkeypatch.setattr(recommending, "ask", asked)
    for person in ("ann", "bob", "copy"):
        if person == "copy":
            shutil.copytree(tmp_path / "ann", tmp_path / "copy")
        with Asking(served, tmp_path / person, limit=100.0) as recommender:
            for clicks in (["i1", "i2"], ["i1", "i2", "i3"], ["i1", "i2", "i4"]):
                recommender.recommend(Clicks.of(clicks))
    assert len(keys) >= 8
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(given)
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("variant", ["additive", "local", "dp-fedrec"])
def test_noise_of_news_is_of_a_client_s_own_secret(
    variant: str, readers: LocalReaders, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stream of a client begins with a secret of both halves of what the system gave, another
    for each run, which no message holds."""
    found = list[set[bytes]]()
    derived = SecretStreams.key

    def key(self: SecretStreams, name: str, *, round: int = 0) -> bytes:
        found[-1] |= {self.secret, derived(self, name, round=round)}
        return derived(self, name, round=round)

    monkeypatch.setattr(SecretStreams, "key", key)
    for first, second in ((1, 1), (1, 2), (2, 2)):
        _system(monkeypatch, first, second)
        found.append(set())
        chosen = scenario(variant)
        one = client()
        for run in ("r1", "r2"):
            before = len(found[-1])
            assert not one.join(terms(chosen, readers, run)).refusal
            known = one._known(run)
            noise = one._noise(known, "question")
            noise.keys(range(3), "news-labels", round=1)
            assert len(found[-1]) == before + 4
    assert not found[0] & found[1]
    assert not found[1] & found[2]


@pytest.mark.parametrize("name", list(RECIPES))
def test_each_key_that_a_training_draws_with_is_what_the_system_gave_for_it(
    name: str, given: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and each once: not the same for two rounds or two blocks."""
    drawn = list[bytes]()
    sample = gaussian.sample

    def sampled(size: int, *, std: float, key: bytes) -> Any:
        drawn.append(key)
        return sample(size, std=std, key=key)

    monkeypatch.setattr(gaussian, "sample", sampled)
    events = some_events(name, 1)
    made = prepared_for(name, events, 5)
    link = Loopback(
        events, made.steps, made.plan, noise_from("system", 0), Ledger(made.plan.guarantee)
    )
    for _ in train(made.recipe, link, made.recipe.begin()):
        pass
    assert drawn
    assert len(set(drawn)) == len(drawn)
    assert {key[:32] for key in drawn} <= set(given)  # the two parts of a matrix have one key each


def test_three_aggregators_begin_keystreams_of_the_system_s_secrets_alone(
    keystreams: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise, masks, shares and checks of a whole training with checked clients."""
    events = some_events("dp-bias", 1)
    found = list[set[bytes]]()
    for first, second in ((1, 1), (1, 2), (2, 2)):
        _system(monkeypatch, first, second)
        keystreams.clear()
        made = prepared(
            [
                "recipe=dp-bias",
                "privacy.aggregation=three-party",
                "privacy.hostile_clients=checked",
            ],
            events,
        )
        link = Loopback(events, made.steps, made.plan, SystemStreams(), Ledger(made.plan.guarantee))
        for _ in train(made.recipe, ThreeAggregators(link), made.recipe.begin()):
            pass
        found.append(set(keystreams))
    assert len(found[0]) > 20
    assert not found[0] & found[1]
    assert not found[1] & found[2]


def test_a_forked_process_and_another_thread_have_secrets_of_their_own(tmp_path: Path) -> None:
    """Whatever was asked before: no pool is copied, no generator shared."""
    doors = (lambda: fresh_seeds(1).tobytes(), lambda: noise_from("system", 0).key("noise"))
    secrets = [door() for door in doors]
    read, write = os.pipe()
    for _ in range(3):
        child = os.fork()
        if not child:
            try:
                os.write(write, b"".join(door() for door in doors))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    os.close(write)
    with open(read, "rb") as file:
        content = file.read()
    assert len(content) == 3 * 96
    secrets += [content[k : k + 32] for k in range(0, len(content), 32)]
    with ThreadPoolExecutor(4) as threads:
        secrets += threads.map(lambda k: doors[k % 2](), range(40))
    assert len({secret[:32] for secret in secrets}) == len(secrets)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _seeded() -> Iterator[tuple[str, str]]:
    """Every function of the product, but for audits and invented data, that makes a generator or a
    stream of a seed, or a key of what is no key: (function, what)."""
    for root in ("fedrec", "aggregator", "client", "server", "simulations"):
        for path in sorted((ROOT / root).rglob("*.py")):
            text = path.read_text()
            if not any(word in text for word in (*SEEDS, "key=", "keys=", "secret=", *DERIVED)):
                continue
            tree = ast.parse(text)
            module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            if module.startswith(("fedrec.auditing.", "fedrec.data.planted", "fedrec.testing")):
                continue
            owner = {id(n): name for name, top in _tops(tree) for n in ast.walk(top)}
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                name = f"{module}.{owner.get(id(node), '')}".rstrip(".")
                if _called(node) in SEEDS:
                    yield name, _called(node)
                keys = [w.value for w in node.keywords if w.arg in {"key", "keys", "secret"}]
                if _called(node) in DERIVED:
                    keys += node.args[:1]
                for value in keys:
                    inside = {_called(n) for n in ast.walk(value) if isinstance(n, ast.Call)}
                    if inside & OPEN and not isinstance(value, ast.Lambda):  # as of `sorted`
                        yield name, "key"


SEEDS = {"Streams", "default_rng", "Philox", "RandomState", "Random"}
DERIVED = {"derive", "SecretStreams", "Keystream"}
OPEN = {"bytes", "sha256", "shake_256", "sha512", "blake2b", "digest", "tobytes", "encode", "md5"}
"""Of which a key must not be made beside the modules that derive keys."""


def _tops(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for top in tree.body:
        if isinstance(top, ast.ClassDef):
            for part in top.body:
                yield f"{top.name}.{getattr(part, 'name', '')}".rstrip("."), part
        else:
            yield getattr(top, "name", ""), top


def test_what_is_drawn_of_a_seed_is_listed_with_its_reason() -> None:
    """Whoever knows a seed draws the same: so no noise may come of one but in experiments."""
    listed = tomllib.loads((ROOT / "tests/architecture/rules.toml").read_text())["seeded"]
    found = {f"{name} {what}" for name, what in _seeded()}
    assert sorted(found - set(listed)) == []
    assert sorted(set(listed) - found) == []


def test_each_key_of_system_noise_is_what_the_system_gave_for_it(given: list[bytes]) -> None:
    """Whole and unhashed, at that call: no pool to fork, no seed of 16 or 32 bits to guess, the
    same for no two rounds, names, streams or seeds of a scenario."""
    keys = [
        noise_from("system", seed).key(name, round=t)
        for seed in (0, 7)
        for name in ("item-noise", "item-noise", "other")
        for t in (0, 0, 1)
    ]
    assert keys == given
    assert {len(key) for key in keys} == {32}
    assert len(set(keys)) == len(keys)


def test_seeds_of_shares_are_what_the_system_gave_for_each_call(given: list[bytes]) -> None:
    seeds = [fresh_seeds(users).tobytes() for users in (3, 3, 1)]
    assert seeds == given
    assert seeds[0] != seeds[1]


# --- ten times the sizes at which code changes its way ---

CHUNK = discrete_gaussian.SECTION
SIZE = 10 * CHUNK + 999
STD = 20.0


def _in_one_row(draw: Callable[..., Any]) -> Any:
    return draw((1, SIZE), step=1.0, std=STD, key=KEY).ravel()


def _in_triangles(isometric: bool) -> Any:
    columns = 55  # of a 10 x 10 matrix
    drawn = gaussian.symmetric_noise(
        (-(-SIZE // columns), columns), step=1.0, std=STD, key=KEY, isometric=isometric
    )
    off = np.not_equal(*np.triu_indices(10))
    return np.where(off, math.sqrt(2) if isometric else 1.0, 1.0) * drawn


SOURCES: dict[str, Callable[[], Any]] = {
    "fedrec.privacy.discrete_gaussian.sample": lambda: discrete_gaussian.sample(
        SIZE, std=STD, key=KEY
    ),
    "fedrec.privacy.gaussian.sample": lambda: gaussian.sample(SIZE, std=STD, key=KEY),
    "fedrec.privacy.gaussian.row_noise": lambda: _in_one_row(gaussian.row_noise),
    "fedrec.privacy.gaussian.symmetric_noise": lambda: _in_triangles(True),
    "fedrec.privacy.gaussian.add_to_rows": lambda: gaussian.add_to_rows(
        np.zeros((SIZE, 1), np.int64), step=1.0, std=STD, key=KEY
    ),
    "fedrec.privacy.gaussian.add_row_by_row": lambda: gaussian.add_row_by_row(
        np.zeros((10, CHUNK + 1024), np.int64),
        step=1.0,
        std=STD,
        keys=[bytes([k]) * 32 for k in range(10)],
    ),
    "fedrec.privacy.correlated.sample": lambda: correlated.sample(SIZE, std=STD, key=KEY),
    "fedrec.privacy.correlated.week_noise": lambda: correlated.week_noise(
        (SIZE,), step=1.0, std=STD, horizon=1, keys=[KEY]
    ),
    "fedrec.privacy.laplace.sample": lambda: laplace.sample(
        SIZE, parameter=STD / math.sqrt(2), key=KEY
    ),
}


@pytest.mark.parametrize(
    "source",
    tomllib.loads((ROOT / "tests/architecture/rules.toml").read_text())["noise"]["sources"],
)
def test_every_source_of_noise_reaches_ten_times_its_chunk(source: str) -> None:
    """In pieces of 1,024 numbers: each has about the declared spread, none is another's. A mean
    square of 1,024 draws is off by more than .45 for one key in 10^9 (of Laplace noise, 10^5)."""
    draws = np.asarray(SOURCES[source](), np.float64).ravel()
    pieces = draws[: len(draws) // 1024 * 1024].reshape(-1, 1024)
    spread = np.mean(pieces**2, axis=1) / STD**2
    assert 0.55 < spread.min() <= spread.max() < 1.45
    assert len({piece.tobytes() for piece in pieces}) == len(pieces)
    assert np.mean(draws[-999:] ** 2) > 0.55 * STD**2


def test_noise_reaches_every_number_of_ten_times_as_many_sections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """640 sections of 64 draws of std 10: each mean square lies between 40 and 220, which chance
    leaves once in 10^5 runs; the key is fixed. And past 2^22 numbers of one block as they are."""
    assert discrete_gaussian.sample((1 << 22) + 999, std=0.7, key=KEY)[1 << 22 :].any()
    monkeypatch.setattr(discrete_gaussian, "SECTION", 64)
    draws = discrete_gaussian.sample(64 * 640, std=10, key=KEY).reshape(640, 64)
    squares = np.mean(draws**2, axis=1)
    assert 40 < squares.min() <= squares.max() < 220
    assert len({section.tobytes() for section in draws}) == 640


def test_a_keystream_repeats_at_no_counter() -> None:
    sections = [0, *(1 << np.arange(40)).tolist(), 3 << 24]
    words = {Keystream(KEY, section=s, buffer_words=8).next_words().tobytes() for s in sections}
    assert len(words) == len(sections)


def test_limits_and_sums_reach_every_user_of_tens_of_thousands() -> None:
    """Ten times the largest block of segments: every other user's report is too long and is found
    and shortened, and every user's is in the sum."""
    spec = block("x", "linear", rows=1, width=4)
    release = ReleaseSpec("x", (spec,))
    n = 41_000
    long = np.arange(n) % 2 == 0
    coefficients = np.where(long, 2**14, 1 + np.arange(n) % 99).astype(np.int32)
    part = BlockReports(coefficients, np.full((n, 4), 2**14, np.int32))
    sent = Reports(np.zeros(n + 1, np.int64), np.zeros(0, np.int32), (part,))
    np.testing.assert_array_equal(within_radius(sent, [release]), ~long)
    shortened, who = clip(sent, [release])
    np.testing.assert_array_equal(who, long)
    assert within_radius(shortened, [release]).all()
    (total,) = exact_sums(sent, [spec])
    assert total.tolist() == [[int(coefficients.astype(np.int64).sum()) * 2**14] * 4]
