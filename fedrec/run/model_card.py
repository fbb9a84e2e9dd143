"""Model card of a released model: README.md in the manner of Hugging Face, made of the manifest, so
that it cannot claim more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrec import __version__
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import write_bytes

FILE = "README.md"

_CARD = """\
---
library_name: fedrec
tags:
- recommender-system
- differential-privacy
- federated-learning
---
# A recommender trained with differential privacy

| | |
| --- | --- |
| recipe | `{recipe}` |
| learned from | {kind} |
| items | {items:,} |
| guarantee | {guarantee} |
| noise | {noise} |
| made by | fedrec {version} |

## What the guarantee covers

It covers `model.safetensors` and everything computed from it. It does not cover the list of item
ids, nor any metric that was measured on the data and published beside the model.
{not_covered}
{warning}## Use

```python
import fedrec

model = fedrec.load("{folder}")
print(model.guarantee)
print(model.recommend(history=[{example}], k=10))
```
"""
_SEEDED = """\
**Do not release this model.** Its noise was drawn from a seed: whoever knows the seed can
remove it.

"""
_NOT_PRIVATE = """\
**This model is not private.** It was trained without noise.

"""


def write_card(
    folder: Path,
    *,
    recipe: str,
    kind: str,
    items: tuple[str, ...],
    guarantee: Guarantee,
    noise: str,
    not_covered: Sequence[str] = (),
) -> None:
    """Write the card beside the model."""
    warning = _NOT_PRIVATE if not guarantee.private else _SEEDED if noise == "seeded" else ""
    example = ", ".join(f'"{item}"' for item in items[:2])
    words = (
        {"system": "drawn from the operating system", "seeded": "seeded: an experiment"}[noise]
        if guarantee.private
        else "none"
    )
    card = _CARD.format(
        recipe=recipe,
        kind=kind,
        items=len(items),
        guarantee=guarantee,
        noise=words,
        version=__version__,
        warning=warning,
        not_covered="".join(f"\n- Not covered: {what}.\n" for what in not_covered),
        folder="path/to/model",
        example=example,
    )
    write_bytes(folder / FILE, card.encode())
