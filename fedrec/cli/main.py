"""Entry point of the `fedrec` command: from a line to a verb, from an error to an exit code.

Verbs lie with what they run and are found by `VERBS`, or by an entry point of the group
`fedrec.commands` of any installed package: a `typer.Typer` whose commands join these. Each imports
what it runs only when it runs.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
import warnings
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer

from fedrec import __version__
from fedrec.cli.flags import one_blas_thread
from fedrec.errors import (
    DataWarning,
    FedRecError,
    RunError,
    SettingsError,
    extra_of,
    install,
    of_weights,
    warn,
)

EXIT_CODES = {
    0: "done",
    1: "whoever read stdout went away",
    2: "a flag or a scenario key is wrong",
    3: "data that cannot be read",
    4: "a split that leaks",
    5: "a privacy limit refuses",
    6: "a run folder or a file that cannot be used",
    7: "another party refused, or could not be reached",
    70: "a defect of fedrec",
    130: "interrupted",
}

USAGE_ERROR, COMMAND_LINE_ERROR = typer.BadParameter.__mro__[1:3]
"""click's UsageError and ClickException: of the package up to typer 0.20, of a copy inside typer in
newer ones."""

_WRAPPED = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}

# help is plain text; with rich installed typer escapes the brackets of defaults for it all the same
typer.core.HAS_RICH = False

GROUPS = {
    "Start": ("train", "serve", "recommend", "demo", "data"),
    "Research": (
        *("simulate", "compare", "scenarios", "schema", "account", "audit"),
        "research",
    ),
}
"""Verbs by what a person does, in the order of --help; those not named are of operators."""
MEANT = {
    "fit": "train",
    "learn": "train",
    "predict": "recommend",
    "query": "recommend",
    "evaluate": "compare",
    "run": "simulate",
    "bench": "simulate",
    "deploy": "server",
}
"""Verbs of other tools, and ours that does it."""
VERBS = (
    "fedrec.cli.commands.training:app",
    "fedrec.cli.commands.comparing:app",
    "fedrec.cli.commands.data:app",
    "fedrec.cli.parties:app",
    "fedrec.cli.serving:app",
    "fedrec.cli.certs:app",
    "fedrec.cli.operating:app",
    "fedrec.cli.ledgers.verbs:app",
)
"""Where this package's verbs are, in the order of --help."""
_PLAIN_NUMBER = re.compile(r"[!-^`-~]*")
"""No blanks, no underscore, no digits of other scripts: Python reads 1_0 as 10."""
_MAY_BE_EMPTY = {"overrides", "grpc", "http"}
"""A scenario says itself what is empty; without an address nothing listens there."""
_command = functools.cache(typer.main.get_command)
"""All verbs as click has them: their signatures are read once in a process."""


def _require_plain(command: Any) -> None:
    """Make a verb, or all verbs of a group, refuse what click takes in silence: an option twice, of
    which it keeps the last; an empty word, which names planted data or this folder; 1_0 for 10."""
    for own in getattr(command, "commands", {}).values():
        _require_plain(own)
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> Any:
        given, _, order = command.make_parser(context).parse_args(args=[*words])
        for own in dict.fromkeys(order):
            name = own.opts[0] if own.param_type_name == "option" else str(own.metavar)
            found = given[own.name]
            texts = found if isinstance(found, tuple | list) else [found]
            keys = [str(text).partition("=")[0].strip() for text in texts]
            if own.name == "overrides" and len({*keys}) < len(keys):
                warn(DataWarning("--set says one key twice: the last counts"))
            if order.count(own) > 1 and not (
                getattr(own, "multiple", True) or getattr(own, "is_flag", False)
            ):
                raise SettingsError(f"{name} is given twice", "Leave one of them out.")
            for text in texts:
                if text == "" and own.name not in _MAY_BE_EMPTY:
                    raise SettingsError(f"{name} is empty", "Say what, or leave it out.")
                if _is_number(own) and isinstance(text, str) and not _PLAIN_NUMBER.fullmatch(text):
                    raise SettingsError(f"{name} is a number, found {text!r}", "Give digits alone.")
        return parse(context, words)

    command.parse_args = parse_args


