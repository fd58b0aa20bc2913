"""The bitmask of SCALL and MCALL, binary(n / 8 + 1): column k is bit (k - 1) mod 8 of byte (k - 1) / 8. Pure."""

from collections.abc import Collection


def mask_length(columns: int) -> int:
    """Return how many bytes the mask of so many columns has."""
    return columns // 8 + 1


def bitmask(changed: Collection[int], columns: int) -> bytes:
    """Return the mask in which these columns, counted from 1, have their bits."""
    mask = bytearray(mask_length(columns))
    for k in changed:
        mask[(k - 1) // 8] |= 1 << ((k - 1) % 8)
    return bytes(mask)


def bit(mask: bytes, k: int) -> bool:
    """Return whether a column, counted from 1, has its bit."""
    return bool(mask[(k - 1) // 8] >> ((k - 1) % 8) & 1)


def bit_text(mask: str, k: int) -> str:
    """Return Spark SQL that says whether a column, counted from 1, has its bit in the binary column `mask`."""
    byte, value = (k - 1) // 8 + 1, 1 << ((k - 1) % 8)
    return f"cast(conv(hex(substring({mask}, {byte}, 1)), 16, 10) AS int) & {value} = {value}"


def mask_text(flags: list[str]) -> str:
    """Return Spark SQL of the mask of boolean expressions, one for each column."""
    parts = []
    for at in range(0, 8 * mask_length(len(flags)), 8):
        bits = [f"CASE WHEN {flag} THEN {1 << i} ELSE 0 END" for i, flag in enumerate(flags[at : at + 8])]
        parts.append(f"lpad(hex({' + '.join(bits) or '0'}), 2, '0')")
    return f"unhex(concat({', '.join(parts)}))"
