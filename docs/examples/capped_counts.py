"""A mechanism of one's own: clicks are counted, and of each user only the first `most` items by a
public order."""

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import fedrec
from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.federation.messages import Question, Release, ReleaseSpec
from fedrec.federation.reports import RealBlock, block, bounded


class CappedCounts(BaseModel):
    model_config = ConfigDict(extra="forbid")
    most: int = Field(20, ge=1)


def client_steps(settings, kind):
    # on the device: one count of weight 1 / sqrt(most) for each item kept
    def report(question, mine):
        place = np.arange(len(mine)) - np.repeat(mine.user_ptr[:-1], np.diff(mine.user_ptr))
        kept = mine.select(place < settings.most)
        weights = np.full(len(kept), settings.most**-0.5)
        return bounded(
            kept.user_ptr,
            kept.items,
            [RealBlock(weights, np.ones((kept.num_users, 1)))],
            question.releases,
            scaling="clip",
        )

    return {"capped-counts/report": report}


@fedrec.recipe("capped-counts", settings=CappedCounts, kinds=("clicks",), client_steps=client_steps)
def build(settings, facts):
    plan = facts.plan({"counts": 1.0})  # one release, which gets the whole budget

    class Server:
        def begin(self):
            return {"round": np.array(0), "counts": np.zeros(facts.num_items)}

        def ask(self, state):
            counts = block("counts", "linear", rows=facts.num_items, width=1)
            question = Question(
                0, "capped-counts/report", {}, (ReleaseSpec("counts", (counts,), radius=1.0),)
            )
            return None if int(state["round"]) else question

        def tell(self, state, question, answer: Release):
            return {
                "round": np.array(1),
                "counts": answer.values["counts"][:, 0] * settings.most**0.5,
            }

        def model(self, state):
            return ClickModel(
                np.zeros((facts.num_items, 1), np.float32), np.maximum(state["counts"], 0), 1.0, 1.0
            )

    server = Server()
    server.plan = plan
    return fedrec.Prepared(server, client_steps(settings, facts.kind), plan)
