"""The list of planted bugs is in order: what it names exists, and each change is possible."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation_runs", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


run = _run()
MUTANTS = run.read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_tests_that_exist(mutant: "run.Mutant") -> None:
    source = (ROOT / mutant.file).read_text()
    bug = mutant.applied(source)
    assert bug != source
    if mutant.file.endswith(".py"):
        ast.parse(bug)
    for test in mutant.tests:
        file, *names = test.split("[")[0].split("::")
        tree: ast.AST = ast.parse((ROOT / file).read_text())
        for name in names:
            nodes = [
                node for node in ast.iter_child_nodes(tree) if getattr(node, "name", "") == name
            ]
            assert nodes, f"{file} has no {name}"
            tree = nodes[0]


def test_no_mutant_is_listed_twice() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_an_entry_with_an_unknown_field_or_an_ambiguous_place_is_refused(tmp_path: Path) -> None:
    entry = "[[mutant]]\n" + "\n".join(f'{key} = "x"' for key in sorted(run.FIELDS - {"hangs"}))
    (tmp_path / "one.toml").write_text(entry)
    (mutant,) = run.read_mutants(tmp_path)
    with pytest.raises(ValueError, match="2 times"):
        mutant.applied("x x")
    (tmp_path / "one.toml").write_text(entry + '\nfiles = "x"')
    with pytest.raises(ValueError, match="files"):
        run.read_mutants(tmp_path)


def test_a_share_is_chosen_by_its_seed_alone() -> None:
    chosen = run.sampled(MUTANTS, 0.5, "a")
    assert chosen == run.sampled(MUTANTS, 0.5, "a")
    assert {m.name for m in chosen} == {m.name for m in run.sampled(MUTANTS[::-1], 0.5, "a")}
    assert len(chosen) == -(-len(MUTANTS) // 2)


def test_what_a_kernel_imports_however_far_makes_its_compiled_form_stale() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": set[str](), "d": {"a"}}
    assert run.users_of("c", imports) == {"a", "b", "c", "d"}
    assert run.users_of("a", imports) == {"a", "d"}


def test_only_a_failure_of_the_test_counts_as_caught() -> None:
    mutant = MUTANTS[0]
    outcome = lambda code, message="": run.Outcome(code, 0, 0, message, "log")  # noqa: E731
    assert run.judged(mutant, outcome(0))[0] == "SURVIVES"
    assert run.judged(mutant, outcome(1, "AssertionError"))[0] == "caught"
    for broken in (outcome(1, "NameError: x"), outcome(2), outcome(4), outcome(5), outcome(None)):
        assert run.judged(mutant, broken)[0] == "BROKEN"
