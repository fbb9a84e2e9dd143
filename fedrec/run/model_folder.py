"""Folder of a released model: arrays and manifest, what a serving bundle is made with, and a model
card, README.md in the manner of Hugging Face, which cannot claim more than the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from fedrec import __version__
from fedrec.api.released import FILE as FACTS
from fedrec.api.released import FORMAT as FACTS_FORMAT
from fedrec.api.released import read_released
from fedrec.certificates.writing import FactorizationInputs, ReleasedRound, certify, remove
from fedrec.data.added_items import AddedItems
from fedrec.data.interactions import Dataset
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.released import public_directions, save
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.run.training import Trained
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import SERVING_FILES, ServingFacts, serve_items
from fedrec.settings import Scenario
from fedrec.storage import finite, read_json, write_bytes, write_json

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
    new: int = 0,
) -> None:
    """Write the card beside the model. new: how many items came after training."""
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
        items=f"{len(items):,}{f', of which {new:,} came after training' if new else ''}",
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


def clear(folder: Path) -> None:
    """Take an earlier model out of the folder, with its releases and counts: the guarantee of the
    next one is not of them."""
    remove(folder)
    for name in (FILE, "manifest.json", "model.safetensors", FACTS, *SERVING_FILES):
        (folder / name).unlink(missing_ok=True)


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
    clear(folder)
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
    chosen = scenario.model_dump(
        mode="json",
        include={"recipe", "seed", "model", "privacy"},
        exclude={"privacy": scenario.unsaid},
    )
    # what `read_released` needs besides the manifest: nothing private, no path of this machine
    content = {
        "kind": facts.kind,
        "value_range": facts.value_range,
        "titles": titles,
        "accountants": opinions,
        "settings": chosen,
        "not_covered": list(not_covered),
        **({"item_ids": "numbers"} if "item" in dataset.whole else {}),
        "spent": list(spent),
    }
    write_json(folder / FACTS, finite({"format": FACTS_FORMAT, **content}))
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
        run=scenario.run_id(),
        plan=plan,
    )


def add_items(folder: Path, added: AddedItems) -> None:
    """Put items that came after training into a released model: their vectors follow from public
    data and from those of known items (`factorization.released`).

    The folder's certificate goes: it is of the model as it was trained. Raises as `read_released`
    and `released.public_directions`."""
    old = read_released(folder)
    X = public_directions(added.features)
    now = old.with_items(added, X)
    manifest = read_json(folder / "manifest.json")
    about = {name: own for name, own in manifest.items() if name not in {"format", "sha256"}}
    save(folder, now.model, about={**about, "items": list(now.item_ids)})
    facts = {**read_json(folder / FACTS), "titles": list(now.titles)}
    if "item" not in now.whole:
        facts.pop("item_ids", None)
    write_json(folder / FACTS, finite(facts))
    promised = now.guarantee
    write_card(
        folder,
        recipe=now.recipe,
        kind=now.kind,
        items=now.item_ids,
        guarantee=promised.promised,
        noise=promised.noise,
        not_covered=promised.not_covered,
        spent=promised.spent,
        new=added.number,
    )
    serve_items(folder, added, X)
    remove(folder)
