"""The ids of conflicts: 16 hexadecimal digits of a row's hash in its article and changeset, XOR the hash of these.

`changes.CONFLICT_HASH` tells the conflicts of one article in a changeset apart. Spark and Arrow make the same ids, so that
one may finish what the other began.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES = 8


def article_hash(session: str, side: str, round_: int, tablenick: int) -> int:
    """Return the hash (bigint) of one article in the changeset of a session, or of a late round of a side."""
    text = f"{session}|{side}|{round_}|{tablenick}"
    return int.from_bytes(sha256(text.encode()).digest()[:_BYTES], signed=True)


def of_hash(row: Column, article: Column) -> Column:
    """Return the id of a row's conflict, of `changes.CONFLICT_HASH` and `article_hash`."""
    return F.lower(F.lpad(F.hex(row.bitwiseXOR(article)), 2 * _BYTES, "0"))


def of_hashes(rows: "pa.ChunkedArray[Any]", article: int) -> "pa.StringArray":
    """Return what `of_hash` does, by row; no hash is NULL."""
    import numpy as np
    import pyarrow as pa

    made = rows.to_numpy() ^ np.int64(article)
    digits = made.astype(">i8").tobytes().hex().encode()
    ends = np.arange(0, len(digits) + 1, 2 * _BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(len(made), pa.py_buffer(ends), pa.py_buffer(digits))
