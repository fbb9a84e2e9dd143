"""Runtimes: who carries a training's messages, in one process, over Flower, or between real
processes."""
