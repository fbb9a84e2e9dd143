"""Page of the Python interface, docs/api.md, made from the docstrings of what `import fedrec`
offers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import fedrec

_HERE = "fedrec.api"
_GROUPS = {
    "Data": ("Dataset", "TrainingSet", "TestSet", "NewsData", "text_vectors"),
    "Models": (
        "Recommender",
        "MatrixFactorization",
        "ItemItem",
        "Popularity",
        "ItemBias",
        "NewsRecommender",
        "load",
    ),
    "Guarantees and measurements": (
        "PrivacyGuarantee",
        "evaluate",
        "Evaluation",
        "privacy_curve",
        "PrivacyCurve",
    ),
    "Runs": (
        "simulate",
        "Simulation",
        "audit",
        "verify",
        "account_of_person",
        "compare",
        "scenarios",
        "JsonLines",
        "MLflow",
    ),
    "Own mechanisms": ("recipe", "Prepared", "RecipeFacts", "Scenario"),
    "Errors": ("FedRecError", "SettingsError", "DataError", "PrivacyError", "RunError"),
    "Warnings": ("DataWarning", "UnknownIdsWarning", "UnusedColumnsWarning"),
}
_STARS: dict[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Example|Examples):$")


def page() -> str:
    """The whole page: every name of `_GROUPS`, which a test compares with `fedrec.__all__`."""
    lead = (
        "What `import fedrec` offers. Made from the code by `make docs`; a test fails where it "
        "is stale, and the examples are run."
    )
    parts = ["# Python reference", lead]
    for group, names in _GROUPS.items():
        parts.append(f"## {group}")
        for name in names:
            parts += _entry(name, getattr(fedrec, name))
    return "\n\n".join(parts) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    ours = inspect.isclass(value) and value.__module__.startswith(_HERE)
    yield f"### `{name}`"
    if ours or not inspect.isclass(value):
        yield f"```text\n{_signature(f'fedrec.{name}', value)}\n```"
    yield _markdown(inspect.getdoc(value) or "")
    if ours and value is not fedrec.Recommender and issubclass(value, fedrec.Recommender):
        yield "Methods: those of [`Recommender`](#recommender)."
    if ours:
        for member, what in sorted(inspect.getmembers_static(value)):
            called = what.__func__ if isinstance(what, staticmethod | classmethod) else what
            inherited = (
                member not in vars(value)
                and value is not fedrec.Recommender
                and issubclass(value, fedrec.Recommender)
            )
            if (
                not inherited
                and not member.startswith("_")
                and (callable(called) or isinstance(called, property))
                and (words := inspect.getdoc(called))
            ):
                yield f"#### `{name}.{member}`"
                if callable(called):
                    yield f"```text\n{_signature(member, called)}\n```"
                yield _markdown(words)


def _signature(name: str, value: Any) -> str:
    """One parameter a line, without `self`; annotations as they are written."""
    signature = inspect.signature(value)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    returned = (
        ""
        if signature.return_annotation in {inspect.Signature.empty, None, "None"}
        else f" -> {signature.return_annotation}"
    )
    if not kept:
        return f"{name}(){returned.replace(chr(39), '')}"
    words = list[str]()
    keyword_only = False
    for parameter in kept:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        keyword_only = keyword_only or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        stars = _STARS.get(parameter.kind, "")
        kind = (
            parameter.annotation
            if isinstance(parameter.annotation, str)
            else inspect.formatannotation(parameter.annotation)
        )
        typed = "" if parameter.annotation is inspect.Parameter.empty else f": {kind}"
        default = (
            "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        )
        words.append(f"{stars}{parameter.name}{typed}{default}")
    return "\n".join(
        [f"{name}(", *(f"    {word}," for word in words), f"){returned.replace(chr(39), '')}"]
    )


def _markdown(text: str) -> str:
    """A docstring in Google's style: its sections become lists, its examples blocks of code."""
    lines = list[str]()
    section = ""
    for line in text.splitlines():
        begins = _SECTION.match(line)
        if begins:
            section = begins[1]
            lines += [f"**{section}**", ""]
        elif section in {"Args", "Raises"} and (entry := re.match(r"    ([\w*]+): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section in {"Returns", "Yields"} and line.startswith("    "):
            lines.append(line.strip())
        elif section in {"Args", "Raises"} and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            section = "" if line and not line.startswith(" ") else section
            lines.append(line)
    return _examples("\n".join(lines).strip())


def _examples(text: str) -> str:
    """Lines of doctest, with what they print, as blocks."""
    parts = re.split(
        r"((?:^[ ]*(?:>>>|\.\.\.).*\n?(?:^(?!\s*$)(?![ ]*>>>).*\n?)*)+)", text, flags=re.MULTILINE
    )
    return "".join(
        f"```pycon\n{inspect.cleandoc(part)}\n```\n" if ">>>" in part else part for part in parts
    ).strip()
