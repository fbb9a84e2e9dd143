"""A recipe from outside: clicks counted once, each user's by 1 / sqrt(n)."""

from dataclasses import dataclass

import numpy as np

from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.federation.messages import Question, Release, ReleaseSpec, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.registry import NoSettings, RecipeSpec


def client_steps(settings, kind):
    def report(question, mine):
        ones = RealBlock(np.ones(len(mine)), np.ones((mine.num_users, 1)))
        return bounded(mine.user_ptr, mine.items, [ones], question.releases)

    return {"counted/report": report}


@dataclass(frozen=True)
class Counted:
    facts: RecipeFacts
    plan: Plan

    def begin(self) -> State:
        return {"round": np.array(0), "counts": np.zeros(self.facts.num_items)}

    def ask(self, state: State) -> Question | None:
        counts = block("counts", "linear", rows=self.facts.num_items, width=1)
        asked = Question(0, "counted/report", {}, (ReleaseSpec("counts", (counts,)),))
        return None if int(state["round"]) else asked

    def tell(self, state: State, question: Question, answer: Release) -> State:
        return {"round": np.array(1), "counts": answer.values["counts"][:, 0]}

    def model(self, state: State) -> ClickModel:
        flat = np.zeros((self.facts.num_items, 1), np.float32)
        return ClickModel(flat, np.maximum(state["counts"], 0), 1.0, 1.0)


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    plan = facts.plan({"counts": 1.0})
    return Prepared(Counted(facts, plan), client_steps(settings, facts.kind), plan)


SPEC = RecipeSpec(name="counted", build=build, client_steps=client_steps, kinds=("clicks",))
