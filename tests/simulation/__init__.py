"""The protocol under faults: the real parties in one process, on simulated machines and a simulated
network; a tool of tests.

`script` says who is there and what goes wrong, `machine` and `network` make it happen, `parties`
wires the real cores to them, `auditor`, `verdict` and `three_party_verdict` check what must hold
with code of their own (`reading`), `visitor` is served and asks, `simulator` runs one script and
`many` many of them. `kills` ends real processes.
"""
