"""The protocol under faults: the real parties in one process, on simulated machines and a simulated
network.

`script` says what goes wrong, `machine` and `network` make it happen, `parties` wires the real
cores to them, `auditor` and `verdict` check what must hold with code of their own (`reading`),
`simulator` runs one script and `command` many.
"""
