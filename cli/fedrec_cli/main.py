"""Entry point of the `fedrec` command: from a line to a verb, from an error to an exit code.

Verbs lie with what they run and are found by `VERBS`, or by an entry point of the group `fedrec.commands` of any installed package: a
`typer.Typer` whose commands join these. Each imports what it runs only when it runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated

import typer
from click import BadParameter, Choice, ClickException, NoSuchOption

from fedrec import __version__
from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec_cli.flags import one_blas_thread

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

_WRAPPED = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}

typer.core.HAS_RICH = False  # help is plain text; with rich installed typer escapes the brackets of defaults for it all the same

app = typer.Typer(
    name="fedrec",
    context_settings=_WRAPPED,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    help="Recommenders trained on what people rated or clicked, under a privacy guarantee for every person.\n\n"
    "Start with `fedrec simulate`: it needs no data and no network. Every verb has its own --help; "
    "docs/reference.md lists every scenario key.",
    epilog="Exit codes: " + "; ".join(f"{code} {words}" for code, words in EXIT_CODES.items()) + ".",
)
VERBS = (
    "fedrec_simulations.commands.training:app",
    "fedrec_simulations.commands.comparing:app",
    "fedrec_simulations.commands.data:app",
    "fedrec_simulations.commands.demo:app",
    "fedrec_cli.parties:app",
    "fedrec_simulations.commands.faults:app",
    "fedrec_cli.ledgers.verbs:app",
    "fedrec_simulations.bench.command:app",
    "fedrec_simulations.commands.pages:app",
)
"""Where this package's verbs are, in the order of --help."""


@app.callback(invoke_without_command=True)
def _fedrec(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if version:
        from fedrec.federation.versions import PROTOCOL

        typer.echo(f"fedrec {__version__}, messages of version {PROTOCOL}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand != "bench":  # which decides for itself
        one_blas_thread()


def _join(verbs: typer.Typer) -> None:
    """A named one is a group of verbs of its own."""
    name = verbs.info.name
    if isinstance(name, str):
        app.add_typer(verbs, name=name)
    else:
        app.add_typer(verbs)


for place in VERBS:
    module, _, attribute = place.partition(":")
    _join(getattr(import_module(module), attribute))
for plugin in entry_points(group="fedrec.commands"):
    _join(plugin.load())


def main() -> None:
    """Entry point: one line of cause, one of remedy, a documented exit code; a traceback is a defect."""
    sys.exit(guarded(sys.argv[1:]))


def guarded(arguments: list[str]) -> int:
    """The exit code of a command line; what went wrong is said on stderr."""
    try:
        code = int(app(arguments, prog_name="fedrec", standalone_mode=False) or 0)
    except FedRecError as failure:
        return _say(failure.cause, failure.remedy, failure.exit_code)
    except ClickException as failure:
        return _say(_cause_of(failure), _help_of(failure), SettingsError.exit_code)
    except KeyboardInterrupt:
        code = 130  # typer makes the same of it where it can
    except OSError as failure:
        where = f"{failure.filename}: " if failure.filename else ""
        return _say(f"{where}{failure.strerror or failure}", "Check the path, its permissions and the free space.", RunError.exit_code)
    except MemoryError:
        return _say("out of memory", "Use a smaller model.dimension or a machine with more memory.", 70)
    except Exception as failure:
        return _defect_or_missing_package(failure)
    return _interrupted() if code == 130 else code


def _cause_of(failure: ClickException) -> str:
    """The cause alone: of a flag that is a scenario key, click would name the flag spelt most like it."""
    if isinstance(failure, NoSuchOption) and _keys_meant(failure):
        return f"No such option: {failure.option_name}"
    return failure.format_message().rstrip(".").replace("Value error, ", "")


def _help_of(failure: ClickException) -> str:
    context = getattr(failure, "ctx", None)
    see = f"See {context.command_path if context else 'fedrec'} --help."
    if isinstance(failure, NoSuchOption) and (keys := _keys_meant(failure)):
        return f"A scenario key is set with --set, for example --set {keys[0]}=VALUE. {see}"
    if isinstance(failure, BadParameter) and failure.param is not None and isinstance(choices := failure.param.type, Choice):
        found = failure.message.partition("'")[2].partition("'")[0]
        near = get_close_matches(found, [str(getattr(choice, "value", choice)) for choice in choices.choices], n=1)
        return f"Did you mean {near[0]}? {see}" if near else see
    return see


def _keys_meant(failure: NoSuchOption) -> list[str]:
    """Scenario keys that a mistyped flag may stand for, where the verb takes any and no flag is spelt nearly alike."""
    from fedrec.settings import nearest_keys

    flags = [name for parameter in failure.ctx.command.params for name in parameter.opts] if failure.ctx else []
    if "--set" not in flags or get_close_matches(failure.option_name, flags, n=1, cutoff=0.8):
        return []
    return nearest_keys(failure.option_name.lstrip("-").replace("-", "_"))


def _interrupted() -> int:
    return _say("interrupted", "The same command with --resume continues a simulation from its last round.", 130)


def _defect_or_missing_package(failure: Exception) -> int:
    if isinstance(failure, ModuleNotFoundError) and not (failure.name or "").startswith("fedrec"):
        return _say(f"{failure.name} is not installed", _extra_of(failure.name or ""), 2)
    if os.environ.get("FEDREC_TRACEBACK"):
        traceback.print_exc()
    return _say(f"{type(failure).__name__}: {failure}", "This is a defect of fedrec: report it with FEDREC_TRACEBACK=1 set.", 70)


def _extra_of(package: str) -> str:
    extra = {"torch": "news", "matplotlib": "plot", "faiss": "faiss", "ray": "ray"}.get(package.partition(".")[0], "bench")
    return f"Install it: pip install 'fedrec[{extra}]'."


def _say(cause: str, remedy: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(cause.split())}\nremedy: {' '.join(remedy.split())}\n")
    return code
