"""The forms of a change: command types, their parameters and texts (transactional.md 4). Pure.

The bitmask of SCALL and MCALL is binary(n / 8 + 1): column k is bit (k - 1) mod 8 of byte (k - 1) / 8.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Operation(StrEnum):
    """The effect of a command on a row."""

    INSERT = "ins"
    UPDATE = "upd"
    DELETE = "del"


PHASES = {Operation.DELETE: 0, Operation.UPDATE: 1, Operation.INSERT: 2}
"""The order of commands inside a transaction."""


class Method(StrEnum):
    """The part of a change that is sent."""

    CALL = "CALL"
    """Insert: all columns. Update: all columns and the old key. Delete: the key."""
    SCALL = "SCALL"
    """Update: the columns that changed, the old key, the bitmask."""
    MCALL = "MCALL"
    """Update: all columns, the old key, the bitmask."""
    XCALL = "XCALL"
    """Update: all old and all new columns. Delete: all old columns."""
    VCALL = "VCALL"
    """All columns, the old key, the bitmask of an update, and the versions of the row: subscribers write, too."""
    SQL = "SQL"
    """A statement; a missing row is not an error."""
    NONE = "NONE"
    """Nothing is sent."""


FITTING = {
    Operation.INSERT: (Method.CALL, Method.SQL, Method.NONE),
    Operation.UPDATE: tuple(each for each in Method if each is not Method.VCALL),
    Operation.DELETE: (Method.CALL, Method.XCALL, Method.SQL, Method.NONE),
}
"""The methods that a file may state for each operation; VCALL follows from a subscription that writes."""

KEYS = {Operation.INSERT: "ins_cmd", Operation.UPDATE: "upd_cmd", Operation.DELETE: "del_cmd"}
"""The keys of the file and columns of MSarticles."""

_NAMED = re.compile(r"(\w+)(?:\s+(\[[^\]]+\]|[^\s\[\]]+))?\s*")
_PROCEDURE = re.compile(r"[^\W\d][\w@$#]*")


@dataclass(frozen=True)
class CommandType:
    """A command type as in `sp_addarticle`: a method and, for calls, the procedure's name; None is the default one."""

    operation: Operation
    method: Method
    procedure: str | None = None

    @classmethod
    def parse(cls, text: str, operation: Operation) -> Self:
        """Read what a file states: `CALL`, `XCALL audit_update`, `SCALL [sp_MSupd_dboorders]`, `SQL` or `NONE`.

        Raises: ValueError naming the methods that fit the operation.
        """
        fitting = ", ".join(FITTING[operation])
        found = _NAMED.fullmatch(text.strip())
        word = found[1].upper() if found else ""
        if word == "VCALL":
            raise ValueError(
                f"is {text!r}, which is for internal use and cannot be asked for; choose {fitting}"
            )
        if found is None or word not in FITTING[operation]:
            raise ValueError(
                f"is {text!r}; {KEYS[operation]} may be {fitting}, calls with a procedure's name"
            )
        method = Method(word)
        name = found[2].strip("[]") if found[2] else None
        if name is not None and method in (Method.SQL, Method.NONE):
            raise ValueError(f"is {text!r}, and {method} calls no procedure; write {method}")
        if name is not None and _PROCEDURE.fullmatch(name) is None:
            raise ValueError(f"is {text!r}; a procedure's name has letters, digits and _ only")
        return cls(operation, method, name)

    @classmethod
    def stored(cls, text: str, operation: Operation) -> Self:
        """Read what MSarticles keeps: also `VCALL`, which no file states."""
        return cls(operation, Method.VCALL) if text == Method.VCALL else cls.parse(text, operation)

    def named(self, default: str) -> str:
        """Return the name of the procedure; `default` is that of the generated one."""
        return self.procedure or default

    @property
    def text(self) -> str:
        """The command type as MSarticles keeps it."""
        return f"{self.method} {self.procedure}" if self.procedure else str(self.method)

    @property
    def passes_old(self) -> bool:
        """Whether the old row is sent."""
        return self.method is Method.XCALL

    @property
    def passes_new(self) -> bool:
        """Whether columns of the new row are sent."""
        return self.operation is not Operation.DELETE and self.method is not Method.NONE

    @property
    def passes_key(self) -> bool:
        """Whether the old key is sent as separate parameters."""
        return self.operation is not Operation.INSERT and self.method not in (Method.XCALL, Method.NONE)

    @property
    def passes_bitmap(self) -> bool:
        """Whether the bitmask is sent."""
        is_update = self.operation is Operation.UPDATE
        return self.method in (Method.SCALL, Method.MCALL) or (is_update and self.passes_versions)

    @property
    def passes_versions(self) -> bool:
        """Whether the versions of the old and the new row are sent (`msrepl_tran_version`)."""
        return self.method is Method.VCALL

    def parameters(self, columns: int, keys: int) -> list[str]:
        """Return the names of the parameters, in order."""
        old = [f"old_c{k}" for k in range(1, columns + 1)] if self.passes_old else []
        new = [f"c{k}" for k in range(1, columns + 1)] if self.passes_new else []
        key = [f"pkc{k}" for k in range(1, keys + 1)] if self.passes_key else []
        versions = [name for name in VERSIONS if self.passes_versions and _has_version(self.operation, name)]
        return [*old, *new, *key, *(["bitmap"] if self.passes_bitmap else []), *versions]


