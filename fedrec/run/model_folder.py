"""Folder of a released model: its files (`certificates.model_files`) and its certificate; the same
with items that came after training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedrec.api.released import FILE as FACTS
from fedrec.api.released import read_released
from fedrec.certificates.model_files import CARD, Told, card, model_files
from fedrec.certificates.writing import FactorizationInputs, ReleasedRound, certify, remove
from fedrec.data.added_items import AddedItems
from fedrec.data.interactions import Dataset
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.later_items import public_directions
from fedrec.factorization.released import save
from fedrec.output_folders import clear, finish
from fedrec.public_data import PublicData
from fedrec.run.training import Trained
from fedrec.serving.exporting import Origin, PublicItems
from fedrec.serving.model_bundles import serve_items
from fedrec.settings import Scenario
from fedrec.storage import finite, read_json, write_bytes, write_files, write_json


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
    clear(folder, "model")
    plan = trained.prepared.plan
    promised = plan.guarantee
    noise = scenario.privacy.noise
    public = PublicData.of(dataset.catalogue, facts)
    items = PublicItems.of_features(public.items, public.titles, dataset.features)
    untold = tuple(not_covered)
    epsilon, delta = promised.epsilon, promised.delta
    told = Told(
        noise,
        Origin(name, delta, promised, epsilon, noise, not_covered=untold),
        items.listed,
        not_covered,
        spent,
        "item" in dataset.whole,
    )
    prepared = trained.prepared
    files = model_files(
        scenario,
        public,
        facts.num_users,
        prepared.recipe,
        trained.state,
        plan,
        trained.opinions(),
        told,
    )
    write_files(folder, files)
    inputs = FactorizationInputs(public, facts.num_users)
    certify(folder, scenario, inputs, released, run=scenario.run_id(), plan=plan, noise=noise)


def add_items(folder: Path, added: AddedItems) -> None:
    """Put items that came after training into a released model: their vectors follow from public
    data and from those of known items (`factorization.released`).

    The folder's certificate goes: it is of the model as it was trained. Raises as `read_released`
    and `later_items.public_directions`."""
    old = read_released(folder)
    X = public_directions(added.features)
    now = old.with_items(added, X)
    manifest = read_json(folder / "manifest.json")
    about = {name: own for name, own in manifest.items() if name not in {"format", "sha256"}}
    save(folder, now.model, about={**about, "items": list(now.item_ids)})
    promised = now.guarantee
    told = {"titles": list(now.titles), "not_covered": list(promised.not_covered)}
    facts = {**read_json(folder / FACTS), **told}
    if "item" not in now.whole:
        facts.pop("item_ids", None)
    write_json(folder / FACTS, finite(facts))
    written = card(
        recipe=now.recipe,
        kind=now.kind,
        items=now.item_ids,
        guarantee=promised.promised,
        noise=promised.noise,
        not_covered=promised.not_covered,
        spent=promised.spent,
        new=added.number,
    )
    write_bytes(folder / CARD, written)
    serve_items(folder, added, X)
    remove(folder)
    finish(folder, "model")
