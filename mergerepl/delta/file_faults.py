"""Files of a table that libraries other than Spark read or remove wrongly: by their footers and names, without an engine.

By default Spark writes times as INT96. deltalake takes these for nanoseconds in 64 bits, and when it
rewrites the file, 9999-12-31 has become 1816-03-29. And Spark writes a path such as `region=Île/…` as it is, where
deltalake encodes it: the file that deltalake then removes is not the table's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from mergerepl.delta.footers import has_int96, read_footer
from mergerepl.delta.log import head_version, is_foreign
from mergerepl.delta.table import file_names


@dataclass(frozen=True)
class FaultyFiles:
    """Paths of a table's files as its log writes them: with times as INT96, and with names that are not ASCII."""

    table: Path
    count: int
    """All files of the table."""
    int96: Sequence[str]
    not_ascii: Sequence[str]

    @property
    def names(self) -> list[str]:
        """All that have a fault."""
        return sorted({*self.int96, *self.not_ascii})


def faulty_files(table: Path) -> FaultyFiles:
    """Look at all files of a table's head.

    Raises: StoreError if it is no table or its log has a gap; what deltalake and pyarrow raise if the log, or a file,
        cannot be read.
    """
    names = file_names(table, head_version(table))
    own = [name for name in names if not is_foreign(table, name)]
    return FaultyFiles(
        table,
        len(names),
        [name for name in own if has_int96(read_footer(table / unquote(name)))],
        [name for name in own if not name.isascii()],
    )
