"""The update mask: a bit for each captured column (cdc.md 2). Pure.

n captured columns make ceil(n / 8) bytes. The LAST byte holds ordinals 1 to 8; ordinal k is bit (k - 1) mod 8 of byte
floor((k - 1) / 8), counted from the right.
"""

from collections.abc import Iterable

MAX_COLUMNS = 1024


def mask_bytes(ordinals: Iterable[int], columns: int) -> bytes:
    """Return the mask with the bits of these ordinals (from 1) set, of an instance with so many captured columns."""
    number = 0
    for ordinal in ordinals:
        number |= 1 << (ordinal - 1)
    return number.to_bytes(mask_length(columns), "big")


def full_mask(columns: int) -> bytes:
    """Return the mask of an insert or delete: the bits of all columns are set."""
    return mask_bytes(range(1, columns + 1), columns)


def mask_length(columns: int) -> int:
    """Return the bytes of a mask."""
    return -(-columns // 8)


def is_bit_set(position: int, mask: bytes | None) -> bool:
    """Return whether a mask has the bit of an ordinal (from 1); no mask, and an ordinal it does not have, is no."""
    if mask is None or not 0 < position <= 8 * len(mask):
        return False
    return bool(mask[-1 - (position - 1) // 8] >> ((position - 1) % 8) & 1)
