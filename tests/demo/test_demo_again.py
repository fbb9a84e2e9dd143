"""What one process makes of two trainings is what real parties make of them, over Flower's messages
in this process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.federation.round_driver import Patience
from fedrec.public_data import PublicData
from fedrec.recipes import guarantee_of
from fedrec.settings import load
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from fedrec_server.gathering import Gathering
from fedrec_server.rounds import RoundSettings, run_rounds
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import Runs
from fedrec_server.schedule import TrainingSchedule
from fedrec_server.trainings import Trainings
from fedrec_simulations.demo.parties import Deployment
from fedrec_simulations.demo.trial import TRAININGS, Trial
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, played
from fedrec_simulations.runtimes.in_process import parties_of
from tests.flower_grid import grid

pytestmark = pytest.mark.processes


def test_two_trainings_by_real_parties_the_second_from_the_first_are_those_of_one_process(
    tmp_path: Path,
) -> None:
    trial = Trial(
        load(None, ["data.preset=small", "privacy.noise=seeded", "privacy.epsilon=3.5"]), tmp_path
    )
    there = Deployment(trial.files(0), Supervisor())
    catalogue = trial.dataset.catalogue
    facts = trial.facts
    public = PublicData(catalogue.item_ids, facts.kind, facts.value_range, facts.features)
    for training in range(TRAININGS):
        runs = Runs(there.server)
        trainings = Trainings(
            runs,
            TrainingSchedule(there.server, again=training > 0),
            guarantee_of(trial.scenario.privacy),
            noise="seeded",
            name="demo",
        )
        with ExitStack() as stack:
            endpoint, participants = played(
                parties_of(trial.files(training).job, catalogue, 2), stack
            )
            for entry in trainings.each(lambda seconds: None):
                rounds = run_rounds(
                    trial.scenario,
                    public,
                    endpoint,
                    ClientBroadcast(GridPost(grid(participants)), SLOWEST_ROUND_S),
                    trainings.folder,
                    RunSettings(
                        Gathering(expected_users=facts.num_users, min_clients=2, timeout_s=0.0),
                        Patience(SLOWEST_ROUND_S, attempts=1),
                        run=entry.run,
                    ),
                    RoundSettings(
                        planned=trainings.planned, earlier=trainings.earlier(public.items)
                    ),
                )
                for _ in rounds:
                    pass
    assert there.runs[1].warm == there.runs[0].run
    assert all(trial.same_bytes(there.folder(number), number) for number in range(TRAININGS))
