"""Vectors of texts from a pre-trained language model in a local folder, computed once and kept in a
file (PLM-NR).

Any Hugging Face encoder folder will do; nothing is ever downloaded. `transformers`, of the extra
`plm`, is imported only when a folder is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrec.arrays import Float32s
from fedrec.errors import DataError, require

_BATCH = 64  # texts at a time


@dataclass(frozen=True)
class HuggingFaceEncoder:
    """Mean of the last hidden states over the tokens of a text, at most `length` of them.

    tokenizer: texts to input_ids and attention_mask, (n, L) tensors; network: those to an object
    with last_hidden_state (n, L, width).
    """

    tokenizer: Any
    network: Any
    fingerprint: str
    length: int = 64

    def encode(self, texts: Sequence[str]) -> Float32s:
        """(len(texts), width) float32 vectors."""
        with torch.inference_mode():
            parts = [
                self._batch(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)
            ]
        vectors: Float32s = torch.cat(parts).numpy()
        return vectors

    def _batch(self, texts: Sequence[str]) -> Tensor:
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.length, return_tensors="pt"
        )
        states: Tensor = self.network(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return mean.float()


def open_encoder(folder: Path, *, length: int = 64) -> HuggingFaceEncoder:
    """The encoder of a Hugging Face folder (config.json, weights, tokenizer).

    Raises SettingsError without the extra `plm`, DataError if the folder is not one of an
    encoder.
    """
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} holds no config.json",
            "Name the folder of a Hugging Face encoder, with its weights and tokenizer.",
        )
    require("plm", "a language model")
    transformers = import_module("transformers")  # optional, and slow to import
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        network = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} cannot be opened as an encoder: {error}",
            "Check that weights and tokenizer are complete.",
        ) from error
    return HuggingFaceEncoder(tokenizer, network, _digest_of_folder(folder, length), length)


def _digest_of_folder(folder: Path, length: int) -> str:
    """Digest of every file's name and bytes, read a mebibyte at a time."""
    digest = hashlib.sha256(str(length).encode())
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
