"""Matrix factorisation in PyTorch as a Flower app: fedrec's strategy beside Flower's own wrapper.

python docs/examples/flower_factorization.py    # pip install 'fedrec[deploy,news,ray]'
"""

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp, strategy
from flwr.simulation import run_simulation

from fedrec.privacy.accounting import GaussianEvent, opinions
from fedrec_app.mods import Mod, bounded_update
from fedrec_app.strategy import PrivateSum

NODES, ITEMS, WIDTH, ROUNDS, EPSILON, DELTA, RADIUS = 150, 20, 2, 10, 8.0, 1e-5, 1.0
torch.manual_seed(1)
TASTES = torch.randn(NODES, WIDTH) @ torch.randn(WIDTH, ITEMS)  # ratings of one person a node
FIRST = torch.randn(ITEMS, WIDTH)


def error(items: torch.Tensor, ratings: torch.Tensor) -> torch.Tensor:
    """Mean square, after the person's own vector is fitted."""
    gram = items.T @ items + 0.1 * torch.eye(WIDTH)
    person = torch.linalg.solve(gram, items.T @ ratings.T)
    return ((items @ person - ratings.T) ** 2).mean()


def train(message: Message, context: Context) -> Message:
    """A few local steps on the items' vectors; the person's vector stays here."""
    items = torch.tensor(message.content["arrays"]["items"].numpy(), requires_grad=True)
    optimizer = torch.optim.SGD([items], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        error(items, TASTES[context.node_config["partition-id"]][None]).backward()
        optimizer.step()
    arrays = ArrayRecord({"items": Array(items.detach().numpy())})
    metrics = MetricRecord({"num-examples": 1})  # Flower's wrapper averages by it
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def compared(chosen: strategy.Strategy, *mods: Mod) -> float:
    """Error of the released items."""
    client = ClientApp(mods=list(mods))
    client.train()(train)
    server = ServerApp()
    released = {}

    @server.main()
    def main(grid: Grid, _context: Context) -> None:
        done = chosen.start(grid, ArrayRecord({"items": Array(FIRST.numpy())}), ROUNDS)
        released["items"] = torch.tensor(done.arrays["items"].numpy())

    run_simulation(server, client, NODES)
    return float(error(released["items"], TASTES))


private = PrivateSum(epsilon=EPSILON, delta=DELTA, rounds=ROUNDS, radius=RADIUS, nodes=NODES)
z = private.plan["update/1"].noise_multiplier
averaged = strategy.FedAvg(fraction_evaluate=0)
flower = strategy.DifferentialPrivacyServerSideFixedClipping(averaged, z, RADIUS, NODES)
priced = opinions([GaussianEvent(f"round {t}", 1 / z) for t in range(ROUNDS)], DELTA)
print(f"start       error {error(FIRST, TASTES):.3f}")
print(f"PrivateSum  error {compared(private, bounded_update):.3f}, {private.plan.guarantee}")
print(f"Flower      error {compared(flower):.3f}, {priced} if its weights are public")
