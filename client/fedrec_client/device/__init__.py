"""A client for one person, with numpy alone: no Flower, no gRPC, no torch, numba or scipy.

    device = Device(folder, history, limit=Limit(epsilon=5.0, delta=1e-5),
        service=Service("https://aggregator.example"))
    device.take_part()

It fetches a question by its digest, checks it, charges its ledger, and posts one bounded report,
the bytes that `fedrec_client` sends.
"""

from fedrec_client.device.device import Device, History, Limit
from fedrec_client.device.service import Service

__all__ = ["Device", "History", "Leaves", "Limit", "Service"]
