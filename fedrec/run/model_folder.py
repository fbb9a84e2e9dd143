"""Folder of a released model: arrays and manifest, what a serving bundle is made with, and a model
card, README.md in the manner of Hugging Face, which cannot claim more than the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from fedrec import __version__
from fedrec.api.released import write_facts
from fedrec.certificates.inputs import FactorizationInputs
from fedrec.certificates.writing import ReleasedRound, certify
from fedrec.data.interactions import Dataset
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.released import save
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.run.job import run_id
from fedrec.run.training import Trained
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import ServingFacts
from fedrec.settings import Scenario
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


def write_card(
    folder: Path,
    *,
    recipe: str,
    kind: str,
    items: tuple[str, ...],
    guarantee: Guarantee,
    noise: str,
    not_covered: Sequence[str] = (),
    spent: Sequence[str] = (),
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
        spent="".join(f"| all trainings of these people | {one} |\n" for one in spent),
        not_covered="".join(f"\n- Not covered: {what}.\n" for what in not_covered),
        folder="path/to/model",
        example=example,
    )
    write_bytes(folder / FILE, card.encode())


def keep_model(
    folder: Path,
    scenario: Scenario,
    dataset: Dataset,
    facts: PublicFacts,
    trained: Trained,
    *,
    name: str,
    not_covered: Sequence[str],
    released: Iterable[ReleasedRound],
    spent: Sequence[str] = (),
) -> None:
    """Write the released model, its manifest, what a serving bundle is made with, what
    `fedrec.load` reads, and its certificate.

    released: every release that it was computed from. name: of the run, the same whoever carried
    the rounds: the bundle is the same too. not_covered: sentences on what reader and split took
    from everybody's rows. spent: sentences on what all trainings of these people have cost.
    """
    plan = trained.prepared.plan
    catalogue = dataset.catalogue
    about = {
        "recipe": scenario.recipe,
        "fedrec": __version__,
        "guarantee": asdict(plan.guarantee),
        "noise": scenario.privacy.noise,
        "plan": plan.digest(),
        "items": list(catalogue.item_ids),
    }
    save(folder, trained.model, about=about)
    titles = catalogue.titles
    opinions = asdict(trained.opinions())
    write_facts(
        folder,
        scenario,
        facts.kind,
        facts.value_range,
        titles,
        opinions,
        not_covered,
        dataset.whole,
        spent,
    )
    promised = plan.guarantee
    noise = scenario.privacy.noise
    write_card(
        folder,
        recipe=scenario.recipe,
        kind=facts.kind,
        items=catalogue.item_ids,
        guarantee=promised,
        noise=noise,
        not_covered=not_covered,
        spent=spent,
    )
    if "counts" in trained.state:  # without, no bundle can be made
        guarantee = plan.guarantee
        origin = Origin(name, guarantee.delta, guarantee, guarantee.epsilon, noise)
        public = PublicItems.of_features(catalogue.item_ids, catalogue.titles, dataset.features)
        serving = ServingFacts.of(
            trained.prepared.recipe, trained.state, facts, scenario, public, origin
        )
        serving.keep(folder, trained.state)
    known = PublicData.of(catalogue, facts)
    certify(
        folder,
        scenario,
        FactorizationInputs(known, facts.num_users),
        released,
        run=run_id(scenario),
        plan=plan,
    )
