"""A Grafana dashboard and Prometheus alert rules over the metrics of all parties, as files: `fedrec
status --dashboard`, `--alerts`."""

from importlib.resources import files

DASHBOARD = files(__name__) / "dashboard.json"
"""To import into Grafana, which asks for the Prometheus data source."""

ALERTS = files(__name__) / "alerts.yaml"
"""A rules file of Prometheus. It takes each party's `up` by the job name `fedrec`."""
