"""Three-party aggregation: reports are shared among three aggregators, so that none of them, even
together with the server, sees one.

NOT YET REVIEWED from outside. The protocol stands in docs/three-party.md. What is here: the
arithmetic of Z_2^64 (`ring`), which numbers of a report are shared (`layout`), how a device shares
them (`shares`), what one aggregator sums (`servers`), the masks of what it gives away (`zeros`),
all parties in one process (`in_process`), and what is promised to whom (`promises`). Noise is
`fedrec.privacy.calibration`. The rules of one aggregator among lost messages, crashes and a liar
are `one_of_three`, with `commitments`, `record`, `holding` and `protocol`; a process applies them
in `fedrec_aggregator.three_party`. The server's side is `three_endpoints`, a client's
`fedrec_client.three_way`.

Promise, for any two honest aggregators: the server, the third aggregator and any clients together
learn of a person what the plan's guarantee allows, and who took part. Two aggregators together read
everything. Correct sums need three honest aggregators, and honest clients, unless what they share
is checked (`checks`, `squares`, `federation.hostile_clients`).
"""
