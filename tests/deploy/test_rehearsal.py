"""docs/deploy.md carried out: aggregator, server with serving, two sites and a third that comes
later, each a host of its own in a network namespace.

Settings and commands are the page's, but for folders, sizes and the program's path. FEDREC_BIN
names the folder of another installation's `fedrec`, such as one of a wheel in a clean environment
(`make rehearsal`). Without it this one's is rehearsed, and only in CI: it takes a minute and a half
of a core. FEDREC_OLD names that of an earlier version, whose parties are upgraded one after the
other (`make upgrade`), FEDREC_OLD_PAGE its docs/deploy.md. Needs root and iproute2.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import polars as pl
import pytest

from tests.hidden import hidden_words, logs_with
from tests.waiting import HANG_S, until

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
FEDREC = Path(os.environ.get("FEDREC_BIN", Path(sys.executable).parent)) / "fedrec"
HOSTS = ("aggregator", "server", "hospital", "library", "clinic")
SITES = ("hospital", "library", "clinic")
READER = "zq-reader-"
BOOK = "zq-book-"
"""Ids of people and items begin so: no log may have one."""
USERS = 240
ITEMS = 120
EVENTS = 6_000
UNREACHABLE = 7
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
    print("taken")
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("nobody")
"""


def command(start: str, page: str = PAGE) -> list[str]:
    """The command of the page that begins so, the shortest where there are several, without the
    word fedrec."""
    lines = {
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    }
    return shlex.split(
        min((line for line in lines if line.startswith(f"fedrec {start}")), key=len)
    )[1:]