def _is_number(own: Any) -> bool:
    """Whether a parameter takes one: click types have names, newer typers keep the annotation."""
    if kind := getattr(own, "type", None):
        return not {"float", "integer"}.isdisjoint(kind.name.strip("<>").split())
    return own.type_descriptor.annotation in (int, float)


class Grouped(typer.core.TyperGroup):
    """The command, whose help has the verbs in groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _require_plain(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each group."""
        shown = {name: verb for name, verb in self.commands.items() if not verb.hidden}
        named = [name for names in GROUPS.values() for name in names]
        others = [name for name in shown if name not in named]
        for title, names in {**GROUPS, "Operate": others}.items():
            rows = [(name, shown[name].get_short_help_str(90)) for name in names if name in shown]
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    name="fedrec",
    cls=Grouped,
    context_settings=_WRAPPED,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    help="Recommenders trained on what people rated or clicked, under a privacy guarantee for "
    "every person.\n\n"
    "From your own table to a private list: fedrec train FILE -o MODEL, then follow the last line "
    "of what each command prints. Without a table: fedrec demo. Every verb has its own --help.",
    epilog="Exit codes: "
    + "; ".join(f"{code} {words}" for code, words in EXIT_CODES.items())
    + ".",
)


@app.callback(invoke_without_command=True)
def _fedrec(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from fedrec.federation.round_messages import PROTOCOL

        typer.echo(f"fedrec {__version__}, messages of version {PROTOCOL}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _join(verbs: typer.Typer) -> None:
    """A named one is a group of verbs of its own."""
    name = verbs.info.name
    if isinstance(name, str):
        app.add_typer(verbs, name=name)
    else:
        app.add_typer(verbs)


one_blas_thread()  # modules of verbs import NumPy, which reads it once
for place in VERBS:
    module, _, attribute = place.partition(":")
    _join(getattr(import_module(module), attribute))
for plugin in entry_points(group="fedrec.commands"):
    try:
        _join(plugin.load())
    except Exception as failure:  # of somebody else's package: all other verbs go on
        package = plugin.dist.name if plugin.dist else plugin.value
        sys.stderr.write(
            f"warning: the verbs {plugin.name!r} of {package} are left out "
            f"({type(failure).__name__}: {failure}). Upgrade or uninstall that package.\n"
        )


def main() -> None:
    """Entry point: one line of cause, one of remedy, a documented exit code; a traceback is a
    defect."""
    plain = warnings.formatwarning

    def said(message: Any, category: type[Warning], *where: Any, **more: Any) -> str:
        known = issubclass(category, DataWarning)
        return f"warning: {message}\n" if known else plain(message, category, *where, **more)

    warnings.formatwarning = said
    sys.exit(guarded(sys.argv[1:]))


def guarded(arguments: list[str]) -> int:
    """The exit code of a command line; what went wrong is said on stderr, and what is probably not
    what was meant, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DataWarning):
                sys.stderr.write(f"warning: {message}\n")
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        return _guarded(arguments)


def _guarded(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # a character that the terminal lacks must not end a training that was paid for
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # rich would fit the result into no column at all
    try:
        code = int(_command(app)(arguments, prog_name="fedrec", standalone_mode=False) or 0)
    except FedRecError as failure:
        return _say(failure.cause, failure.remedy, failure.exit_code)
    except KeyboardInterrupt:
        code = 130  # typer makes the same of it where it can
    except OSError as failure:
        return _say(
            ": ".join(
                str(part) for part in (failure.filename, failure.strerror or failure) if part
            ),
            "Check the path, its permissions and the free space.",
            RunError.exit_code,
        )
    except MemoryError:
        return _say(
            "out of memory", "Use a smaller model.dimension or a machine with more memory.", 70
        )
    except Exception as failure:
        if isinstance(failure, COMMAND_LINE_ERROR):
            return _say(_cause_of(failure), _help_of(failure), SettingsError.exit_code)
        return _defect_or_missing_package(
            failure, next((word for word in arguments if not word.startswith("-")), "")
        )
    if code == 130:
        remedy = "The same command with --resume continues a training from its last round."
        return _say("interrupted", remedy, code)
    return code


def _cause_of(failure: Any) -> str:
    """The cause alone: of a flag that is a scenario key, click would name the flag spelt most like
    it."""
    if _is_unknown_flag(failure) and _keys_meant(failure):
        return f"No such option: {failure.option_name}"
    return str(failure.format_message()).rstrip(".").replace("Value error, ", "")


def _help_of(failure: Any) -> str:
    context = getattr(failure, "ctx", None)
    see = f"See {context.command_path if context else 'fedrec'} --help."
    if _is_unknown_flag(failure) and (said := of_weights(failure.option_name)):
        return f"{said}{see}"
    if _is_unknown_flag(failure) and (keys := _keys_meant(failure)):
        return f"A scenario key is set with --set, for example --set {keys[0]}=VALUE. {see}"
    verb = str(getattr(failure, "message", "")).partition("No such command '")[2].rstrip("'.")
    if verb in MEANT:
        return f"Did you mean fedrec {MEANT[verb]}? {see}"
    if context is not None and getattr(failure, "param", None) is not None:
        # click's MissingParameter has no message of its own
        examples = (context.command.help or "").partition("\b\n")[2].strip().splitlines()
        if examples and not failure.message:
            return f"For example: {examples[0].strip()}. {see}"
    own = getattr(failure, "param", None)
    choices = getattr(getattr(own, "type", getattr(own, "type_descriptor", None)), "choices", None)
    near = get_close_matches(
        str(getattr(failure, "message", "")).partition("'")[2].partition("'")[0],
        [str(getattr(choice, "value", choice)) for choice in choices or ()],
        n=1,
    )
    return f"Did you mean {near[0]}? {see}" if near else see


def _is_unknown_flag(failure: Any) -> bool:
    """click's NoSuchOption: alone it lists what may have been meant."""
    return (
        isinstance(failure, USAGE_ERROR)
        and hasattr(failure, "possibilities")
        and hasattr(failure, "option_name")
    )


def _keys_meant(failure: Any) -> list[str]:
    """Scenario keys that a mistyped flag may stand for, where the verb takes any and no flag is
    spelt nearly alike."""
    from fedrec.settings import nearest_keys

    flags = (
        [name for parameter in failure.ctx.command.params for name in parameter.opts]
        if failure.ctx
        else []
    )
    if "--set" not in flags or get_close_matches(failure.option_name, flags, n=1, cutoff=0.8):
        return []
    name = failure.option_name.lstrip("-").replace("-", "_")
    return ["data.path"] if name in ("data", "file", "input") else nearest_keys(name)


def _defect_or_missing_package(failure: Exception, verb: str) -> int:
    if isinstance(failure, ModuleNotFoundError) and (extra := extra_of(failure.name or "")):
        if extra == "serve" and verb not in {"serve", "recommend"}:
            extra = "deploy"  # the other parties need what serving needs, and more
        return _say(
            f"fedrec {verb} needs the package {failure.name}, which is not installed",
            install(extra),
            SettingsError.exit_code,
        )
    if os.environ.get("FEDREC_TRACEBACK"):
        traceback.print_exc()
    return _say(
        f"{type(failure).__name__}: {failure}",
        "This is a defect of fedrec: report it with FEDREC_TRACEBACK=1 set.",
        70,
    )


def _say(cause: str, remedy: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(cause.split())}\nremedy: {' '.join(remedy.split())}\n")
    return code
