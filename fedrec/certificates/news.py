"""Certificate of a recommender of news whose reports are summed."""

from __future__ import annotations

from pathlib import Path

from fedrec.certificates.inputs import NewsInputs
from fedrec.certificates.writing import Statements, certify, nobody_states, questions_of
from fedrec.news.trained import Catalogue
from fedrec.news.variant import of
from fedrec.settings import Scenario
from fedrec.storage import release_file


def certify_news(
    folder: Path,
    scenario: Scenario,
    catalogue: Catalogue,
    training: Path,
    *,
    run: str,
    statements: Statements = nobody_states,
) -> None:
    """Write the certificate of the model in `folder`, from the releases that the folder of its
    training kept, or that of its server in it.

    Nothing of a variant whose devices add the noise: who gets its model does not see its reports.
    """
    summed = of(scenario).summed
    if summed is None:
        return
    recipe = summed.recipe(scenario, catalogue)
    kept = next(training.rglob("releases/round-000.safetensors")).parents[1]
    rounds = range(len(recipe.plan.releases))
    contents = (release_file(kept, round).read_bytes() for round in rounds)
    inputs = NewsInputs(*summed.public(scenario, catalogue))
    released = questions_of(recipe, contents, run=run)
    certify(
        folder,
        scenario,
        inputs,
        released,
        run=run,
        plan=recipe.plan,
        statements=statements(run, len(rounds)),
    )
