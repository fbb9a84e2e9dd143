"""Three-party aggregation: reports are shared among three aggregators, so that none of them, even
together with the server, sees one.

NOT YET REVIEWED from outside. The protocol stands in docs/three-party.md. What is here: which
numbers of a report are shared (`layout`), the arithmetic of Z_2^64, how a device shares numbers and
the masks of what an aggregator gives away (`shares`), and what one aggregator sums (`servers`).
Noise is `fedrec.privacy.calibration`, what is promised to whom `fedrec.run.statement`. The rules of
one aggregator among lost messages, crashes and a liar are `one_of_three`, with `agreement`,
`shared_users`, `record`, `holding` and `protocol`; a process applies them in
`fedrec_aggregator.three_party`. The server's side is `three_endpoints`, a client's
`fedrec_client.three_way`; `fedrec.in_process` plays all parties in one process.

Promise, for any two honest aggregators: the server, the third aggregator and any clients together
learn of a person what the plan's guarantee allows, and who took part. Two aggregators together read
everything. Correct sums need three honest aggregators, and honest clients, unless what they share
is checked (`federation.hostile_clients`).
"""
