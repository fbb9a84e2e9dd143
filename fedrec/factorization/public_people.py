"""Public people, whose ratings teach the default recipe: the recipe itself, trained on them alone
without noise.

It leaves a model, which is where the private steps start, and for every number of it an observation
with a variance: an item that few of them rated is hardly observed. The private observations of
later steps are weighed beside it (`earlier.beside_known`).

Guarantee: none is needed and none is spent. Everything here is a function of public data, and no
private user may be among these people: see `data.public_sources`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.factorization.default_ratings import recipe as default
from fedrec.factorization.default_ratings.settings import settings_for
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import State, train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import non_private

_KEPT = ("mean", "phi", "public_phi", "rest", "bias", "variance", "variances")


def learned(
    people: Interactions, facts: PublicFacts, content: npt.NDArray[np.float64] | None
) -> State:
    """A state of `default.DefaultRecipe` before its first question.

    people_counts: (m,) counts expected of the private users, were they like these people.
    people_observed, people_precision: (m, d + 1) of the bias and the first d deviations of phi.
    """
    nothing_private = non_private(1e-5, "user")
    settings = settings_for(
        nothing_private,
        users=people.num_users,
        items=people.num_items,
        features=content is not None,
    )
    plan = calibrate(nothing_private, settings.shares)
    recipe = default.DefaultRecipe(
        plan, settings, replace(facts, num_users=people.num_users), content
    )
    link = Loopback(people, default.CLIENT_STEPS, plan, facts.streams, Ledger(nothing_private))
    *_, last = train(recipe, link, recipe.begin())
    state = last.state
    counts = np.asarray(state["counts"], np.float64) * (facts.num_users / people.num_users)
    observed = {
        "people_observed": state["observed"],
        "people_precision": 1 / np.asarray(state["observed_variance"], np.float64),
    }
    return {name: state[name] for name in _KEPT} | observed | {"people_counts": counts}
