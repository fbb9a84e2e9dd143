"""The plain wheel, as the container image has it: nothing of ratings and clicks needs a package of an extra."""

import subprocess
import sys

MODULES = """
fedrec_aggregator.main fedrec_client.main fedrec_client.flower fedrec_client.participant fedrec_server.main fedrec_server.flower
fedrec_server.rounds fedrec_server.serving.main fedrec_server.serving.http_api fedrec_server.serving.grpc_api fedrec.serving.exporting
fedrec_simulations.account fedrec_simulations.audit.command fedrec_simulations.bench.command fedrec_simulations.data.describing
fedrec_simulations.commands.demo fedrec_cli.doctor.preflight fedrec_simulations.faults.command fedrec_cli.disclosure.overview
fedrec_simulations.runtimes.processes fedrec_cli.recommend fedrec_cli.recommend_demo fedrec_simulations.runtimes.choice
fedrec_simulations.simulate fedrec_simulations.data.split_files fedrec_cli.status.overview
"""
BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "opacus", "implicit", "threadpoolctl", "faiss", "ray"}:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Blocked())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def test_no_verb_of_ratings_and_clicks_needs_an_optional_package() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BLOCKED, *MODULES.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
