"""The verbs of the parties: one process each, on one machine or on many. docs/deploy.md starts all
three."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import SettingsError
from fedrec_cli.flags import Json, Overrides, scenario_option

if TYPE_CHECKING:
    from fedrec.operations.party_settings import LoggedTable

app = typer.Typer(rich_markup_mode=None)


def _settings(example: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--settings", metavar="FILE", help=f"Settings file (TOML), as in {example}."
    )
    return option


def _failures_logged(
    party: str, file: str, settings: LoggedTable
) -> AbstractContextManager[object]:
    """What fails before a party starts stands in its log file too, where it has one; without one
    the terminal says it."""
    from fedrec.operations import logs

    return (
        logs.party_log(
            party, file=Path(file), max_bytes=settings.log_max_bytes, kept=settings.log_files
        )
        if file
        else nullcontext()
    )


NewLedger = Annotated[
    bool,
    typer.Option(
        "--new-aggregator-ledger",
        help=(
            "Accept another ledger of the aggregator, after its operator has said why the"
            " old one is gone."
        ),
    ),
]


@app.command(short_help="Run the aggregator: take reports, release noised sums.")
def aggregator(settings: Annotated[Path, _settings("docs/deploy.md")]) -> None:
    """Run the aggregator: take one bounded report per user and round over gRPC, and release each
    round's sum once, with noise.

    With a table leaf in its settings it is a leaf, which takes reports for a root and releases
    nothing; with leaves it is their root (docs/scale.md).

    It keeps a ledger of everything it has released, refuses past its operator's limit, and never
    writes a report to disk. SIGTERM finishes what is running; after a crash the same command goes
    on.

    Example:

    \b
      fedrec aggregator --settings aggregator.toml
    """
    from fedrec_aggregator.main import run
    from fedrec_aggregator.settings import load

    # no preflight: this process imports little, and opens its ledger, port and certificates before
    # all else
    run(load(settings))


def _examined(client: Path) -> None:
    """In the client's worker, which reads the data anyhow."""
    from fedrec_cli.doctor.preflight import preflight

    preflight(client=client)


@app.command(short_help="Run a client: hold people's data, answer rounds within their limit.")
def client(
    settings: Annotated[Path, _settings("docs/deploy.md")], new_aggregator_ledger: NewLedger = False
) -> None:
    """Run a client: the data of one person, or of a site where each person is a unit of privacy of
    its own.

    It joins the server's rounds through Flower, but runs only the code installed here. Before a
    report leaves, its ledger is charged; a plan, a round or an aggregator that it must not trust is
    refused with a reason.

    Example:

    \b
      fedrec client --settings client.toml
    """
    from fedrec_client.main import run
    from fedrec_client.settings import load

    run(
        load(settings),
        new_aggregator_ledger=new_aggregator_ledger,
        check=partial(_examined, settings),
    )


@app.command(
    short_help="Run the server: train a scenario with clients and an aggregator elsewhere."
)
def server(
    settings: Annotated[Path, _settings("docs/deploy.md")],
    scenario: Annotated[Path, scenario_option()],
    overrides: Overrides = None,
    new_aggregator_ledger: NewLedger = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help=(
                "Train once more where the folder's training is finished; a server that "
                "is up there is asked to."
            ),
        ),
    ] = False,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop-unfinished",
            help="Abandon a training that cannot go on; its whole epsilon stays counted.",
        ),
    ] = False,
    every: Annotated[
        str,
        typer.Option(
            "--every",
            metavar="DURATION",
            show_default=False,
            help="Stay up, and train whenever the model is so old: 12h, 7d.",
        ),
    ] = "",
) -> None:
    """Run the server: train a scenario with clients and an aggregator that run elsewhere, and keep
    the released model.

    It sees who took part and noised sums, nothing else. A checkpoint is kept after every round; the
    same command goes on where it stopped. A finished training leaves model and serving bundle in
    the state folder, which fedrec serve serves.

    Started again on a finished folder it says so, and trains no more. --again trains once more:
    what devices hold then, by a new run that is charged on top of all before. --every 7d stays up
    and does so by itself; --again then asks that server. What was spent, and what the training will
    cost, is printed before anybody is asked.

    Examples:

    \b
      fedrec server --scenario planted --settings server.toml
      fedrec server --scenario planted --settings server.toml --every 7d
    """
    from fedrec.settings import load as load_scenario
    from fedrec_cli.doctor.preflight import preflight
    from fedrec_server.main import run
    from fedrec_server.schedule import ask_standing, duration_s
    from fedrec_server.settings import load

    every_s, chosen = duration_s(every) if every else 0.0, load(settings)
    if again and (standing := ask_standing(Path(chosen.state))):
        typer.echo(f"asked the server that stands there (process {standing}) to train again")
        return
    with _failures_logged("server", chosen.log, chosen):
        preflight(server=settings, scenario=scenario)
    planned = load_scenario(scenario, overrides or ())
    run(
        planned,
        chosen,
        new_aggregator_ledger=new_aggregator_ledger,
        again=again,
        drop=drop,
        every_s=every_s,
        say=typer.echo,
    )


