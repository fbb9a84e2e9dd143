"""Planted bugs: where a pattern is found, which entries are refused, and what counts as caught."""

import ast
from pathlib import Path

import pytest

from tests.mutants import patterns, run

SOURCE = '''"""A module."""

class Ledger:
    @property
    def left(self):
        """What is left,
        in one sentence."""
        return self.limit - self.spent  # never below zero

    def charge(self, amount):
        if amount > self.left or amount < 0:  # both are refused
            raise ValueError(f"{amount} of {self.left}")
        elif not amount:
            return
        with self.lock, self.file:
            self.spent += amount
            self.file.write(amount)
        self.notify(amount)

def charge(amount):
    return amount
'''
CHARGE = "Ledger.charge"
MUTANT = run.Mutant("area", "a claim", "x", "y", ("tests/test_errors.py",), module="fedrec.errors")


@pytest.mark.parametrize(
    ("function", "find", "replace", "old", "new"),
    [
        # an expression, whatever its line breaks, brackets and comments; what is around it stays
        (
            CHARGE,
            "amount\n  > self.left or # one\n (amount<0)",
            "False",
            "amount > self.left or amount < 0",
            "False",
        ),
        ("Ledger.left", "self.limit", "a if b else c", "self.limit", "(a if b else c)"),
        (CHARGE, "not amount", "amount is None", "not amount", "amount is None"),
        (CHARGE, "ValueError", "TypeError", "ValueError", "TypeError"),
        # one statement or several, of which none may be left
        (
            "charge",
            "return amount",
            "amount += 1\nreturn amount",
            "return amount",
            "amount += 1\n    return amount",
        ),
        ("charge", "return  amount", "", "return amount", "pass"),
        (
            CHARGE,
            "self.spent += amount\nself.file.write(amount)",
            "self.spent = amount",
            "self.spent += amount\n            self.file.write(amount)",
            "self.spent = amount",
        ),
        # a body that is `...`
        (
            CHARGE,
            "with self.lock, self.file: ...",
            "with self.file: ...",
            "self.lock, self.file",
            "self.file",
        ),
        (
            CHARGE,
            "with self.lock, self.file: ...",
            "...",
            "with self.lock, self.file:\n            self.spent += amount\n            self.file",
            "self.spent += amount\n        self.file",
        ),
        (
            "Ledger.left",
            "@property\ndef left(self): ...",
            "@cached\ndef left(self): ...",
            "@property",
            "@cached",
        ),
    ],
)
def test_a_fragment_is_found_whatever_its_lines_and_only_its_place_changes(
    function: str, find: str, replace: str, old: str, new: str
) -> None:
    assert SOURCE.count(old) == 1
    written = patterns.applied(SOURCE, function, find, replace)
    assert written == SOURCE.replace(old, new)
    ast.parse(written)


def test_where_the_text_of_a_place_is_not_known_its_statement_is_written_anew() -> None:
    """In a string with placeholders, and where `elif` stands for an `if` within an `else`."""
    written = patterns.applied(SOURCE, CHARGE, "f'{amount} of {self.left}'", "f'{amount} of {0}'")
    assert "raise ValueError(f'{amount} of {0}')" in written
    written = patterns.applied(SOURCE, CHARGE, "if not amount: ...", "if amount: ...")
    assert ast.unparse(ast.parse(written)) == ast.unparse(
        ast.parse(SOURCE.replace("not amount", "amount"))
    )


def test_a_place_that_is_missing_or_ambiguous_is_refused_unless_it_is_counted() -> None:
    for function, find in (
        (CHARGE, "amount"),
        (CHARGE, "x"),
        ("charge", "self"),
        ("Lost", "amount"),
    ):
        with pytest.raises(ValueError, match="times in"):
            patterns.applied(SOURCE, function, find, "None")
    with pytest.raises(ValueError, match="nothing"):
        patterns.applied(SOURCE, CHARGE, "", "None")
    with pytest.raises(SyntaxError):
        patterns.applied(SOURCE, CHARGE, "if amount", "if not amount")
    second = patterns.applied(SOURCE, CHARGE, "amount", "None", nth=2)
    assert second == SOURCE.replace("amount < 0", "None < 0")
    with pytest.raises(ValueError, match="occurrence 9"):
        patterns.applied(SOURCE, CHARGE, "amount", "None", nth=9)


