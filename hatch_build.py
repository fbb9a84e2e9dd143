"""Built into every wheel: the scenarios of simulations/, so that an installed fedrec finds them by
name."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Scenarios(BuildHookInterface):
    """simulations/NAME.toml becomes fedrec/scenarios/NAME.toml; an editable install reads them
    where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files."""
        if version == "standard":
            for path in sorted(Path(self.root, "simulations").glob("*.toml")):
                build_data["force_include"][str(path)] = f"fedrec/scenarios/{path.name}"
