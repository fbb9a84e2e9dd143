import itertools

import numpy as np

from fedrec.numerics import segments
from fedrec.numerics.threads import map_ranges
from fedrec.randomness import SecretStreams, Streams, SystemStreams


def test_a_stream_belongs_to_seed_name_and_round() -> None:
    keys = [
        Streams(s).key(name, round=t)
        for s, name, t in itertools.product((1, 2), ("a", "b"), (0, 1))
    ]
    assert len(set(keys)) == 8
    assert Streams(1).key("a", round=1) == Streams(1).key("a", round=1)
    np.testing.assert_array_equal(Streams(1).numpy("a").random(5), Streams(1).numpy("a").random(5))


def test_the_operating_system_is_asked_anew_each_time() -> None:
    assert len({SystemStreams().key("a") for _ in range(5)}) == 5


def test_ranges_cover_everything_once_whatever_the_cut() -> None:
    for size, pieces in itertools.product((0, 1, 2, 7, 1000), (1, 3)):
        seen = np.zeros(size, np.int64)

        def add(start: int, stop: int, seen: np.ndarray = seen) -> None:
            seen[start:stop] += 1

        map_ranges(add, size, pieces_per_core=pieces)
        assert (seen == 1).all()


def test_segment_sums_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    pointer = np.concatenate([[0], np.cumsum(rng.integers(0, 30, 50))]).astype(np.int64)
    values = rng.normal(size=pointer[-1]) * 10.0 ** rng.integers(-8, 8, pointer[-1])
    for function in (segments.sums, segments.squares):
        whole = function(pointer, values)
        for k, (a, b) in enumerate(itertools.pairwise(pointer)):
            assert function(np.array([0, b - a]), values[a:b])[0] == whole[k]
    np.testing.assert_allclose(segments.sums(pointer, np.ones(pointer[-1])), np.diff(pointer))


def test_two_secrets_give_two_noises_and_one_secret_one() -> None:
    keys = [
        SecretStreams(bytes([b]) * 32).key(name, round=t)
        for b, name, t in itertools.product((1, 2), ("a", "b"), (0, 1))
    ]
    assert len(set(keys)) == 8
    assert SecretStreams(bytes(32)).key("a") == SecretStreams(bytes(32)).key("a")
