"""Reference page, docs/reference.md, made from what it documents: verbs, scenario keys, formats,
exit codes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from fedrec import errors
from fedrec.cli.main import EXIT_CODES, VERBS, app
from fedrec.cli.scenario_keys import default_as_toml, is_table
from fedrec.data.planted import SHAPES
from fedrec.data.read import FORMATS
from fedrec.settings import NEWS_FORMATS, Scenario

_OURS = {place.partition(".")[0] for place in VERBS}
"""Packages of fedrec's own verbs; those that other packages join are documented there."""
_LIMITS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false"}


def page() -> str:
    """The whole reference."""
    parts = [
        "# Reference",
        "Made from the code by `make docs`; a test fails where it is stale.",
        "## Verbs",
        *_verbs(get_command(app), "fedrec"),
        "## Scenario keys",
        "A scenario is a TOML file, one table per concern. Every key has a default and may be "
        "overridden with `--set table.key=value`; "
        "a value is TOML, and a bare word is text. Unknown keys are refused.",
        *_tables(),
        "## Data formats",
        _markdown(
            ("`data.format`", "what it reads"),
            [(f"`{name}`", reader.summary) for name, reader in FORMATS.items()],
        ),
        'With `recipe = "privaterec"`:',
        _markdown(
            ("`data.format`", "what it reads"),
            [(f"`{name}`", summary) for name, summary in NEWS_FORMATS.items()],
        ),
        "## Planted data",
        _markdown(
            ("`data.preset`", "users", "items", "events"),
            [
                (f"`{name}`", f"{shape.users:,}", f"{shape.items:,}", f"{shape.events:,}")
                for name, shape in SHAPES.items()
            ],
        ),
        "## Exit codes",
        "Every failure prints one line of cause and one of remedy on stderr.",
        _markdown(
            ("code", "meaning", "errors"),
            [(str(code), words, _errors(code)) for code, words in EXIT_CODES.items()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _verbs(command: Any, name: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for verb, inner in command.commands.items():
            if not inner.hidden:
                yield from _verbs(inner, f"{name} {verb}")
    elif isinstance(command, TyperCommand):
        if command.callback.__module__.partition(".")[0] not in _OURS:
            return
        yield f"### `{name}`"
        yield _paragraphs(command.help or "")
        if command.params:
            yield _markdown(
                ("argument or flag", "meaning"), [_parameter(p) for p in command.params]
            )


def _paragraphs(text: str) -> str:
    """Help text as Markdown: a paragraph after a \\b line becomes a block of commands."""
    return "\n\n".join(
        _commands(block) if block.startswith("\b") else " ".join(block.split())
        for block in inspect.cleandoc(text).split("\n\n")
    )


def _commands(block: str) -> str:
    return "\n".join(["```sh", *(line.strip() for line in block.splitlines()[1:]), "```"])


def _parameter(parameter: Any) -> tuple[str, str]:
    if isinstance(parameter, TyperArgument):
        return (
            f"`{parameter.metavar}`",
            f"{parameter.help or ''}{' Required.' if parameter.required else ''}",
        )
    assert isinstance(parameter, TyperOption)
    words = f"`{', '.join(parameter.opts)}{f' {parameter.metavar}' if parameter.metavar else ''}`"
    shown = parameter.default not in (None, False, "", 0, ())
    return words, f"{parameter.help or ''}{f' Default: `{parameter.default}`.' if shown else ''}"


def _tables() -> Iterator[str]:
    plain = [(name, field) for name, field in Scenario.model_fields.items() if not is_table(field)]
    yield _keys(plain, prefix="")
    for name, field in Scenario.model_fields.items():
        if is_table(field):
            table: Any = field.annotation
            yield f"### `[{name}]`\n\n{inspect.getdoc(table)}"
            yield _keys(list(table.model_fields.items()), prefix=f"{name}.")


def _keys(fields: list[tuple[str, FieldInfo]], *, prefix: str) -> str:
    rows = [
        (f"`{prefix}{name}`", _type(field), f"`{default_as_toml(field)}`", field.description or "")
        for name, field in fields
    ]
    return _markdown(("key", "type", "default", "meaning"), rows)


def _type(field: FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(rule, word):g}"
        for rule in field.metadata
        for word, sign in _LIMITS.items()
        if hasattr(rule, word)
    ]
    return ", ".join([_words(field.annotation), *limits])


def _words(annotation: Any) -> str:
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in parts if part is not type(None))
    if origin is tuple:
        kind = _words(parts[0])
        return (
            f"list of {kind}{'' if kind.endswith('`') else 's'}"
            if parts[-1] is Ellipsis
            else f"{len(parts)} {kind}s"
        )
    if origin is dict:
        return "table of text"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "table"
    # Annotated: what it annotates
    return _WORDS[annotation] if annotation in _WORDS else _words(parts[0])


def _errors(code: int) -> str:
    classes = [
        c
        for c in vars(errors).values()
        if inspect.isclass(c) and issubclass(c, errors.FedRecError) and c.exit_code == code
    ]
    return ", ".join(f"`{c.__name__}`" for c in classes)


def _markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
