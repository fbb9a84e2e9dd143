"""Graph of all modules from their syntax trees, and what of it breaks `rules.toml`.

python tests/architecture/graph.py          # violations, one a line; nothing where the tree keeps
the rules
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROLES = ("server", "client", "aggregator", "simulations", "research")
PACKAGES = (
    ROOT / "fedrec",
    *(ROOT / role / f"fedrec_{role}" for role in ROLES),
    ROOT / "simulations" / "fedrec_app",
)
BENCHMARKS = (ROOT / "benchmarks",)
"""Not installed."""
_IMPORTERS = {"import_module", "__import__"}
_CONTINUOUS = {"normal", "standard_normal", "laplace"}

Sources = Mapping[str, str]
"""Text of every module, by its name; the name of a package's own page ends in `.__init__`."""


def rules() -> dict[str, Any]:
    """The declarations."""
    return tomllib.loads(Path(__file__).with_name("rules.toml").read_text())


def sources(packages: Sequence[Path] = PACKAGES) -> dict[str, str]:
    """All modules of these packages; unsaid, of those that are installed."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): path.read_text()
        for package in packages
        for path in sorted(package.rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    }


@cache
def parsed(text: str) -> ast.Module:
    """A module's syntax tree, which whoever looks at it shares and leaves as it is."""
    return ast.parse(text)


@dataclass(frozen=True)
class Module:
    """What one module names. uses: full dotted names of whatever it imports or reaches through an
    import, with the function in which. calls: names of called functions, of methods with a dot
    before, with the function in which."""

    name: str
    imports: frozenset[str]
    uses: tuple[tuple[str, str], ...]
    calls: tuple[tuple[str, str], ...]
    computed: bool
    returns: Mapping[str, str] = field(default_factory=dict)


@cache
def read(name: str, text: str) -> Module:
    """A module's imports at any depth: relative ones in full, those under TYPE_CHECKING, and those
    by name."""
    page = name.endswith(".__init__")
    own = name.removesuffix(".__init__")
    imports = set[str]()
    aliases = dict[str, str]()
    computed = False
    nodes = list(_walk(parsed(text), ""))
    for _, node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports.add(alias.name)
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = own.split(".") if page else own.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                imports.add(f"{base}.{alias.name}")
                aliases[alias.asname or alias.name] = f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and _called(node) in _IMPORTERS:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                imports.add(first.value)
            else:
                computed = True
    uses = list[tuple[str, str]]()
    calls = list[tuple[str, str]]()
    returns = dict[str, str]()
    for inside, node in nodes:
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            returns[inside] = ast.unparse(node.returns)
        if isinstance(node, ast.Call):
            calls.append(
                (_called(node) if isinstance(node.func, ast.Name) else f".{_called(node)}", inside)
            )
            if (
                _called(node) == "getattr"
                and len(node.args) > 1
                and isinstance(node.args[1], ast.Constant)
            ):
                uses.append((f"{_full(node.args[0], aliases)}.{node.args[1].value}", inside))
        elif isinstance(node, ast.Attribute | ast.Name) and (full := _full(node, aliases)):
            uses.append((full, inside))
    return Module(own, frozenset(imports), tuple(uses), tuple(calls), computed, returns)


