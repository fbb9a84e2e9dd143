"""[run]: where results go."""

from __future__ import annotations

from pydantic import Field

from fedrec.settings_tables.table import Table


class RunSettings(Table):
    """Where results go."""

    directory: str = Field("runs", description="folder that run folders are made in")
    examples: int = Field(
        8, ge=0, le=50, description="items whose nearest neighbours the report shows"
    )
