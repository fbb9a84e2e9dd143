"""Mutation runs: each planted bug in a copy of the tree, and the test that must fail because of it.

`python tests/mutants/run.py` reads tests/mutants/*.toml. It applies one bug at a time to a copy of
the tree and runs the bug's test there: the test must fail, and it must pass in the same copy
without the bug. The last line is `N mutants, S survivors`; the exit code is 1 if there is a
survivor or a broken entry. With `--check` nothing runs: every entry is applied to the text alone.

An entry names a `module`, a `function` of it ("Ledger.charge"; none is the whole module), and
`find` and `replace` as code (tests/mutants/patterns.py), `nth` where the code occurs more than once.
In what is not Python, `file` and two texts: white space counts as one space.
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # a script's own folder comes first otherwise

from tests.mutants import patterns  # noqa: E402

# the folders that hold packages, and those that hold other modules
SOURCES = (".", "aggregator", "client", "research", "server", "simulations")
ROOTS = (*SOURCES, "benchmarks", "tests")
IMPORTING = ("--import-mode=importlib",)
PACKAGES = (
    "fedrec",
    "fedrec_app",
    "fedrec_aggregator",
    "fedrec_client",
    "fedrec_research",
    "fedrec_server",
    "fedrec_simulations",
)
NEEDED = {"claim", "find", "replace", "test"}
FIELDS = NEEDED | {"module", "function", "nth", "file", "hangs"}
# a test with a bug may wait for what never comes. It has this, for imports and for kernels that are
# compiled anew, and so often the time of the longest test of its file without a bug
_HANG_BASE_S = 20.0
_HANG_TIMES = 3.0
# at most this long, which is less than the limit of a run: so the test fails in words
_HANG_S = 60.0
# a run that is stated to hang ends after twice the wait, where no wait ended it
_HANG_LIMIT_TIMES = 2.0
# a bug that fails like this was never run: it says nothing about the test
NEVER_RAN = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")


@dataclass(frozen=True)
class Mutant:
    """One planted bug: `find` becomes `replace` in one place, and one of `tests` must fail."""

    area: str
    claim: str
    find: str
    replace: str
    tests: tuple[str, ...]
    module: str = ""
    function: str = ""
    nth: int = 0
    file: str = ""
    hangs: bool = False  # whether running into the time limit counts as caught

    @property
    def name(self) -> str:
        """The area and a digest of the change: stable when the list grows."""
        where = (self.module or self.file, self.function, str(self.nth))
        change = "\0".join((*where, self.find, self.replace))
        return f"{self.area}-{hashlib.sha256(change.encode()).hexdigest()[:8]}"

    @property
    def place(self) -> str:
        """The module and the function, or the file."""
        return ".".join(filter(None, (self.module or self.file, self.function)))

    @property
    def group(self) -> str:
        """The test file: bugs of one group run after each other in one copy."""
        return self.tests[0].partition("::")[0]

    def path(self, tree: Path) -> Path:
        """The file in this tree. Raises ValueError where no folder of packages holds it."""
        if self.file:
            return tree / self.file
        steps = self.module.replace(".", "/")
        ends = (f"{steps}.py", f"{steps}/__init__.py")
        for path in (tree / root / end for root in ROOTS for end in ends):
            if path.is_file():
                return path
        raise ValueError(f"no module {self.module}")

    def applied(self, source: str) -> str:
        """The text with the bug. Raises ValueError unless there is one place for it."""
        if self.module:
            return patterns.applied(source, self.function, self.find, self.replace, self.nth)
        words = r"\s+".join(map(re.escape, self.find.split()))
        written, times = re.subn(words, lambda _: self.replace.strip(), source)
        if times != 1:
            raise ValueError(f"{self.find!r} occurs {times} times in {self.file}")
        return written


def read_mutants(folder: Path = HERE) -> list[Mutant]:
    """All entries of `folder`/*.toml. Raises ValueError on an unknown or a missing field."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            wrong = set(entry) - FIELDS or NEEDED - set(entry)
            if wrong or ("module" in entry) == ("file" in entry):
                fields = sorted(wrong or {"module", "file"})
                raise ValueError(f"{path.name}: fields {fields}: {entry}")
            tests = tuple(re.split(r"\s+(?=tests/)", entry["test"].strip()))  # ids may hold spaces
            rest = {key: value for key, value in entry.items() if key != "test"}
            found.append(Mutant(area=path.stem, tests=tests, **rest))
    return found


def problems(mutants: Iterable[Mutant], tree: Path = ROOT) -> list[str]:
    """What keeps these mutants from being tried: no place, no change, no such test, twice listed."""
    found = []
    changes = dict[tuple[Path, str], str]()
    for mutant in mutants:
        try:
            path = mutant.path(tree)
            source = path.read_text()
            bug = mutant.applied(source)
            if mutant.module:
                compile(bug, path, "exec")
            for test in mutant.tests:
                _require_test(tree, test)
        except (ValueError, SyntaxError, OSError) as error:
            found.append(f"{mutant.name}: {mutant.place}: {error}")
            continue
        if bug == source:
            found.append(f"{mutant.name}: {mutant.place}: nothing changes")
        other = changes.setdefault((path, bug), mutant.name)
        if other != mutant.name:
            found.append(f"{mutant.name}: {mutant.place}: the same as {other}")
    return found


def missing_tests(mutants: Iterable[Mutant], tree: Path = ROOT) -> list[str]:
    """The named tests that pytest does not collect, parameters included."""
    named = {test: mutant.name for mutant in mutants for test in mutant.tests}
    collected = set[str]()
    for root in ("tests", "research/tests"):
        files = sorted({test.partition("::")[0] for test in named if test.startswith(root)})
        if not files:
            continue
        command = ("-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *IMPORTING, *files)
        listed = subprocess.run(
            (sys.executable, *command), cwd=tree, capture_output=True, text=True, check=False
        )
        for test in filter(None, listed.stdout.splitlines()):
            steps = test.partition("[")[0].split("::")
            collected |= {test, *("::".join(steps[: k + 1]) for k in range(len(steps)))}
    return [
        f"{name}: no such test: {test}" for test, name in named.items() if test not in collected
    ]


@functools.cache
def _parsed(text: str) -> ast.Module:
    """Hundreds of entries name the same test files."""
    return ast.parse(text)


def _require_test(tree: Path, test: str) -> None:
    file, *names = test.partition("[")[0].split("::")
    node: ast.AST = _parsed((tree / file).read_text())
    for name in names:
        held = {getattr(child, "name", ""): child for child in ast.iter_child_nodes(node)}
        if name not in held:
            raise ValueError(f"{file} has no {name}")
        node = held[name]


def imports_of(tree: Path) -> dict[str, set[str]]:
    """Which of our modules every module of `tree` imports, by paths relative to `tree`."""
    paths = {}
    for source in SOURCES:
        for package in PACKAGES:
            for path in (tree / source / package).rglob("*.py"):
                dotted = path.relative_to(tree / source).with_suffix("").as_posix()
                paths[dotted.replace("/", ".").removesuffix(".__init__")] = path
    found = {}
    for path in paths.values():
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        ours = {paths[name].relative_to(tree).as_posix() for name in named & set(paths)}
        found[path.relative_to(tree).as_posix()] = ours
    return found


def users_of(file: str, imports: Mapping[str, set[str]]) -> set[str]:
    """`file` and every module that imports it, directly or through others."""
    found = {file}
    while more := {path for path, named in imports.items() if named & found} - found:
        found |= more
    return found


@dataclass
class Copy:
    """One copy of the tree, with a cache of compiled kernels of its own."""

    folder: Path
    imports: dict[str, set[str]] = field(default_factory=dict)
    applied: int = 0  # bugs so far; moves the time stamp, so that no stale bytecode is read

    @classmethod
    def of(cls, root: Path, folder: Path) -> "Copy":
        """The files that git tracks or would add, copied; the copy's own packages are imported."""
        listing = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
        names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        tree = folder / "tree"
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():  # not a deleted one
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, tree / name)
        copy = cls(folder, imports_of(tree))
        (folder / "kernels").mkdir()
        places = "import importlib, sys; "
        places += "print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]))"
        command = [sys.executable, "-c", places, *PACKAGES]
        # from another folder: what a test starts elsewhere must find the copy as well
        done = subprocess.run(
            command, env=copy.environment("kernels"), cwd="/", check=True, capture_output=True
        )
        for place in done.stdout.decode().split():
            if not Path(place).resolve().is_relative_to(tree.resolve()):
                raise RuntimeError(f"{place} was imported from outside the copy {tree}")
        return copy

    def environment(self, kernels: str, hang_s: float = _HANG_S) -> dict[str, str]:
        """The environment of a test: PYTHONPATH comes before an editable installation."""
        tree = self.folder / "tree"
        paths = os.pathsep.join(str((tree / source).resolve()) for source in SOURCES)
        kept = {key: value for key, value in os.environ.items() if key != "FEDREC_DATA"}
        own = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(self.folder / kernels)}
        return kept | own | {"FEDREC_HANG_S": str(hang_s)}

    def kernels_without(self, file: str) -> str:
        """A folder of compiled kernels less all that could hold code of `file`.

        numba finds a changed source file, not a changed function or constant in another file that a
        kernel has compiled in; so every module that imports `file`, however far, is compiled again.
        """
        from numba.core.caching import UserProvidedCacheLocator  # type: ignore[import-untyped]

        fresh = self.folder / f"kernels-{self.applied}"
        shutil.copytree(self.folder / "kernels", fresh, copy_function=os.link)
        for path in users_of(file, self.imports):
            full = str((self.folder / "tree" / path).resolve())
            cached = fresh / UserProvidedCacheLocator.get_suitable_cache_subpath(full)
            for entry in cached.glob(f"{Path(path).stem}.*"):
                entry.unlink()
        return fresh.name

    def pytest(
        self, tests: Iterable[str], kernels: str, limit_s: float, hang_s: float = _HANG_S
    ) -> "Outcome":
        """The outcome of the tests in this copy, stopped at the first failure or at the limit."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"]
        options.append(f"--basetemp={self.folder / 'pytest'}")
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with (self.folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder / "tree",
                env=self.environment(kernels, hang_s),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # what a test started and left belongs to its session
                for number in (signal.SIGTERM, signal.SIGKILL):
                    if process.poll() is None or number == signal.SIGTERM:
                        _signal_group(process.pid, number)
                    if process.poll() is None:
                        time.sleep(0.5)
                process.wait()
        return Outcome.read(code, report, self.folder / "log.txt")

    def with_bug(self, mutant: Mutant, limit_s: float, longest_s: float) -> "Outcome":
        """The outcome of the bug's tests with the bug; the file is as before afterwards.

        Args:
            mutant: The bug.
            limit_s: The time limit of a bug that is not stated to hang.
            longest_s: What the longest test of its file takes without a bug.
        """
        hang_s = min(_HANG_S, _HANG_BASE_S + _HANG_TIMES * longest_s)
        if mutant.hangs:
            limit_s = min(limit_s, _HANG_LIMIT_TIMES * hang_s + longest_s)
        tree = self.folder / "tree"
        path = mutant.path(tree)
        whole = path.read_bytes()
        stamp = path.stat().st_mtime
        self.applied += 1
        kernels = self.kernels_without(path.relative_to(tree).as_posix())
        try:
            path.write_text(mutant.applied(whole.decode()))
            # bytecode is told apart by size and whole seconds: each bug needs another second
            os.utime(path, (stamp + self.applied,) * 2)
            return self.pytest(mutant.tests, kernels, limit_s, hang_s)
        finally:
            path.write_bytes(whole)
            os.utime(path, (stamp, stamp))
            shutil.rmtree(self.folder / kernels)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended; `code` None is the time limit."""

    code: int | None
    passed: int
    skipped: int
    message: str  # of the first failure
    log: str
    longest_s: float = 0.0  # of one test

    @classmethod
    def read(cls, code: int | None, report: Path, log: Path) -> "Outcome":
        """From pytest's exit code, its report and its output."""
        passed = skipped = 0
        message = ""
        longest_s = 0.0
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else iter(())
        for case in cases:
            kinds = {child.tag: child.get("message") or "" for child in case}
            skipped += "skipped" in kinds
            passed += not kinds.keys() & {"skipped", "failure", "error"}
            message = message or kinds.get("failure", "") or kinds.get("error", "")
            longest_s = max(longest_s, float(case.get("time", 0)))
        return cls(code, passed, skipped, message, log.read_text(errors="replace"), longest_s)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: caught, survivor, or broken with the reason."""

    mutant: Mutant
    kind: str
    reason: str
    seconds: float

    def line(self) -> str:
        """One line for the terminal."""
        reason = " ".join(self.reason.split())[:100]
        return f"{self.kind:8} {self.mutant.name:18} {self.seconds:5.1f}s  {self.mutant.claim}" + (
            f"  [{self.mutant.place}: {reason}]" if self.kind != "caught" else ""
        )


def judged(mutant: Mutant, outcome: Outcome) -> tuple[str, str]:
    """The kind of verdict, and its reason."""
    match outcome.code:
        case 0:
            return "SURVIVES", f"{' '.join(mutant.tests)} passes"
        case 1 if outcome.message.startswith(NEVER_RAN):
            return "BROKEN", outcome.message
        case 1:
            return "caught", outcome.message
        case None if mutant.hangs:
            return "caught", "time limit, as stated"
        case None:
            return "BROKEN", "ran into the time limit; say `hangs = true` if that is the failure"
        case code:
            return "BROKEN", f"pytest ended with exit code {code}: {outcome.log[-300:]}"


def run_group(
    copy: Copy, mutants: Sequence[Mutant], limit_s: float, until: float = math.inf
) -> Iterable[Verdict]:
    """Verdicts of the bugs of one test file; first its tests without a bug, each bug by itself
    where some of them fail. After `until` (time.monotonic) no bug is begun."""
    trouble, longest_s = _trouble(copy, [test for m in mutants for test in m.tests], limit_s)
    for mutant in mutants:
        start = time.monotonic()
        if start > until:
            return
        bad, alone_s = _trouble(copy, mutant.tests, limit_s) if trouble else ("", longest_s)
        verdict = (
            ("BROKEN", bad) if bad else judged(mutant, copy.with_bug(mutant, limit_s, alone_s))
        )
        yield Verdict(mutant, *verdict, time.monotonic() - start)


def _trouble(copy: Copy, tests: Sequence[str], limit_s: float) -> tuple[str, float]:
    """Why these tests cannot tell anything: they do not pass without a bug. "" where they do.
    Beside it, the seconds of the longest of them."""
    plain = copy.pytest(dict.fromkeys(tests), "kernels", limit_s * len(tests))
    if plain.code != 0:
        reason = f"its test does not pass without it: {plain.message or plain.log[-300:]}"
        return reason, plain.longest_s
    return "a named test is skipped here" if plain.skipped else "", plain.longest_s


def changed_since(mutants: Sequence[Mutant], commit: str) -> list[Mutant]:
    """The mutants that the changes since `commit` can reach: their file, their test's file, or their
    entry has changed. All of them where git does not know the commit."""
    git = ["git", "-C", str(ROOT)]
    asked = [*git, "diff", "--name-only", "--no-renames", commit]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    if listed.returncode:
        return list(mutants)
    files = set(listed.stdout.splitlines())
    lists = {Path(file).stem for file in files if Path(file).parent == HERE.relative_to(ROOT)}
    before = dict[str, str]()  # the lists as they were: an entry that stands there is not new
    for area in lists:
        asked = [*git, "show", f"{commit}:{HERE.relative_to(ROOT)}/{area}.toml"]
        before[area] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout

    def new(mutant: Mutant) -> bool:
        entries = tomllib.loads(before.get(mutant.area, "")).get("mutant", [])
        return all(mutant.claim != entry["claim"] for entry in entries)

    return [
        mutant
        for mutant in mutants
        if mutant.path(ROOT).relative_to(ROOT).as_posix() in files
        or files & {test.partition("::")[0] for test in mutant.tests}
        or (mutant.area in lists and new(mutant))
    ]


def sampled(mutants: Sequence[Mutant], share: float, seed: str) -> list[Mutant]:
    """A share of the mutants, at least one, chosen by the seed alone."""
    ordered = sorted(mutants, key=lambda mutant: mutant.name)
    chosen = random.Random(seed).sample(ordered, math.ceil(share * len(ordered)))
    return [mutant for mutant in mutants if mutant in chosen]


def run_all(
    mutants: Sequence[Mutant], jobs: int, limit_s: float, until: float = math.inf
) -> list[Verdict]:
    """Verdicts of all mutants that begin before `until`, in their order by test file, printed as
    they come; `jobs` copies of the tree work at a time."""
    groups = defaultdict[str, list[Mutant]](list)
    for mutant in mutants:
        groups[mutant.group].append(mutant)
    waiting = queue.SimpleQueue[list[Mutant]]()
    for group in groups.values():
        waiting.put(group)
    verdicts = list[Verdict]()

    def work(copy: Copy) -> None:
        while time.monotonic() < until:
            try:
                group = waiting.get_nowait()
            except queue.Empty:
                return
            for verdict in run_group(copy, group, limit_s, until):
                verdicts.append(verdict)
                print(verdict.line(), flush=True)

    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as scratch,
        ThreadPoolExecutor(jobs) as pool,
    ):
        folders = [Path(scratch) / str(number) for number in range(min(jobs, len(groups)))]
        for worker in [pool.submit(work, Copy.of(ROOT, folder)) for folder in folders]:
            worker.result()  # raises what ended it
    return verdicts


def main() -> int:
    """Runs the chosen mutants; 1 if any survives or is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", help="only mutants with this text in their name, place, claim or test"
    )
    parser.add_argument("--sample", type=float, default=1.0, help="share of the others, as 0.1")
    parser.add_argument("--since", help="a commit: those that the changes since then can reach")
    parser.add_argument(
        "--within-s", type=float, default=math.inf, help="after so many seconds none is begun"
    )
    parser.add_argument("--seed", default="0", help="which share: any text, as a commit's hash")
    parser.add_argument(
        "--jobs", type=int, default=2, help="copies of the tree that work at a time"
    )
    parser.add_argument(
        "--limit-s", type=float, default=180.0, help="time limit of one run of tests"
    )
    parser.add_argument(
        "--check", action="store_true", help="look for places and tests alone, and run nothing"
    )
    given = parser.parse_args()
    mutants = read_mutants()
    if given.only:
        texts = {m: " ".join((m.name, m.place, m.claim, *m.tests)) for m in mutants}
        mutants = [mutant for mutant in mutants if given.only in texts[mutant]]
    if given.sample < 1:
        reached = changed_since(mutants, given.since) if given.since else []
        others = [mutant for mutant in mutants if mutant not in reached]
        random.Random(given.seed).shuffle(reached)
        mutants = reached + (sampled(others, given.sample, given.seed) if others else [])
        said = f"{len(reached)} that changes since {given.since} can reach, and "
        said = said * bool(given.since) + f"a share of {given.sample:g} chosen by seed {given.seed}"
        print(said, flush=True)
    else:  # all of them: the file with the most bugs begins, so that no copy waits for it at the end
        sizes = Counter(mutant.group for mutant in mutants)
        mutants.sort(key=lambda mutant: -sizes[mutant.group])
    if not mutants:
        parser.error("no mutant is chosen")
    if given.check:
        wrong = problems(mutants) + missing_tests(mutants)
        print(*wrong, f"{len(mutants)} mutants checked, {len(wrong)} problems", sep="\n")
        return 1 if wrong else 0
    start = time.monotonic()
    verdicts = run_all(mutants, given.jobs, given.limit_s, start + given.within_s)
    kinds = [verdict.kind for verdict in verdicts]
    print(f"{time.monotonic() - start:.0f} seconds")
    for verdict in verdicts:
        if verdict.kind != "caught":
            print(verdict.line())
    if broken := kinds.count("BROKEN"):
        print(f"{broken} broken entries: they were not tried")
    if later := len(mutants) - len(verdicts):
        print(f"{later} mutants were not tried: {given.within_s:g} seconds were over")
    survivors = kinds.count("SURVIVES")
    print(f"{len(verdicts)} mutants, {survivors} survivors")
    return 1 if survivors or broken else 0


if __name__ == "__main__":
    sys.exit(main())