def settings(name: str, page: str = PAGE) -> str:
    return re.search(rf"^```toml\n# {name}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]


@dataclass
class Host:
    """One machine: a folder for /etc/fedrec, /var/lib/fedrec, /srv and the home of who works there;
    a namespace for its network."""

    name: str
    folder: Path
    namespace: str
    hosts_file: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    program: Path = FEDREC

    def here(self, text: str) -> str:
        """The page's folders as this host's."""
        for path in ("/etc/fedrec", "/var/lib/fedrec", "/srv", "/run/fedrec-serving"):
            text = re.sub(rf"(?<![\w.]){path}\b", str(self.folder) + path, text)
        return text

    def write(self, name: str, content: str, **changes: str) -> None:
        for old, new in changes.items():
            content = re.sub(rf"^{old} = \S+", f"{old} = {new}", content, flags=re.MULTILINE)
        (self.folder / "etc" / "fedrec" / name).write_text(self.here(content))

    def run(self, words: Sequence[str], *, expected: int = 0) -> str:
        """What a command of this host prints; it works in /etc/fedrec."""
        done = subprocess.run(
            self._there([str(self.program), *map(self.here, words)]),
            **self._how(),
            timeout=HANG_S,
            capture_output=True,
        )  # type: ignore[call-overload]
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == expected, (
            f"{self.name}: fedrec {' '.join(words)}: {done.returncode}\n{said[-4_000:]}"
        )
        return str(done.stdout.decode())

    def examine(self, party: str, finding: str = "", *, expected: int = 0) -> None:
        """What the doctor says of a party; asked again until it says that, since on a busy machine
        it may give up on another party that is there."""

        def said() -> bool:
            done = subprocess.run(
                self._there([str(self.program), *map(self.here, command(f"doctor --{party}"))]),
                **self._how(),
                capture_output=True,
            )  # type: ignore[call-overload]
            print(done.stdout.decode(), done.stderr.decode())
            return done.returncode == expected and bool(re.search(finding, done.stdout.decode()))

        until(said, f"the doctor of {self.name} says {finding or 'that all is well'}", pause_s=1.0)

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """A party, as a service would start it."""
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            started = subprocess.Popen(
                self._there([str(self.program), *map(self.here, words)]),
                stdout=log,
                stderr=log,
                **self._how(),
            )  # type: ignore[call-overload]
        self.processes.append(started)
        return started

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_S)
        self.processes.remove(process)

    def crash(self) -> None:
        """kill -9 of everything that runs here; Flower's processes and workers end with it."""
        for process in self.processes:
            process.kill()
            process.wait(HANG_S)
        self.processes.clear()

    def plug(self, up: bool) -> None:
        """The network cable."""
        words = ["ip", "-n", self.namespace, "link", "set", "eth0", "up" if up else "down"]
        subprocess.run(words, check=True, capture_output=True)

    def listens(self, other: str, port: int) -> bool:
        """Whether somebody takes a connection there."""
        return self._connected(other, port) == "taken"

    def finds(self, other: str) -> bool:
        """Whether the other host is there at all: it takes a connection or refuses it."""
        return self._connected(other, 9) in ("taken", "refused")

    def _connected(self, other: str, port: int) -> str:
        words = self._there([sys.executable, "-c", _CONNECT, f"{other}.example.org", str(port)])
        return (
            subprocess.run(words, **self._how(), capture_output=True, check=True)
            .stdout.decode()
            .strip()
        )  # type: ignore[call-overload, no-any-return]

    def _there(self, words: Sequence[str]) -> list[str]:
        # `ip netns exec` has its own mounts already
        named = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "sh",
            "-c",
            named,
            str(self.hosts_file),
            *words,
        ]

    def _how(self) -> dict[str, object]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        quiet = {
            "HOME": str(self.folder / "home"),
            "OMP_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
        }
        return {
            "cwd": self.folder / "etc" / "fedrec",
            "env": kept | {name: value for name, value in quiet.items() if value},
        }


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Host]]:
    """Five hosts on one bridge; the sites' ports are isolated, so that these reach everybody but
    each other."""
    if not {"CI", "FEDREC_BIN"} & set(os.environ):
        pytest.skip("takes minutes: make rehearsal, or CI=1")
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need iproute2's ip, and root")
    mark = f"fd{os.getpid() % 10**6}"
    names = tmp_path / "hosts"
    addresses = {name: f"10.213.78.{number}" for number, name in enumerate(HOSTS, start=1)}
    names.write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{address} {name}.example.org\n" for name, address in addresses.items())
    )
    with ExitStack() as stack:
        made = dict[str, Host]()
        try:
            _ip(stack, "netns", "add", f"{mark}-bridge")
            middle = ("-n", f"{mark}-bridge", "link")
            _ip(stack, *middle, "add", "middle", "type", "bridge")
            _ip(stack, *middle, "set", "middle", "up")
            for number, (name, address) in enumerate(addresses.items()):
                inside = f"{mark}-{name}"
                port = f"{mark}p{number}"
                _ip(stack, "netns", "add", inside)
                _ip(
                    stack,
                    *middle,
                    "add",
                    port,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    inside,
                )
                _ip(stack, *middle, "set", port, "master", "middle", "up")
                if name in SITES:
                    _ip(stack, *middle, "set", port, "type", "bridge_slave", "isolated", "on")
                _ip(stack, "-n", inside, "address", "add", f"{address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    _ip(stack, "-n", inside, "link", "set", device, "up")
                for folder in ("etc/fedrec", "var/lib/fedrec", "srv", "run", "home"):
                    (tmp_path / name / folder).mkdir(parents=True)
                made[name] = Host(name, tmp_path / name, inside, names)
            subprocess.run(made["server"]._there(["true"]), check=True, capture_output=True)
        except subprocess.CalledProcessError as failure:
            pytest.skip(f"hosts cannot be made here: {failure.stderr.decode().strip()}")
        yield made
        for host in made.values():
            for process in host.processes:
                process.kill()
                process.wait()


def _ip(stack: ExitStack, *words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
    if words[:2] == ("netns", "add"):
        stack.callback(
            subprocess.run, ["ip", "netns", "delete", words[2]], check=False, capture_output=True
        )


def _furnish(
    hosts: dict[str, Host], folder: Path, program: Path = FEDREC, page: str = PAGE
) -> None:
    """What the page takes for granted: certificates from an operator's own machine, settings, data
    of the sites and of the items."""
    office = Host(
        "office", folder / "office", hosts["server"].namespace, hosts["server"].hosts_file
    )
    office.program = program
    for name in ("etc/fedrec", "home"):
        (office.folder / name).mkdir(parents=True)
    words = command("certs trial certificates --client hospital --client library --aggregator-host")
    # an earlier version has no word `trial`, and a later one does without it
    office.run([word for word in words if word != "trial"])
    made = office.folder / "etc" / "fedrec" / "certificates"
    for name in HOSTS[:4]:
        _bring(made, hosts[name])
    for file in made.glob("serving*.pem"):
        shutil.copy(file, hosts["server"].folder / "etc" / "fedrec" / file.name)
    office.run(
        [
            "data",
            "plant",
            "planted",
            *("--users", str(USERS), "--items", str(ITEMS), "--events", str(EVENTS)),
        ]
    )
    planted = office.folder / "etc" / "fedrec" / "planted"
    events = pl.concat([pl.read_parquet(part) for part in planted.glob("*.parquet")])
    for number, site in enumerate(SITES):
        mine = events.filter(pl.col("user") % 3 == number).select(
            reader=pl.format(READER + "{}", "user"),
            book=pl.format(BOOK + "{}", "item"),
            stars=pl.col("rating").ceil(),
        )
        mine.write_csv(hosts[site].folder / "srv" / "ratings.csv")
        hosts[site].write("client.toml", settings("client", page).replace("hospital", site))
        hosts[site].write("scenario.toml", settings("scenario", page))
    items = pl.read_csv(planted / "items.csv").rename({"item": "book"})
    items = items.with_columns(book=pl.format(BOOK + "{}", "book"))
    items.write_csv(hosts["server"].folder / "srv" / "books.csv")
    hosts["aggregator"].write("aggregator.toml", settings("aggregator", page), min_cohort="50")
    hosts["aggregator"].write("scenario.toml", settings("scenario", page))
    hosts["server"].write("server.toml", settings("server", page), expected_users=str(USERS // 2))
    hosts["server"].write("scenario.toml", settings("scenario", page))
    hosts["server"].write("serving.toml", settings("serving", page))
    (hosts["library"].folder / "etc" / "fedrec" / "read.txt").write_text(
        "\n".join(f"{BOOK}{number}" for number in range(1, 9))
    )


def _bring(made: Path, host: Host) -> None:
    """A party's certificate and key, the authority's certificate and the pins."""
    own = host.name if host.name in ("aggregator", "server") else f"client-{host.name}"
    for file in ("ca.pem", "pins.toml", f"{own}.pem", f"{own}-key.pem"):
        shutil.copy(made / file, host.folder / "etc" / "fedrec" / file)


def _require_no_secret(hosts: dict[str, Host]) -> None:
    """All logs of all parties, whatever wrote them: no key, no ledger's secret, no pseudonym, no id
    of a person or an item."""
    hidden = hidden_words(*(host.folder for host in hosts.values())) | {READER, BOOK}
    assert len(hidden) > USERS
    for host in hosts.values():
        assert not logs_with(host.folder, hidden)
    logs = {path.stem for host in hosts.values() for path in host.folder.rglob("*.log")}
    assert logs >= {"aggregator", "server", "client", "serve"}


def test_the_page_is_carried_out_on_five_hosts(hosts: dict[str, Host], tmp_path: Path) -> None:
    aggregator, server, hospital, library, clinic = (hosts[name] for name in HOSTS)
    _furnish(hosts, tmp_path)

    # Check and start, in the page's order: each party is fine once the parties before it are there,
    # and not sooner
    server.examine("server", r"FAILS\s+server\s+aggregator", expected=UNREACHABLE)
    aggregator.examine("aggregator")
    listening = aggregator.start(command("aggregator --settings"))
    until(
        lambda: (aggregator.folder / "var/lib/fedrec/aggregator/address.json").exists(),
        "the aggregator listens",
    )
    # the health check of units and containers
    aggregator.run(["status", "--own", "aggregator.toml"])
    server.examine("server")
    hospital.examine("client", r"FAILS\s+client\s+server", expected=UNREACHABLE)
    training = server.start(command("server --settings"))
    until(lambda: hospital.listens("server", 7002), "the server listens")
    for site in (hospital, library):
        site.examine("client")
        site.start(command("client --settings"))
    assert training.wait(HANG_S) == 0, (server.folder / "server.log").read_text()[-4_000:]
    server.processes.remove(training)
    assert not hospital.finds("library")  # sites find aggregator and server, and not each other
    assert not library.finds("hospital")
    assert library.finds("aggregator")

    # Serve, and ask from a site
    server.examine("serving")
    server.start(command("serve "))
    asking = [*command("recommend --history read.txt --server"), "--json"]
    until(lambda: library.listens("server", 7443), "serving listens")
    server.run(["status", "--own", "serving.toml"])
    first = json.loads(library.run(asking))
    assert len(first["items"]) == 10

    # What serves shows its own certificate, and its counts on loopback alone
    server.examine("serving", r"serving\.pem")
    assert library.listens("server", 8443)
    assert not library.listens("server", 9104)

    # A new site: its certificate, pins and name; nobody is started again
    office = tmp_path / "office"
    authority = Host("office", office, server.namespace, server.hosts_file)
    made = office / "etc/fedrec/certificates"
    # its key is made where it stays; the request goes to the authority, the certificate comes back
    said = clinic.run([word.replace("hospital", "clinic") for word in command("certs request")])
    asked = clinic.folder / "etc/fedrec/client-clinic.csr"
    assert asked.name in said
    shutil.copy(asked, authority.folder / "etc/fedrec")
    authority.run([word.replace("hospital", "clinic") for word in command("certs sign")])
    assert not (made / "client-clinic-key.pem").exists()
    for file in ("ca.pem", "pins.toml", "client-clinic.pem"):
        shutil.copy(made / file, clinic.folder / "etc" / "fedrec" / file)
    clinic.examine("client", r"FAILS\s+client\s+aggregator", expected=UNREACHABLE)
    for host in (aggregator, server):
        shutil.copy(made / "pins.toml", host.folder / "etc/fedrec/pins.toml")
    listed = '\n[[clients]]\nname = "clinic"\nmax_users = 3000\n'
    with (aggregator.folder / "etc/fedrec/aggregator.toml").open("a") as file:
        file.write(listed)
    until(
        lambda: "callers-reloaded" in (aggregator.folder / "aggregator.log").read_text(),
        "the aggregator has read who may call",
    )
    clinic.examine("client", r"ok\s+client\s+aggregator", expected=UNREACHABLE)
    clinic.start(command("client --settings"))

    # Train again: what serves takes the new version over
    server.write("server.toml", settings("server"), expected_users=str(USERS), min_clients="3")
    before = {path.name for path in (server.folder / "var/lib/fedrec/server/runs").iterdir()}
    retrained = command("server --settings server.toml --scenario scenario.toml --again")
    log = aggregator.folder / "aggregator.log"
    begun = log.read_text().count('"released"')
    training = server.start(retrained)
    until(lambda: log.read_text().count('"released"') > begun, "a round of the second training")

    # All hosts crash at once, and come back while one of them is cut off: the server names it
    for host in hosts.values():
        host.crash()
    library.plug(False)
    listening = aggregator.start(command("aggregator --settings"))
    training = server.start(retrained)
    server.start(command("serve "))
    for site in (hospital, library, clinic):
        site.start(command("client --settings"))
    until(
        lambda: re.search(
            r'"event":"waiting".*"missing":"[^"]*client library',
            (server.folder / "server.log").read_text(),
        ),
        "the server names the site that is cut off",
    )
    library.plug(True)
    assert training.wait(HANG_S) == 0, (server.folder / "server.log").read_text()[-4_000:]
    server.processes.remove(training)
    server.run(["ledger", "verify", "server.toml"])
    assert (
        len(
            {path.name for path in (server.folder / "var/lib/fedrec/server/runs").iterdir()}
            - before
        )
        == 1
    )

    # Renew: the aggregator's certificate with its key; nobody else does anything
    authority.run(command("certs trial certificates --renew aggregator"))
    shutil.copy(made / "aggregator.pem", aggregator.folder / "etc/fedrec/aggregator.pem")
    # for the server has ended: the aggregator's part is fine
    hospital.examine("client", r"ok\s+client\s+aggregator", expected=UNREACHABLE)
    assert listening.poll() is None

    _require_no_secret(hosts)


@pytest.mark.parametrize(
    "order", [*permutations(("aggregator", "server", "sites"))], ids=lambda order: "-".join(order)
)
def test_parties_of_an_earlier_version_are_upgraded_one_after_the_other(
    hosts: dict[str, Host], tmp_path: Path, order: tuple[str, ...]
) -> None:
    """With the settings, certificates, ledgers and models of the earlier version, in every order: a
    training after each step, or both sides say whose version is another. The earlier model answers
    until there is another."""
    if not (old := os.environ.get("FEDREC_OLD")):
        pytest.skip("FEDREC_OLD names no earlier version: make upgrade FROM=...")
    page = Path(os.environ["FEDREC_OLD_PAGE"]).read_text()
    earlier = Path(old) / "fedrec"
    server, aggregator = hosts["server"], hosts["aggregator"]
    sites = [hosts["hospital"], hosts["library"]]
    for host in hosts.values():
        host.program = earlier
    _furnish(hosts, tmp_path, earlier, page)
    words = {host.name: command("client --settings", page) for host in sites}
    words["aggregator"] = command("aggregator --settings", page)
    running = {host.name: host.start(words[host.name]) for host in (aggregator, *sites)}
    trainings = [_trained(server, command("server --settings server.toml", page)[:5])]
    again = command("server --settings server.toml --scenario scenario.toml --again")
    for step in order:
        for host in sites if step == "sites" else [hosts[step]]:
            if host is not server:
                host.stop(running[host.name])
            host.program = FEDREC
            # the server runs while it trains only: a site finds the aggregator alone
            host.examine(
                "client" if host in sites else host.name,
                expected=UNREACHABLE if host in sites else 0,
            )
            if host is not server:
                running[host.name] = host.start(words[host.name])
        if {server.program} == {site.program for site in sites}:
            trainings.append(_trained(server, again))
        else:
            # parties of version 2 spoke by Flower: the newer one of the two says so
            waiting = server.start(again)
            for host in [server] if server.program == FEDREC else sites:
                log = host.folder / ("server.log" if host is server else "client.log")
                said = '"missing":"client hospital' if host is server else "another-version"
                until(
                    lambda log=log, said=said: said in log.read_text(),  # type: ignore[misc]
                    f"{host.name} says {said}",
                )
            server.stop(waiting)
    aggregator.stop(running["aggregator"])
    kept = json.loads((server.folder / "var/lib/fedrec/server/runs.json").read_text())
    assert len(kept["runs"]) == len(trainings)
    for host, file in ((aggregator, "aggregator.toml"), (server, "server.toml")):
        host.run(["ledger", "verify", file])
    charged = json.loads(aggregator.run(["ledger", "show", "aggregator.toml", "--json"]))
    for site in sites:
        own = json.loads(site.run(["ledger", "show", "client.toml", "--json"]))
        assert own["ledgers"][0]["spent"] == charged["ledgers"][0]["spent"]


def _trained(server: Host, words: Sequence[str]) -> None:
    training = server.start(words)
    assert training.wait(HANG_S) == 0, (server.folder / "server.log").read_text()[-4_000:]
    server.processes.remove(training)