OLD_VERSION, NEW_VERSION = VERSIONS = ("old_version", "new_version")
"""The versions of a row before and after a command."""


def _has_version(operation: Operation, name: str) -> bool:
    return operation is not (Operation.INSERT if name == OLD_VERSION else Operation.DELETE)


def default_procedure(operation: Operation, destination: str) -> str:
    """Return the name of the generated procedure: `sp_MSupd_PurchasingVendor` for the table `Purchasing/Vendor`."""
    schema, _, table = destination.strip("/").rpartition("/")
    return f"sp_MS{operation}_" + re.sub(r"\W", "_", f"{(schema or 'dbo').replace('/', '')}{table}")


@dataclass(frozen=True)
class Arguments:
    """The values of one command as SQL literals: old row, new row, old key; the bitmask and the versions as bytes."""

    old: Sequence[str] = ()
    new: Sequence[str] = ()
    pk: Sequence[str] = ()
    bitmap: bytes | None = None
    versions: Sequence[bytes | None] = ()


def call_text(command: CommandType, procedure: str, given: Arguments) -> str:
    """Return a command in the form of `sp_browsereplcmds`: `{CALL [sp_MSupd_dboorders] (,,12.50,,7,0x04)}`."""
    values = list(given.old) if command.passes_old else []
    if command.passes_new:
        has_gaps = command.method is Method.SCALL and given.bitmap is not None
        values += [
            value if not has_gaps or bit(given.bitmap or b"", k) else ""
            for k, value in enumerate(given.new, 1)
        ]
    if command.passes_key:
        values += given.pk
    if command.passes_bitmap:
        values.append(f"0x{(given.bitmap or b'').hex().upper()}")
    if command.passes_versions:
        values += [f"0x{each.hex().upper()}" for each in given.versions if each is not None]
    return f"{{CALL [{procedure}] ({','.join(values)})}}"


def statement_text(
    operation: Operation, table: str, columns: Sequence[str], key: Sequence[str], given: Arguments
) -> str:
    """Return the statement of a command whose method is SQL; names are quoted already."""
    where = " AND ".join(f"{name} = {value}" for name, value in zip(key, given.pk, strict=True))
    if operation is Operation.INSERT:
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(given.new)})"
    if operation is Operation.DELETE:
        return f"DELETE FROM {table} WHERE {where}"
    changed = ", ".join(f"{name} = {value}" for name, value in zip(columns, given.new, strict=True))
    return f"UPDATE {table} SET {changed} WHERE {where}"


def mask_length(columns: int) -> int:
    """Return the bytes of a mask for this number of columns."""
    return columns // 8 + 1


def bitmask(changed: Collection[int], columns: int) -> bytes:
    """Return the mask with the bits of these columns (from 1)."""
    mask = bytearray(mask_length(columns))
    for k in changed:
        mask[(k - 1) // 8] |= 1 << ((k - 1) % 8)
    return bytes(mask)


def bit(mask: bytes, k: int) -> bool:
    """True if a column, counted from 1, has its bit."""
    return bool(mask[(k - 1) // 8] >> ((k - 1) % 8) & 1)


def bit_text(mask: str, k: int) -> str:
    """Return the Spark SQL condition that a column, counted from 1, has its bit in the binary column `mask`."""
    byte, value = (k - 1) // 8 + 1, 1 << ((k - 1) % 8)
    return f"cast(conv(hex(substring({mask}, {byte}, 1)), 16, 10) AS int) & {value} = {value}"


def mask_text(flags: list[str]) -> str:
    """Return Spark SQL of the mask of boolean expressions, one for each column."""
    parts = []
    for at in range(0, 8 * mask_length(len(flags)), 8):
        bits = [f"CASE WHEN {flag} THEN {1 << i} ELSE 0 END" for i, flag in enumerate(flags[at : at + 8])]
        parts.append(f"lpad(hex({' + '.join(bits) or '0'}), 2, '0')")
    return f"unhex(concat({', '.join(parts)}))"
