"""The verb `fedrec faults`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedrec.errors import SettingsError

app = typer.Typer(rich_markup_mode=None)


@app.command(short_help="Run the protocol through seeded faults and check what must hold.")
def faults(
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, help="How many seeded runs.")
    ] = 1_000,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of the first run.")
    ] = 0,
    show: Annotated[
        bool, typer.Option("--show", help="Print the operations of the first run too.")
    ] = False,
    kill: Annotated[
        int,
        typer.Option(
            "--kill",
            metavar="N",
            min=0,
            help="Instead: kill -9 real processes so many times, at random moments.",
        ),
    ] = 0,
    three_party: Annotated[
        bool,
        typer.Option(
            "--three-party",
            help=(
                "Three aggregators in place of one (docs/three-party.md; not yet reviewed from "
                "outside)."
            ),
        ),
    ] = False,
    leaves: Annotated[
        bool,
        typer.Option(
            "--leaves",
            help="A root and two leaves in place of one aggregator; with --three-party, of each.",
        ),
    ] = False,
    each_moment: Annotated[
        bool,
        typer.Option(
            "--each-moment",
            help=(
                "With --three-party: end each aggregator at each moment of a checked training, "
                "in turn."
            ),
        ),
    ] = False,
) -> None:
    """Run the protocol through seeded faults and check after each run what must hold: lost, late,
    repeated, reordered and damaged messages, restarts at every durable step, full disks, jumping
    clocks.

    --kill starts deployments of real processes instead, trains twice in each, serves and asks, and
    ends random processes with kill -9 meanwhile. Each model must be, byte for byte, what one
    process makes of the same data, everybody be counted in every round, and every release and
    answer be charged once. A hundred kills take some minutes to an hour, depending on the machine.

    --three-party runs real aggregators, clients and rounds with three aggregators through lost
    messages and answers, crashes around every durable step and every answer, full disks and
    restarts. What leaves must be the exact sum of its users and three noises, charged once by each.
    With --each-moment, one aggregator ends once in each of some 900 checked trainings; with --kill,
    the deployments of real processes have three aggregators, which check clients.

    --leaves runs a real root, leaves, clients and rounds through the same faults, through reports
    that come twice and through leaves that lie about their sums in a way that shows. Every release
    must be the loopback's, byte for byte, and charged once. With --three-party it runs three roots
    of two leaves each, as --three-party runs three aggregators.

    Examples:

    \b
      fedrec faults --runs 10000
      fedrec faults --kill 200
      fedrec faults --three-party --runs 1000
      fedrec faults --three-party --each-moment
      fedrec faults --leaves --runs 300
      fedrec faults --three-party --leaves --runs 100
    """
    if leaves:
        if kill or show or (each_moment and not three_party):
            raise SettingsError(
                "--leaves is of one process, and shows no operations", "Leave the others out."
            )
        if not three_party:
            from fedrec_simulations.faults.leaves import run as run_leaves

            typer.echo(run_leaves(runs=runs, seed=seed))
            return
    if three_party and show:
        raise SettingsError("--three-party shows no operations", "Leave --show out.")
    if three_party and not kill:
        from fedrec_simulations.faults import three_aggregators
        from fedrec_simulations.faults.three_trees import TreesWorld

        kind = TreesWorld if leaves else three_aggregators.World
        typer.echo(
            three_aggregators.at_each_moment(kind=kind)
            if each_moment
            else three_aggregators.run(runs=runs, seed=seed, kind=kind)
        )
        return
    if each_moment:
        raise SettingsError(
            "--each-moment is of three aggregators in one process",
            "Add --three-party, and leave --kill out.",
        )
    if kill:
        from fedrec_simulations.faults import kills

        typer.echo(
            kills.run(
                kills=kill,
                seed=seed,
                three_party=three_party,
                tell=lambda words: typer.echo(words, err=True),
            )
        )
        return
    from fedrec_simulations.faults.command import run

    typer.echo(run(runs=runs, seed=seed, show=show))
