"""Flower app: `ServerApp` (`server_app`) and `ClientApp` (`client_app`) for `flwr run`, by Flower's
public interfaces alone. `pyproject.toml` beside this file names them (docs/flower.md)."""