@app.command(short_help="Make the serving bundle of a trained model.")
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Run folder, state folder of a server, or model folder."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FILE", help="Where the bundle is written, replaced in one step."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Make the serving bundle of a trained model: one public file that fedrec serve serves, with
    the guarantee of training in it.

    For a model of ratings or clicks its folder is enough, without data. For news, the bundle that
    training wrote is checked and copied.

    Example:

    \b
      fedrec export /var/lib/fedrec/server --output books.safetensors
      fedrec serve books.safetensors
    """
    from fedrec.serving.bundle import sha256_of
    from fedrec.serving.model_bundles import export as write_export

    about, version = write_export(source, output), sha256_of(output)[:16]
    if as_json:
        typer.echo(
            json.dumps({"bundle": str(output), "version": version, **about.model_dump(mode="json")})
        )
        return
    typer.echo(f"bundle   {output}, version {version}")
    typer.echo(f"training {about.trained}")


@app.command(short_help="Serve released models to private queries.")
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=(
                "Run folders, state folders of servers, bundles, or https://host:port of a server."
            ),
        ),
    ],
    settings: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            show_default=False,
            help="Settings file (TOML), as in docs/serving.md.",
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc",
            metavar="HOST:PORT",
            show_default=False,
            help="Where gRPC listens; port 0 takes a free one.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            show_default=False,
            help="Where HTTP listens; port 0 takes a free one.",
        ),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(
            "--page", help="Also serve a web page that makes private queries in the browser."
        ),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Serve experiments too: models trained with seeded noise, and say so."
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Where there is no model yet, wait for the first one.")
    ] = False,
) -> None:
    """Serve released models over gRPC and HTTP to queries that carry a few noised coefficients, and
    nothing else of a person.

    A new bundle in one of the folders takes over without a failed request; the one before answers
    until it is retired. From the address of a server that trains elsewhere (its publish table) new
    bundles are fetched with a token, checked, and kept in the state folder of the settings (table
    fetch). SIGTERM finishes what is running, SIGHUP looks for new bundles at once.

    A model that was trained with seeded noise is refused without --demo: whoever knows the seed can
    remove the noise.

    Examples:

    \b
      fedrec serve runs/planted-0123456789 --page
      fedrec serve /var/lib/fedrec/server --wait
      fedrec serve https://server.example.org:7003 --settings serving.toml --wait
    """
    from fedrec_server.serving.main import Serving, run
    from fedrec_server.serving.settings import load, overridden

    def told(serving: Serving) -> None:
        for line in (
            f"model {serving.newest}",
            f"grpc  {serving.grpc or '-'}",
            f"http  {serving.http or '-'}",
        ):
            typer.echo(line)
        sys.stdout.flush()
        typer.echo(f"training {serving.training}", err=True)

    run(
        runs,
        overridden(load(settings) if settings else None, grpc=grpc, http=http),
        page=page,
        demo=demo,
        wait=wait,
        ready=told,
    )


@app.command(short_help="Ask a server for recommendations without telling it what you read.")
def recommend(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR", show_default=False, help="With --demo: the run to serve."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="FILE",
            show_default=False,
            help="Item ids, oldest first, or CSV: item, rating, timestamp.",
        ),
    ] = None,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="URL",
            show_default=False,
            help="grpc(s)://host:port or http(s)://host:port.",
        ),
    ] = "",
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many to recommend.")] = 10,
    epsilon: Annotated[
        float,
        typer.Option(
            metavar="E", help="Epsilon of a new answer, per click (replace); inf adds no noise."
        ),
    ] = 5.0,
    limit: Annotated[
        float,
        typer.Option(
            metavar="E",
            help="Total privacy budget of all answers; new queries are refused beyond it.",
        ),
    ] = 20.0,
    delta: Annotated[float, typer.Option(metavar="D", help="Delta of both epsilons.")] = 1e-5,
    renew_every: Annotated[
        float | None,
        typer.Option(
            "--renew-every",
            metavar="DAYS",
            show_default=False,
            help="Count only the answers of the last DAYS days against the limit.",
        ),
    ] = None,
    max_user_epsilon: Annotated[
        float,
        typer.Option(
            "--max-user-epsilon",
            metavar="E",
            help="Limit of the same total for all your clicks together, per user (replace).",
        ),
    ] = float("inf"),
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Folder of ledger and models; default ~/.local/state/fedrec/recommend.",
        ),
    ] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option(
            "--category",
            metavar="NAME",
            show_default=False,
            help="Only items in it; may be repeated.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default=False,
            help=(
                "Items to request, at least k plus the length of a history; read ones "
                "are removed here."
            ),
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="Rank on this device: nothing is sent, nothing is spent."),
    ] = False,
    last: Annotated[
        bool,
        typer.Option(
            "--last",
            help="Send the last query again, free of charge, even if the history has changed.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print every byte that was sent, and what was not sent."),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help=(
                "Serve RUN_DIR, or the newest run in ./runs, and ask on behalf of a made-up reader."
            ),
        ),
    ] = False,
    ca: Annotated[
        str,
        typer.Option(
            metavar="FILE", show_default=False, help="Certificate authority of the server (PEM)."
        ),
    ] = "",
    pin: Annotated[
        str,
        typer.Option(
            metavar="HEX",
            show_default=False,
            help="SHA-256 of the server's certificate; any other is refused.",
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Your certificate, where the server asks for one (PEM).",
        ),
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            metavar="FILE", show_default=False, help="Private key of your certificate (PEM)."
        ),
    ] = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds to wait for an answer.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a server for recommendations without telling it what you read.

    The query has a few noised numbers, made on this device from the latest clicks. Until the
    history changes the same numbers are sent again, which costs nothing. A ledger is charged
    before anything is sent; queries beyond the limit are refused.

    Examples:

    \b
      fedrec recommend --demo
      fedrec recommend --history read.txt --server grpcs://example.org:7443
    """
    from fedrec_cli import recommend as asking
    from fedrec_cli import recommend_demo
    from fedrec_client.serving_link import Trust

    if run and not demo:
        raise SettingsError(
            f"{run} is given without --demo",
            "To ask a running server: --server URL --history FILE.",
        )
    trust = Trust(ca, pin, certificate, key)
    device = asking.Device(
        server,
        state or asking.default_state(),
        epsilon,
        limit,
        delta,
        renew_every,
        max_user_epsilon,
        trust,
        timeout,
    )
    choices = asking.Choices(k, tuple(categories or ()), candidates, local, last, explain)
    words, content = (
        recommend_demo.run(run, device, choices) if demo else asking.run(history, device, choices)
    )
    typer.echo(json.dumps(content) if as_json else words)


