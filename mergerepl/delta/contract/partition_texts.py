"""Texts that Spark cannot write to a partition column: it names folders after them, and reads them from the names."""

import re
from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.delta.table import TableState
from mergerepl.rows.sql import quote

_NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME = 255
"""Bytes of a folder's name, on all usual file systems."""

_ESCAPED = r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]"
"""The characters that Spark writes as % and two digits."""


def text_rules(table: TableState, columns: Collection[str], *, of_copy: bool = False) -> dict[str, Column]:
    """Return name -> condition: the rules for texts in a table's partition columns, on columns by their own names.

    Args:
        table: The table.
        columns: The columns to check.
        of_copy: Return the rules of a copy of the table. Only the original has column mapping, with which folders are
            not named after values.
    """
    has_folders = table.names_folders_after_values or (of_copy and not table.has_random_folders)
    rules: dict[str, Column] = {}
    for name in columns:
        if not table.keeps_empty_as_null(name):
            continue
        text = F.col(quote(name)).cast("string")
        asked = {
            "no value is empty (Delta stores NULL)": text != "",
            f"no value is '{_NULL_NAME}' (Delta stores NULL)": text != _NULL_NAME,
            "every value is UTF-8 (Delta stores U+FFFD in place of other bytes)": F.is_valid_utf8(text),
        }
        if has_folders:
            length = F.octet_length(F.regexp_replace(text, _ESCAPED, "%00")) + len(_folder(name))
            asked |= {
                "no value has the character U+0000 (no folder's name can)": ~F.contains(text, F.lit("\0")),
                f"no value makes a folder's name of more than {_LONGEST_NAME} bytes": length <= _LONGEST_NAME,
            }
        rules |= {
            f"rule of partition column '{name}' that {rule}": F.coalesce(condition, F.lit(True))
            for rule, condition in asked.items()
        }
    return rules


def _folder(name: str) -> bytes:
    """Return how a partition column's folders begin."""
    return (re.sub(_ESCAPED, "%00", name) + "=").encode()
