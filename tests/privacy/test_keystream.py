import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.privacy.keystream import Keystream, derive


def test_words_are_the_encrypted_counter_of_their_section() -> None:
    key = bytes(range(32))
    stream = Keystream(key, section=5, buffer_words=4)
    found = np.concatenate([stream.next_words().copy() for _ in range(3)])
    blocks = b"".join((5).to_bytes(8, "big") + counter.to_bytes(8, "big") for counter in range(6))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    np.testing.assert_array_equal(found, np.frombuffer(expected, "<u8"))


def test_purposes_and_keys_give_different_keys_and_short_keys_are_refused() -> None:
    keys = {
        derive(bytes(32), "a"),
        derive(bytes(32), "b"),
        derive(bytes(31) + b"x", "a"),
        derive(bytes(33), "a"),
    }
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    with pytest.raises(ValueError, match="at least 32 bytes, found 31"):
        derive(bytes(31), "a")
