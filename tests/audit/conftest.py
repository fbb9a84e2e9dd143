"""Planted news of the smallest size, read once."""

import pytest

from fedrec.auditing import membership
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue
from fedrec.run.data.news import NewsData, load_news
from fedrec.settings import Scenario, load

NEWS = [
    "recipe=privaterec",
    "news.variant=additive",
    "privacy.noise=seeded",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.unit=click",
    "privacy.epsilon=5",
]


@pytest.fixture(autouse=True)
def few_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of how many users the one with the longest reports is attacked."""
    monkeypatch.setattr(membership, "_TRIED_USERS", 40)


@pytest.fixture(scope="session")
def scenario() -> Scenario:
    return load(None, NEWS)


@pytest.fixture(scope="session")
def data(scenario: Scenario) -> NewsData:
    return load_news(scenario)


@pytest.fixture(scope="session")
def catalogue(data: NewsData) -> Catalogue:
    return Catalogue(data.news, public_vectors(data.news, data.features, seed=1))
