"""fedrec: federated recommenders whose printed privacy guarantee is true.

The library knows no process: mathematics, messages, accounting, data and evaluation live here; servers, clients and
aggregators are the packages `fedrec_server`, `fedrec_client`, `fedrec_aggregator`, and `fedrec_simulations` runs them.
"""

__version__ = "0.1.0"