@app.command(short_help="Make certificates for a trial.")
def certs(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder for the certificates and keys; existing ones are kept."
        ),
    ],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", show_default=False, help="A client; may be repeated."
        ),
    ] = None,
    aggregator_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--aggregator-host",
            metavar="NAME",
            show_default=False,
            help="Name or address of the aggregator; may be repeated.",
        ),
    ] = None,
    server_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--server-host",
            metavar="NAME",
            show_default=False,
            help="Name or address of the server; may be repeated.",
        ),
    ] = None,
    three_party: Annotated[
        bool,
        typer.Option(
            "--three-party", help="Three aggregators in place of one (docs/three-party.md)."
        ),
    ] = False,
    leaves: Annotated[
        list[str] | None,
        typer.Option(
            "--leaf",
            metavar="NAME[=HOST]",
            show_default=False,
            help="A leaf below the aggregator (docs/scale.md); repeatable.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=825, help="How long they are valid.")
    ] = 90,
    renew: Annotated[
        list[str] | None,
        typer.Option(
            "--renew",
            metavar="NAME",
            show_default=False,
            help="Renew NAME.pem, as client-hospital or ca; may be repeated.",
        ),
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key", help="With --renew: a new key too; every party then needs the new pins."
        ),
    ] = False,
) -> None:
    """Make a development certificate authority, certificates for an aggregator, a server and
    clients, and their pins.

    Each says its holder's role and name, and the hosts of its role alone; without hosts this
    machine's own. pins.toml holds the SHA-256 of every key: parties whose settings name it accept
    no other keys. For a trial: where it matters, use your own authority and keep its key off these
    machines (docs/deploy.md).

    Example:

    \b
      fedrec certs certificates --client hospital --client library
      fedrec certs certificates --three-party --client hospital
      fedrec certs certificates --renew aggregator --days 90
    """
    from fedrec.operations.certificates import write_development_certificates
    from fedrec.operations.pins import write_pins
    from fedrec.operations.renewal import renew as renewed

    if new_key and not renew:
        raise SettingsError(
            "--new-key is given without --renew", "Say whose: --renew aggregator --new-key."
        )
    if renew:
        for path in [
            *(renewed(folder, name, days=days, new_key=new_key) for name in renew),
            write_pins(folder),
        ]:
            typer.echo(str(path))
        return
    made = write_development_certificates(
        folder,
        clients=clients or ["client"],
        aggregator_hosts=aggregator_hosts or [],
        server_hosts=server_hosts or [],
        days=days,
        three_aggregators=three_party,
        leaves={
            name: [host] if host else []
            for name, _, host in (leaf.partition("=") for leaf in leaves or ())
        },
    )
    for path in [*made, write_pins(folder)]:
        typer.echo(str(path))


