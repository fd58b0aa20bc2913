"""How often the logs of tables are read anew."""

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest


class Openings(Counter[Path]):
    """Openings by the path of the table."""

    def of(self, table: Path) -> int:
        return self[table]


def counted_openings(monkeypatch: pytest.MonkeyPatch) -> Openings:
    """Return the openings of tables by delta-rs, counted from now on."""
    found = Openings()
    opened: Any = deltalake.DeltaTable.__init__

    def noted(self: Any, table: Any, *arguments: Any, **terms: Any) -> None:
        found[Path(table)] += 1
        opened(self, table, *arguments, **terms)

    monkeypatch.setattr(deltalake.DeltaTable, "__init__", noted)
    return found
