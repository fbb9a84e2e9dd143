"""Simulations: runs on one machine, runtimes, reports, audits, experiments and benchmarks."""
