"""Transports in one process: one trusted aggregator, or three that share."""
