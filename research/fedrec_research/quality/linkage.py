"""Benchmark of linkage by noised answers: of two answers of one person among all people of a click
log, at many epsilons per click.

Protocol: everybody who trains on the log of `fedrec.data.clicklog` has a history of the latest H =
50 clicks and sends the mean of its public rows (`privacy.bounded_mean`, 32 directions) twice, each
time with new noise: as a report of training and as a query, both at the epsilon of the row.
`news.linkage` matches queries to reports by likelihood. "after 5 more clicks": the report is of a
history that lacks the five latest clicks. Epsilon per user (replace) is of both answers together,
for a person with 50 clicks, and of the labels of one with so many as the median person; per click
it is that of one answer, or of one label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.news.trained import topics_of
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.person import epsilon_of_person
from fedrec.privacy.selection import PureEvent
from fedrec.randomness import Streams
from fedrec.report.news_person import Answers, linkage
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.settings import load
from fedrec.storage import finite
from fedrec_research.trials import Asked, Row, paragraph

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
MORE = 5
"""Clicks by which the later history differs."""


@dataclass(frozen=True)
class People:
    """Two histories of everybody, (n, H) each, the public rows, and how many labels the person in
    the middle answered."""

    before: npt.NDArray[np.int32]
    after: npt.NDArray[np.int32]
    rows: TopicTable
    labels: int


def run(asked: Asked) -> Row:
    """Every epsilon; data "planted" is the small planted set."""
    people = _people(asked.path)
    delta = 1e-5
    epsilons = EPSILONS[4:6] if asked.quick else EPSILONS
    return dict(
        finite(
            {
                "protocol": paragraph(__doc__),
                "people": len(people.before),
                "history": people.before.shape[1],
                "labels": people.labels,
                "delta": delta,
                "epsilons": {f"{epsilon:g}": _row(people, epsilon, delta) for epsilon in epsilons},
            }
        )
    )


def _people(data: str) -> People:
    where = (
        ["data.format=planted-news", "data.preset=small"]
        if data == "planted"
        else ["data.format=click-log", f"data.path={data}"]
    )
    scenario = load(None, ["recipe=privaterec", "privacy.unit=click", *where])
    read = load_news(scenario)
    train = read.log.train
    H = scenario.news.history
    longer = train.last_clicks(H + MORE)
    labels = np.bincount(train.users, minlength=train.num_users)
    return People(
        longer[:, :H],
        longer[:, MORE:],
        topics_of(scenario, catalogue_of(scenario, read)),
        int(np.median(labels)),
    )


def _row(people: People, epsilon: float, delta: float) -> Row:
    mu = mu_for(epsilon, delta)
    streams = Streams(1)

    def sent(history: npt.NDArray[np.int32], name: str) -> Answers:
        made = bounded_mean.report(
            history, people.rows, mu=mu, name=name, key=streams.key(f"{name}/{epsilon:g}")
        )
        return Answers(made.values, made.noise_std)

    report = sent(people.after, "report")
    same = linkage(report, sent(people.after, "query"))
    later = linkage(sent(people.before, "earlier"), sent(people.after, "later"))
    answer = GaussianEvent("report", mu, "click", "replace")
    label = PureEvent("label", epsilon)
    clicks = people.before.shape[1]
    both = epsilon_of_person(Costs((answer, answer), ()), delta, clicks=clicks)
    told = epsilon_of_person(Costs((), (label,)), delta, clicks=0, labels=people.labels)
    return {
        "same": same.as_dict(),
        "later": later.as_dict(),
        "user_epsilon": both,
        "user_epsilon_of_labels": told,
    }
