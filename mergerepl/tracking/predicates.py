"""The rows of a window (compact.md 6.2 and 6.4): exactly, and by the documented queries. Pure.

BSN and CSN are stored as 8 bytes, unsigned, big-endian, so that the order of bytes is the order of numbers.

`csn(b)` is the CSN of a BSN: that of `__sysTxCommitSequence`, or else the BSN itself. A window is half-open: LCSN <= csn <
ECSN. Exactly:

| set | condition |
|---|---|
| inserts | insert BSN not NULL and csn(insert BSN) in the window |
| updates | change BSN not NULL and csn(change BSN) in the window, and the row is not among the inserts |
| deletes | csn(delete BSN) in the window, and insert BSN NULL or csn(insert BSN) below LCSN |

The BSNs whose CSN is in the window are known beforehand, from `tracking_commits`: as ranges of literals they let Parquet's
bounds leave row groups out.
"""

from collections.abc import Collection, Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.model.tracking import EnumerationQueries

RANGES_AT_MOST = 200
"""Ranges written into a query; more numbers are compared as a list."""


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges, first and last."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def is_among(stored: Column, numbers: Collection[int]) -> Column:
    """True if a stored BSN is one of the numbers; False for NULL."""
    if not numbers:
        return F.lit(False)
    spans = ranges(numbers)
    whole = stored.between(packed_literal(spans[0][0]), packed_literal(spans[-1][1]))
    if len(spans) > RANGES_AT_MOST:
        found = whole & stored.isin([packed_literal(number) for number in numbers])
    elif len(spans) > 1:
        found = whole & _any([stored.between(packed_literal(a), packed_literal(b)) for a, b in spans])
    else:
        found = whole
    return found


def _any(terms: list[Column]) -> Column:
    """Whether any term is true, built as a tree: a long chain would exceed Spark's stack."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return _any(terms[:middle]) | _any(terms[middle:])


EXACT_SQL = """\
-- {table}: inserts, updates and deletes of the window :LCSN <= csn < :ECSN, in this order of application: deletes, inserts,
-- updates. csn(b) is the CSN of a transaction: that of the commit sequence, or else its BSN.
-- Read all tables in the versions of one row of tracking_commits: that with the highest csn below :ECSN.
WITH sequence AS (SELECT __sysTxBsn AS bsn, conv(hex(__sysTxCsn), 16, 10) AS csn FROM __sysTxCommitSequence),
rows AS (
  SELECT t.*,
    coalesce(i.csn, conv(hex(t.__sysInsertTxBsn), 16, 10)) AS insert_csn,
    coalesce(c.csn, conv(hex(t.__sysChangeTxBsn), 16, 10)) AS change_csn
  FROM {table} t
  LEFT JOIN sequence i ON i.bsn = t.__sysInsertTxBsn
  LEFT JOIN sequence c ON c.bsn = t.__sysChangeTxBsn)
SELECT 'insert' AS operation, * FROM rows WHERE insert_csn >= :LCSN AND insert_csn < :ECSN
UNION ALL
SELECT 'update', * FROM rows
WHERE change_csn >= :LCSN AND change_csn < :ECSN AND NOT coalesce(insert_csn >= :LCSN AND insert_csn < :ECSN, false);

SELECT __sysRK, __sysTrackingContext FROM __sysOCSDeletedRows
WHERE __sysTN = {name} AND mr_delete_csn >= :LCSN AND mr_delete_csn < :ECSN
  AND (mr_insert_csn IS NULL OR mr_insert_csn < :LCSN);
"""
"""The exact queries as printed. `{table}` is the table's name, `{name}` its SQL text literal."""

DOCUMENTED_INSERTS = """\
SELECT ut.* FROM
  (SELECT ut0.* FROM {table} AS ut0 WHERE
    ut0.__sysInsertTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn >= :LBSN
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON (ut.__sysInsertTxBsn = txcs.__sysTxBsn) WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysInsertTxBsn >= :LCSN AND ut.__sysInsertTxBsn < :ECSN)"""

DOCUMENTED_UPDATES = """\
SELECT ut.* FROM
  (SELECT ut0.* FROM {table} AS ut0 WHERE
    (ut0.__sysChangeTxBsn IS NOT NULL AND ut0.__sysChangeTxBsn >= :LBSN)
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON ut.__sysChangeTxBsn = txcs.__sysTxBsn OR txcs.__sysTxBsn IS NULL WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysChangeTxBsn >= :LCSN AND ut.__sysChangeTxBsn < :ECSN)"""

DOCUMENTED_DELETES = """\
SELECT ut.__sysRK FROM
  (SELECT ut0.* FROM __sysOcsDeletedRows AS ut0 WHERE
    (ut0.__sysInsertTxCsn IS NULL OR ut0.__sysInsertTxCsn < :LCSN) AND
    ut0.__sysTName = {name}
  ) AS ut
LEFT OUTER JOIN
  (SELECT txcs0.* FROM __sysTxCommitSequence AS txcs0) AS txcs
ON ut.__sysDeleteTxBsn = txcs.__sysTxBsn OR txcs.__sysTxBsn IS NULL WHERE
  (txcs.__sysTxBsn IS NOT NULL AND txcs.__sysTxCsn >= :LCSN AND txcs.__sysTxCsn < :ECSN) OR
  (txcs.__sysTxBsn IS NULL AND ut.__sysDeleteTxBsn >= :LCSN AND ut.__sysDeleteTxBsn < :ECSN)"""

QUERIES = EnumerationQueries(EXACT_SQL, DOCUMENTED_INSERTS, DOCUMENTED_UPDATES, DOCUMENTED_DELETES)
"""The texts that `mergerepl tracking sql` prints: {table} and {name} stand for the table."""


def packed(number: int) -> bytes:
    """Return the stored form of a number."""
    return number.to_bytes(8, "big")


def unpacked(stored: bytes) -> int:
    """Return a stored number."""
    return int.from_bytes(stored, "big")


def packed_literal(number: int) -> Column:
    """Return the stored form of a number as a literal that Parquet's bounds are compared with."""
    return F.lit(packed(number))


def packed_column(number: Column) -> Column:
    """Return the stored form of numbers (bigint). A cast to binary is refused in ANSI mode."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def unpacked_column(stored: Column) -> Column:
    """Return stored numbers as bigint."""
    return F.conv(F.hex(stored), 16, 10).cast("bigint")