@app.command(short_help="Check settings, certificates, ledgers and connections before a run.")
def doctor(
    aggregator: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Settings of an aggregator."),
    ] = None,
    client: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Settings of a client.")
    ] = None,
    server: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Settings of a server.")
    ] = None,
    serving: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Settings of a serving process."),
    ] = None,
    device: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="State folder of fedrec recommend."),
    ] = None,
    scenario: Annotated[Path | None, scenario_option()] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check versions, ports, certificates, clock, disk, ledgers, the plan and connections; say what
    is wrong and what to do.

    Ends with 0 where a run can start, with the exit code of the first failure otherwise.

    Example:

    \b
      fedrec doctor --client client.toml --scenario planted
    """
    from fedrec_cli.doctor.preflight import diagnose, table

    found = diagnose(
        aggregator=aggregator,
        client=client,
        server=server,
        serving=serving,
        device=device,
        scenario=scenario,
    )
    typer.echo(json.dumps(found.as_dict()) if as_json else table(found))
    raise typer.Exit(found.exit_code)


@app.command(
    short_help="Ask all parties of some settings files whether they are up and what they do."
)
def status(
    settings: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SETTINGS...", show_default=False, help="Settings files (TOML), of any party."
        ),
    ] = None,
    own: Annotated[
        bool,
        typer.Option(
            "--own",
            help="Only the parties whose settings these are: a health check of this machine.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a Grafana dashboard (JSON) instead.")
    ] = False,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Print Prometheus alert rules (YAML) instead.")
    ] = False,
) -> None:
    """Ask every party that the settings name, and print one table: up or not, phase, round, what it
    waits for, users, budget, last success.

    A party of this machine is asked by its state folder and its metrics; the others by their
    addresses, with the certificate of the settings that name them. Ends with 0 where all are up,
    with 7 otherwise; no key, token or user is printed.

    Examples:

    \b
      fedrec status server.toml
      fedrec status aggregator.toml client.toml --json
      fedrec status --alerts > /etc/prometheus/rules/fedrec.yaml
    """
    import time

    from fedrec.storage import finite
    from fedrec_cli.status import overview as asking

    if dashboard or alerts:
        from fedrec.operations.monitoring import ALERTS, DASHBOARD

        typer.echo((DASHBOARD if dashboard else ALERTS).read_text(encoding="utf-8"), nl=False)
        return
    parties = asking.asked(settings or (), own_only=own)
    typer.echo(
        json.dumps(finite(asking.as_dict(parties)))
        if as_json
        else asking.table(parties, now_s=time.time())
    )
    raise typer.Exit(asking.exit_code(parties))


@app.command(short_help="Print every field and byte of a round, from the folders of the parties.")
def inspect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="State folder of a party or device, or one that holds several."
        ),
    ],
    round: Annotated[
        int | None, typer.Option("--round", metavar="N", show_default=False, help="One round only.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every field and byte that left a client, reached the aggregator and reached the server
    in a round, and every ledger.

    A client's own reports are there only if it keeps them (keep_sent in its settings).

    Example:

    \b
      fedrec inspect runs/planted-0123456789 --round 2
    """
    from fedrec_cli.disclosure.overview import inspected, text

    found = inspected(folder, round=round)
    typer.echo(json.dumps(found) if as_json else text(found))
