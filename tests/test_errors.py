import pickle
from pathlib import Path

import pytest

from fedrec import errors


def leaves(kind: type[errors.FedRecError]) -> list[type[errors.FedRecError]]:
    return [kind] + [leaf for child in kind.__subclasses__() for leaf in leaves(child)]


OTHERWISE_MADE = {errors.MalformedRowError, errors.RefusedError}


OURS = [
    kind
    for kind in leaves(errors.FedRecError)
    if kind.__module__.startswith("fedrec") and kind not in OTHERWISE_MADE
]
"""Not those that other tests define."""


@pytest.mark.parametrize("kind", OURS)
def test_an_error_crosses_processes_with_cause_remedy_and_code(
    kind: type[errors.FedRecError],
) -> None:
    back = pickle.loads(pickle.dumps(kind("why", "what to do")))
    assert (type(back), back.cause, back.remedy, back.exit_code) == (
        kind,
        "why",
        "what to do",
        kind.exit_code,
    )


def test_a_refusal_crosses_processes_with_its_code() -> None:
    back = pickle.loads(pickle.dumps(errors.RefusedError("busy", "why", "what to do")))
    assert (back.code, back.cause, back.remedy, back.exit_code) == ("busy", "why", "what to do", 7)


def test_a_malformed_row_crosses_processes_with_its_place() -> None:
    back = pickle.loads(
        pickle.dumps(errors.MalformedRowError(Path("r.csv"), 7, "a number", "x", "Mend it."))
    )
    assert (back.path, back.line, back.remedy) == (Path("r.csv"), 7, "Mend it.")
    assert str(back) == "r.csv, line 7: expected a number, found 'x'"
