"""Log sequence numbers: 10 bytes, compared as unsigned bytes. Epoch (4), scan cycle (4), slot (2). Pure."""

import re
from datetime import UTC, datetime
from typing import Self

_LENGTH = 10
_HIGHEST = (1 << (8 * _LENGTH)) - 1
_HEX = re.compile(r"0x([0-9a-f]{20})", re.IGNORECASE)
_PARTS = re.compile(r"(\d+):(\d+):(\d+)")
_FIRST_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

MAX_SLOT = (1 << 16) - 2
"""The highest slot of a cycle: an LSN above the last one of a cycle must not be one of the next cycle."""


class Lsn(bytes):
    """A log sequence number. `str` shows `0x` and 20 hexadecimal digits; order and equality are those of its bytes."""

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        """Take 10 bytes.

        Raises: ValueError if they are not 10.
        """
        if len(value) != _LENGTH:
            raise ValueError(f"an LSN has {_LENGTH} bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def of(cls, scan_cycle: int, slot: int) -> Self:
        """Return the LSN of a slot of a scan cycle (epoch * 2^32 + number)."""
        return cls(scan_cycle.to_bytes(8, "big") + slot.to_bytes(2, "big"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `0x003757F80000002A0003`, or `epoch:cycle:slot` in decimal numbers.

        Raises: ValueError if it is neither.
        """
        if found := _HEX.fullmatch(text.strip()):
            return cls(bytes.fromhex(found[1]))
        if found := _PARTS.fullmatch(text.strip()):
            epoch, cycle, slot = map(int, found.groups())
            if epoch < 1 << 32 and cycle < 1 << 32 and slot < 1 << 16:
                return cls.of(scan_cycle_of(epoch, cycle), slot)
        raise ValueError(
            f"{text!r} is no LSN: write it as 0x and 20 hexadecimal digits, or as epoch:cycle:slot"
        )

    @property
    def number(self) -> int:
        """The 10 bytes as a number."""
        return int.from_bytes(self, "big")

    @property
    def scan_cycle(self) -> int:
        """The first 8 bytes as a number: `__$scan_cycle`."""
        return int.from_bytes(self[:8], "big")

    @property
    def slot(self) -> int:
        """The place in the cycle, from 1."""
        return int.from_bytes(self[8:], "big")

    def next(self) -> "Lsn":
        """Return the next number.

        Raises: ValueError if this is the highest one.
        """
        if self.number == _HIGHEST:
            raise ValueError("there is no LSN above the highest one")
        return Lsn((self.number + 1).to_bytes(_LENGTH, "big"))

    def previous(self) -> "Lsn":
        """Return the number before.

        Raises: ValueError if this is zero.
        """
        if self.number == 0:
            raise ValueError("there is no LSN below zero")
        return Lsn((self.number - 1).to_bytes(_LENGTH, "big"))

    def __str__(self) -> str:
        return f"0x{self.hex().upper()}"

    def __repr__(self) -> str:
        return f"Lsn.parse('{self}')"


ZERO = Lsn(bytes(_LENGTH))
"""The LSN below all others."""


def scan_cycle_of(epoch: int, cycle: int) -> int:
    """Return a scan cycle: epoch * 2^32 + number of the cycle."""
    return (epoch << 32) + cycle


def epoch_of(moment: datetime) -> int:
    """Return the whole minutes since 2020-01-01."""
    return seconds_of(moment) // 60


def seconds_of(moment: datetime) -> int:
    """Return the whole seconds since 2020-01-01."""
    return int((moment - _FIRST_EPOCH).total_seconds())