def test_an_entry_names_a_module_or_a_file_and_no_field_that_is_unknown(tmp_path: Path) -> None:
    entry = "[[mutant]]\n" + "\n".join(f'{key} = "x"' for key in sorted(run.NEEDED))
    for fields, said in (
        ("", "file"),
        ('file = "x"\nmodule = "x"', "module"),
        ('file = "x"\nfiles = "x"', "files"),
    ):
        (tmp_path / "one.toml").write_text(f"{entry}\n{fields}\n")
        with pytest.raises(ValueError, match=said):
            run.read_mutants(tmp_path)
    (tmp_path / "one.toml").write_text(f'{entry}\nfile = "x"')
    (mutant,) = run.read_mutants(tmp_path)
    assert mutant.applied("a x") == "a x"
    with pytest.raises(ValueError, match="2 times"):
        mutant.applied("x x")


def test_what_is_not_python_is_found_whatever_its_white_space() -> None:
    mutant = run.Mutant("area", "a claim", "if (a)\n  b()", "b()", (), file="page.js")
    assert mutant.applied("{\n  if (a) b();\n}") == "{\n  b();\n}"


def test_the_check_finds_a_lost_module_a_lost_test_and_a_bug_listed_twice(tmp_path: Path) -> None:
    (tmp_path / "research" / "figures").mkdir(parents=True)
    (tmp_path / "research" / "figures" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_one(): ...\n")

    def said(claim: str, module: str, test: str, replace: str = "2") -> list[str]:
        tests = (f"tests/test_one.py::{test}",)
        mutant = run.Mutant("area", claim, "1", replace, tests, module=module)
        twice = run.Mutant("other", claim, "x = 1", "x = 2", tests, module=module)
        return run.problems([mutant, twice] if claim == "twice" else [mutant], tmp_path)

    assert said("fine", "figures", "test_one[a-b::c]") == []
    for found, text in (
        (said("lost", "figures.lost", "test_one"), "no module figures.lost"),
        (said("lost", "figures", "test_two"), "has no test_two"),
        (said("none", "figures", "test_one", "1"), "nothing changes"),
        (said("twice", "figures", "test_one"), "the same as area-"),
    ):
        assert len(found) == 1
        assert text in found[0]


def test_a_share_is_chosen_by_its_seed_alone() -> None:
    mutants = run.read_mutants()
    chosen = run.sampled(mutants, 0.5, "a")
    assert chosen == run.sampled(mutants, 0.5, "a")
    assert {m.name for m in chosen} == {m.name for m in run.sampled(mutants[::-1], 0.5, "a")}
    assert len(chosen) == -(-len(mutants) // 2)


def test_what_a_kernel_imports_however_far_makes_its_compiled_form_stale() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": set[str](), "d": {"a"}}
    assert run.users_of("c", imports) == {"a", "b", "c", "d"}
    assert run.users_of("a", imports) == {"a", "d"}


def test_only_a_failure_of_the_test_counts_as_caught() -> None:
    outcome = lambda code, message="": run.Outcome(code, 0, 0, message, "log")  # noqa: E731
    assert run.judged(MUTANT, outcome(0))[0] == "SURVIVES"
    assert run.judged(MUTANT, outcome(1, "AssertionError"))[0] == "caught"
    for broken in (outcome(1, "NameError: x"), outcome(2), outcome(4), outcome(5), outcome(None)):
        assert run.judged(MUTANT, broken)[0] == "BROKEN"
