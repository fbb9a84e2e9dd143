import numpy as np
import pytest

from fedrec.encoders import items
from fedrec.encoders.items import EncoderParameters

pytest.importorskip("torch")
pytest.importorskip("opacus")
import torch

from fedrec_simulations.bench import encoder, opacus_peer


def test_the_generated_catalogue_has_exactly_the_paper_s_sizes() -> None:
    assert sum(values for values, _ in encoder.ML10M.categories.values()) == 58_645
    assert sum(wanted for _, wanted in encoder.ML10M.categories.values()) == 725_000
    inputs = items.prepare(encoder.generate(encoder.QUICK, rng=np.random.default_rng(0)))
    assert inputs.csr.nnz == sum(wanted for _, wanted in encoder.QUICK.categories.values())


def test_the_peer_of_opacus_computes_the_same_embeddings_and_takes_a_private_step() -> None:
    inputs = items.prepare(encoder.generate(encoder.QUICK, rng=np.random.default_rng(0)))
    peer = opacus_peer.make(inputs, 8, batch_size=6)
    module = peer.module._module
    tables = torch.cat([table.weight for table in module.tables]).detach().numpy()
    theta = EncoderParameters(
        tables, module.dense.weight.detach().numpy().T, module.dense.bias.detach().numpy()
    )
    chosen = np.array([3, 1, 4, 1, 5, 9])
    with torch.no_grad():
        theirs = module(*opacus_peer.pad(inputs, chosen)).numpy()
    np.testing.assert_allclose(items.forward(theta, inputs.batch(chosen)), theirs, atol=1e-5)
    before = tables.copy()
    peer.step(chosen, torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.ones(6))
    after = torch.cat([table.weight for table in module.tables]).detach().numpy()
    # noise on every row: DP-SGD has no sparse gradient
    assert bool(np.all(np.any(after != before, axis=1)))
