"""Files of a released model, as they follow from its releases, its public inputs and what is told
beside them: whoever writes a model writes these bytes, and whoever verifies it compares them.

    model.safetensors, popularity.safetensors    numbers of the last state
    manifest.json, training.json, README.md      what is promised; what `fedrec.load` reads; a card
    serving.json                                 what a serving bundle is made with

The card, in the manner of Hugging Face, cannot claim more than the manifest. A model of real
parties has neither card nor training.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedrec import __version__
from fedrec.factorization.held_out import evaluation_of
from fedrec.factorization.released import arrays_of, manifest_of
from fedrec.federation.messages import State
from fedrec.privacy.accounting import Opinions
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.recipes import TrainableRecipe
from fedrec.serving.bundle import FACTS
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import COUNTS, ServingFacts
from fedrec.settings import Scenario
from fedrec.storage import finite, json_bytes, packed_arrays

ARRAYS = "model.safetensors"
MANIFEST = "manifest.json"
TRAINING = "training.json"
TRAINING_FORMAT = "fedrec-training/1"
CARD = "README.md"

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
| items | {items} |
| guarantee | {guarantee} |
{spent}| noise | {noise} |
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


@dataclass(frozen=True)
class Told:
    """What the files of a model say that nothing else in them shows.

    noise: where it came from. origin: what a bundle says of the training, None where none can be
    made. listed: the categories of each item. not_covered: sentences on what reader and split took
    from everybody's rows. spent: sentences on what all trainings of these people have cost.
    numbered: whether item ids came as numbers. took_part: who reported in each round of real
    parties, None of a simulation.
    """

    noise: str
    origin: Origin | None
    listed: Sequence[Sequence[str]] = ()
    not_covered: Sequence[str] = ()
    spent: Sequence[str] = ()
    numbered: bool = False
    took_part: Sequence[Mapping[str, int]] | None = None
    version: str = __version__


def model_files(
    scenario: Scenario,
    public: PublicData,
    users: int,
    recipe: TrainableRecipe,
    state: State,
    plan: Plan,
    accountants: Mapping[str, float] | Opinions,
    told: Told,
) -> dict[str, bytes]:
    """Every file of a model but its certificate, by name.

    Args:
        scenario: Of the training.
        public: What is public of items, as the certificate keeps it.
        users: Number of users that a release stands for.
        recipe: Whose model `state` is.
        state: After the last round.
        plan: Of the training.
        accountants: Epsilon of the releases, by each.
        told: What is told beside them.

    Returns:
        Name to bytes.
    """
    model = recipe.model(state)
    numbers = packed_arrays(arrays_of(model))
    told_by_people = evaluation_of(recipe, state)
    about = {
        "recipe": scenario.recipe,
        "fedrec": told.version,
        "guarantee": asdict(plan.guarantee),
        "noise": told.noise,
        "plan": plan.digest(),
        "items": list(public.items),
        **({} if told.took_part is None else {"rounds": list(told.took_part)}),
        **({} if told_by_people is None else {"evaluation": told_by_people.as_dict()}),
    }
    digest = hashlib.sha256(numbers).hexdigest()
    files = {ARRAYS: numbers, MANIFEST: json_bytes(manifest_of(model, digest, about))}
    if told.took_part is None:
        files[TRAINING] = json_bytes(_training(scenario, public, accountants, told))
        files[CARD] = card(
            recipe=scenario.recipe,
            kind=public.kind,
            items=public.items,
            guarantee=plan.guarantee,
            noise=told.noise,
            not_covered=told.not_covered,
            spent=told.spent,
            version=told.version,
        )
    if told.origin is not None and "counts" in state:  # without, no bundle can be made
        items = PublicItems(public.items, public.titles or public.items, told.listed)
        facts = public.facts(num_users=users, seed=scenario.seed)
        served = ServingFacts.of(recipe, state, facts, scenario, items, told.origin)
        files[FACTS] = json_bytes(served.content())
        files[COUNTS] = packed_arrays({"counts": np.asarray(state["counts"], np.float64)})
    return files


def _training(
    scenario: Scenario,
    public: PublicData,
    accountants: Mapping[str, float] | Opinions,
    told: Told,
) -> dict[str, Any]:
    """What `released.read_released` needs besides the manifest: nothing private, no path of the
    trainer's machine, and no seed from which noise was drawn."""
    chosen = scenario.model_dump(
        mode="json",
        include={"recipe", "model", "privacy"} | ({"seed"} if told.noise != "seeded" else set()),
        exclude={"privacy": scenario.unsaid},
    )
    content = {
        "format": TRAINING_FORMAT,
        "kind": public.kind,
        "value_range": public.value_range,
        "titles": public.titles,
        "accountants": accountants if isinstance(accountants, Mapping) else asdict(accountants),
        "settings": chosen,
        "not_covered": list(told.not_covered),
        **({"item_ids": "numbers"} if told.numbered else {}),
        "spent": list(told.spent),
    }
    return dict(finite(content))


def card(
    *,
    recipe: str,
    kind: str,
    items: tuple[str, ...],
    guarantee: Guarantee,
    noise: str,
    not_covered: Sequence[str] = (),
    spent: Sequence[str] = (),
    new: int = 0,
    version: str = __version__,
) -> bytes:
    """The card of a model. new: how many items came after training."""
    warning = _NOT_PRIVATE if not guarantee.private else _SEEDED if noise == "seeded" else ""
    example = ", ".join(f'"{item}"' for item in items[:2])
    words = (
        {"system": "drawn from the operating system", "seeded": "seeded: an experiment"}[noise]
        if guarantee.private
        else "none"
    )
    written = _CARD.format(
        recipe=recipe,
        kind=kind,
        items=f"{len(items):,}{f', of which {new:,} came after training' if new else ''}",
        guarantee=guarantee,
        noise=words,
        version=version,
        warning=warning,
        spent="".join(f"| all trainings of these people | {one} |\n" for one in spent),
        not_covered="".join(f"\n- Not covered: {what}.\n" for what in not_covered),
        folder="path/to/model",
        example=example,
    )
    return written.encode()
