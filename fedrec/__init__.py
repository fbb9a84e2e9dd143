"""fedrec: federated recommenders with differential privacy, and a guarantee that is stated with
every result.

>>> import fedrec
>>> train, test = fedrec.Dataset.planted("small").split("random", seed=1)
>>> model = fedrec.MatrixFactorization(epsilon=5, delta=1e-5, noise="seeded").fit(train)
>>> model.guarantee.epsilon
5.0

The names below are loaded when they are first used: `import fedrec` alone imports neither NumPy nor
any process. The library under this name holds mathematics, messages, accounting, data and
evaluation; servers, clients and aggregators are packages of their own.
"""

import importlib
from pathlib import Path
from typing import Any

from fedrec.compiling import keep_compiled

__version__ = "0.1.0"

_API = "fedrec.api."
_PLACES = {
    "Dataset": _API + "datasets",
    "TrainingSet": _API + "datasets",
    "TestSet": _API + "datasets",
    "Recommender": _API + "recommender",
    "MatrixFactorization": _API + "estimators",
    "ItemItem": _API + "estimators",
    "Popularity": _API + "estimators",
    "ItemBias": _API + "estimators",
    "TorchRecommender": _API + "torch_recommender",
    "load": _API + "estimators",
    "NewsData": _API + "news",
    "NewsRecommender": _API + "news",
    "PrivacyGuarantee": _API + "promises",
    "Evaluation": _API + "evaluating",
    "evaluate": _API + "evaluating",
    "PrivacyCurve": _API + "curves",
    "privacy_curve": _API + "curves",
    "Simulation": _API + "running",
    "simulate": _API + "running",
    "audit": _API + "running",
    "scenarios": _API + "running",
    "account_of_person": _API + "persons",
    "text_vectors": "fedrec.run.data.texts",
    "verify": "fedrec.certificates.verifying",
    "compare": "fedrec.run.comparison_frame",
    "JsonLines": _API + "callbacks",
    "recipe": "fedrec.registry",
    "Prepared": "fedrec.recipes",
    "RecipeFacts": "fedrec.recipes",
    "Scenario": "fedrec.settings",
    "FedRecError": "fedrec.errors",
    "SettingsError": "fedrec.errors",
    "DataError": "fedrec.errors",
    "PrivacyError": "fedrec.errors",
    "RunError": "fedrec.errors",
    "DataWarning": "fedrec.errors",
    "UnknownIdsWarning": "fedrec.errors",
    "UnusedColumnsWarning": "fedrec.errors",
}
"""Where each public name is defined; `__init__.pyi` says the same to type checkers, and a test
compares the two."""

__all__ = ["__version__", *_PLACES]

keep_compiled(Path(__file__).parent)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        if name.startswith("_"):
            raise AttributeError(f"module 'fedrec' has no attribute {name!r}")
        from fedrec.api.habits import unknown_name

        raise unknown_name("module 'fedrec'", name, __all__)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
