"""BSN and CSN as they are stored: 8 bytes, unsigned, big-endian, so that the order of bytes is the order of numbers."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def packed(number: int) -> bytes:
    """Return a number as it is stored."""
    return number.to_bytes(8, "big")


def unpacked(stored: bytes) -> int:
    """Return a stored number."""
    return int.from_bytes(stored, "big")


def packed_literal(number: int) -> Column:
    """Return a number as it is stored, as a literal that Parquet's bounds are compared with."""
    return F.lit(packed(number))


def packed_column(number: Column) -> Column:
    """Return numbers (bigint) as they are stored. A cast to binary is refused in ANSI mode."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def unpacked_column(stored: Column) -> Column:
    """Return stored numbers as bigint."""
    return F.conv(F.hex(stored), 16, 10).cast("bigint")