def _walk(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node below this one, parents first, with the dotted name of the function or class
    around it."""
    ahead = [(inside, node)]
    while ahead:
        around, parent = ahead.pop()
        for child in ast.iter_child_nodes(parent):
            within = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                within = f"{around}.{child.name}".strip(".")
            yield within, child
            if not isinstance(child, ast.expr_context | ast.operator | ast.Constant):
                ahead.append((within, child))


def _called(node: ast.Call) -> str:
    return (
        node.func.id
        if isinstance(node.func, ast.Name)
        else node.func.attr
        if isinstance(node.func, ast.Attribute)
        else ""
    )


def _full(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """The dotted name behind a chain of attributes that begins with an imported name; "" for any
    other."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def edges(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """From each module to those of ours that it imports: `from a import b` means a.b where that is
    a module."""
    found = defaultdict[str, set[str]](set)
    for name, module in modules.items():
        for imported in module.imports:
            parts = imported.split(".")
            known = next(
                (
                    ".".join(parts[:n])
                    for n in range(len(parts), 0, -1)
                    if ".".join(parts[:n]) in modules
                ),
                None,
            )
            if known is not None and known != name:
                found[name].add(known)
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan 1972), each sorted."""
    index = dict[str, int]()
    low = dict[str, int]()
    stack = list[str]()
    on = set[str]()
    found = list[list[str]]()

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = list[str]()
            while not group or group[-1] != node:
                group.append(stack.pop())
                on.discard(group[-1])
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


@cache
def room_of(name: str, rooms: tuple[str, ...]) -> str:
    """The longest declared name that a module begins with; "" for none.

    A package's own page alone is the room of its bare name."""
    return max(
        (room for room in rooms if name == room or name.startswith(f"{room}.")), key=len, default=""
    )


def violations(of: Sources, declared: Mapping[str, Any] | None = None) -> list[str]:
    """What breaks the rules, one line each, sorted."""
    declared = rules() if declared is None else declared
    modules = {name.removesuffix(".__init__"): read(name, text) for name, text in of.items()}
    graph = edges(modules)
    return sorted(
        [
            *_rooms(graph, modules, _written_out(declared)),
            *_third_party(modules, declared["third_party"]),
            *_by_name(modules, declared["by_name"]["modules"]),
            *_opens(modules, declared["opens"]),
            *_noise(modules, declared["noise"]),
            *_cycles(graph, declared),
        ]
    )


def _written_out(declared: Mapping[str, Any]) -> dict[str, list[str]]:
    """The rooms that each room may import, with "fedrec.*" written out."""
    rooms = declared["rooms"]
    above = declared["above"]
    library = [
        room
        for room in rooms
        if (room == "fedrec" or room.startswith("fedrec."))
        and not any(room == one or room.startswith(f"{one}.") for one in above)
    ]
    return {
        room: [name for one in may for name in (library if one == "fedrec.*" else [one])]
        for room, may in rooms.items()
    }


def _rooms(
    graph: Mapping[str, set[str]], modules: Iterable[str], rooms: Mapping[str, list[str]]
) -> Iterator[str]:
    names = tuple(rooms)
    for name in modules:
        own = room_of(name, names)
        if own == "" or (own == "fedrec" and name != "fedrec"):
            yield f"{name}: in no room of rules.toml"
        for other in graph.get(name, ()):
            room = room_of(other, names)
            if room not in {own, *rooms.get(own, [])}:
                yield f"{name}: imports {other}, which {own} may not"


def _third_party(modules: Mapping[str, Module], allowed: Mapping[str, list[str]]) -> Iterator[str]:
    for name, module in modules.items():
        for top in {imported.split(".")[0] for imported in module.imports} & allowed.keys():
            if not _among(name, allowed[top]):
                yield f"{name}: imports {top}, which only {', '.join(allowed[top])} may"


def _by_name(modules: Mapping[str, Module], allowed: list[str]) -> Iterator[str]:
    return (
        f"{name}: imports by a name that is no constant"
        for name, module in modules.items()
        if module.computed and name not in allowed
    )


def _opens(modules: Mapping[str, Module], declared: Mapping[str, list[str]]) -> Iterator[str]:
    return (
        f"{name}.{inside}: opens a file by {used}, which only {declared['inside'][0]} may"
        for name, module in modules.items()
        if not _among(name, declared["inside"])
        for used, inside in module.uses
        if used in declared["by_path"]
    )


def _noise(modules: Mapping[str, Module], declared: Mapping[str, Any]) -> Iterator[str]:
    sources = set(declared["sources"])
    priced = declared["priced"]
    charged = declared["charged"]
    drawing = set[str]()
    for name, module in modules.items():
        if not _among(name, [*declared["inside"], *declared["measured"]]):
            for used, inside in module.uses:
                where = f"{name}.{inside}".strip(".")
                if used in sources and where not in drawing:
                    drawing.add(where)
                    if where not in priced and where not in charged:
                        yield f"{where}: draws noise ({used}) without a price in rules.toml"
        if _among(name, declared["discrete_only"]):
            for called, inside in module.calls:
                if called.removeprefix(".") in _CONTINUOUS:
                    yield f"{name}.{inside}: calls {called}, which is no discrete noise"
    for where, price in priced.items():
        name = max((m for m in modules if where.startswith(f"{m}.")), key=len, default="")
        returned = modules[name].returns.get(where.removeprefix(f"{name}."), "") if name else ""
        if where not in drawing:
            yield f"{where}: listed as drawing noise, and draws none"
        elif price not in returned:
            yield f"{where}: returns {returned or 'nothing declared'}, without the price {price}"
    yield from (
        f"{where}: listed as drawing noise, and draws none"
        for where in charged
        if where not in drawing
    )


def _cycles(graph: Mapping[str, set[str]], declared: Mapping[str, Any]) -> Iterator[str]:
    listed = sorted(sorted(group) for group in declared["cycles"]["modules"])
    found = circles(graph)
    yield from (
        f"modules import each other: {', '.join(group)}" for group in found if group not in listed
    )
    yield from (
        f"no circle any more, take it off the list: {', '.join(group)}"
        for group in listed
        if group not in found
    )
    wide = _written_out(declared)
    yield from (f"rooms may import each other: {', '.join(group)}" for group in circles(wide))


def _among(name: str, listed: Iterable[str]) -> bool:
    return any(name == one or (one.endswith(".") and name.startswith(one)) for one in listed)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in violations(sources((*PACKAGES, *BENCHMARKS))))
