"""The procedures of an article (`sp_MSins_<article>`, `sp_MSupd_`, `sp_MSdel_`) as Spark SQL over a view `commands`. Pure.

The agent executes these texts. They are made from the article each time, never read from a replica's files.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mergerepl.rows.sql import literal, quote, table_text
from mergerepl.systables.transactional import ArticleRow
from mergerepl.transactional.call_syntax import (
    KEYS,
    VERSIONS,
    CommandType,
    Method,
    Operation,
    bit_text,
    default_procedure,
    mask_length,
)
from mergerepl.transactional.refusals import DUPLICATE, NOT_FOUND

_PLAIN = ("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz", "boolean")
"""Types whose null-safe equality is equality of the stored values."""


class Shape(ArticleRow):
    """An article in one shape: its columns are c1 to cn in their order, its key columns pkc1 to pkcm."""

    def has_kept_bitmap(self, operation: Operation) -> bool:
        """Whether commands keep a bitmask that their method does not send: old values are left out (`text_columns`)."""
        return (
            bool(self.text_columns) and operation is Operation.UPDATE and self.command(operation).passes_old
        )

    def command(self, operation: Operation) -> CommandType:
        """Return the command type of an operation."""
        return CommandType.stored(getattr(self, KEYS[operation]), operation)

    @property
    def has_writers(self) -> bool:
        """Whether a subscriber writes (VCALL): commands set whole rows, whether these are there or not."""
        return self.command(Operation.UPDATE).passes_versions

    @property
    def key_places(self) -> tuple[int, ...]:
        """The ordinals of the key columns, from 1."""
        return tuple(self.columns.index(name) + 1 for name in self.key_columns)

    @property
    def key_types(self) -> tuple[str, ...]:
        """The types of the key columns."""
        return tuple(self.types[k - 1] for k in self.key_places)

    @property
    def parameter_types(self) -> dict[str, str]:
        """The SQL types of c1 to cn, pkc1 to pkcm and the bitmask."""
        columns = {f"c{k}": type_.upper() for k, type_ in enumerate(self.types, 1)}
        keys = {f"pkc{i}": type_.upper() for i, type_ in enumerate(self.key_types, 1)}
        versions = dict.fromkeys(VERSIONS, "BINARY(8)") if self.has_writers else {}
        return {**columns, **keys, "bitmap": f"BINARY({mask_length(len(self.columns))})", **versions}

    def procedure(self, operation: Operation) -> str:
        """Return the name of the generated procedure of an operation."""
        return default_procedure(operation, self.destination_object)


def called_procedures(shape: Shape) -> dict[Operation, str]:
    """Return the procedures that the commands of an article call, generated or custom."""
    named = {each: shape.command(each) for each in Operation}
    return {
        each: command.named(shape.procedure(each))
        for each, command in named.items()
        if command.method not in (Method.SQL, Method.NONE)
    }


def at_subscriber(shape: Shape, procedures: Mapping[str, str]) -> Shape:
    """Return an article as a subscription has it that replaces some of its procedures."""
    if not procedures:
        return shape
    commands: dict[str, Any] = {
        KEYS[each]: f"{shape.command(each).method} {procedures[name]}"
        for each, name in called_procedures(shape).items()
        if name in procedures
    }
    return replace(shape, **commands)


def procedure_text(shape: Shape, operation: Operation, path: str) -> str:
    """Return the text of a generated procedure: a comment, the check of rows, the statement."""
    command, types = shape.command(operation), shape.parameter_types
    names = command.parameters(len(shape.columns), len(shape.key_columns))
    if command.passes_old:
        # The statements find a row by its key, also where the key is one of the old values.
        names += [f"pkc{i}" for i in range(1, len(shape.key_columns) + 1)]
    rows = ", ".join(
        f"{name} {types[name if name in types else name.removeprefix('old_')]}" for name in names
    )
    return "\n".join(
        [
            f"-- {shape.procedure(operation)}: {operation.name}, {command.method}. Generated for schema version "
            f"{shape.schema_version}; regenerated after a schema change.",
            f"-- A row of `commands` per command: {rows}",
            *(f"{statement};" for statement in statements(shape, operation, path)),
        ]
    )


def statements(shape: Shape, operation: Operation, path: str) -> list[str]:
    """Return the statements of a generated procedure, to be executed one after the other."""
    table = table_text(path)
    if shape.has_writers:
        return [_upsert(shape, operation, table)]
    if operation is Operation.INSERT:
        names = ", ".join(quote(name) for name in shape.columns)
        values = ", ".join(f"s.c{k}" for k in range(1, len(shape.columns) + 1))
        on = " AND ".join(
            f"t.{quote(name)} = s.c{k}" for name, k in zip(shape.key_columns, shape.key_places, strict=True)
        )
        return [
            _raise(shape, DUPLICATE, "INSERT", [f"s.c{k}" for k in shape.key_places])
            + f"\nFROM commands AS s INNER JOIN {table} AS t ON {on}",
            f"INSERT INTO {table} ({names})\nSELECT {values} FROM commands AS s",
        ]
    key = [f"s.pkc{i}" for i in range(1, len(shape.key_columns) + 1)]
    on = " AND ".join(
        f"t.{quote(name)} = {value}" for name, value in zip(shape.key_columns, key, strict=True)
    )
    check = f"{_raise(shape, NOT_FOUND, operation.name, key)}\nFROM commands AS s LEFT ANTI JOIN {table} AS t ON {on}"
    checks = [] if shape.command(operation).method == "SQL" else [check]
    merge = f"MERGE INTO {table} AS t USING commands AS s ON {on}\nWHEN MATCHED THEN "
    if operation is Operation.DELETE:
        return [*checks, merge + "DELETE"]
    by_bit = partial(bit_text, "s.bitmap") if shape.command(operation).passes_bitmap else None
    return [*checks, merge + f"UPDATE SET\n{_set(shape, by_bit)}"]


def _upsert(shape: Shape, operation: Operation, table: str) -> str:
    """Return the MERGE that sets or deletes a row, whether it is there or not."""
    is_delete = operation is Operation.DELETE
    key = [f"s.pkc{i}" if is_delete else f"s.c{k}" for i, k in enumerate(shape.key_places, 1)]
    on = " AND ".join(
        f"t.{quote(name)} = {value}" for name, value in zip(shape.key_columns, key, strict=True)
    )
    merge = f"MERGE INTO {table} AS t USING commands AS s ON {on}\nWHEN MATCHED THEN "
    if is_delete:
        return f"{merge}DELETE"
    names = ", ".join(quote(name) for name in shape.columns)
    values = ", ".join(f"s.c{k}" for k in range(1, len(shape.columns) + 1))
    return f"{merge}UPDATE SET\n{_set(shape, None)}\nWHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"


def _set(shape: Shape, is_set: Callable[[int], str] | None) -> str:
    """Return the columns that an update sets; `is_set` gives the condition that a command sets a column (None: always)."""
    lines = []
    for k, name in enumerate(shape.columns, 1):
        if name in shape.key_columns and not shape.singleton_key_updates:
            continue
        column = f"t.{quote(name)}"
        value = f"CASE WHEN {is_set(k)} THEN s.c{k} ELSE {column} END" if is_set else f"s.c{k}"
        lines.append(f"  {column} = {value}")
    return ",\n".join(lines)


def _raise(shape: Shape, number: int, title: str, key: Sequence[str]) -> str:
    said = error_text(shape.article, number, title)
    parts = [literal(said)]
    for i, (name, value) in enumerate(zip(shape.key_columns, key, strict=True)):
        parts += [literal(f"{', ' if i else ''}{name} = "), value]
    return f"SELECT raise_error(concat({', '.join(parts)}))"


def error_text(article: str, number: int, title: str) -> str:
    """Return the text of 20598 or 2627, up to the key."""
    if number == NOT_FOUND:
        return (
            f"20598: The row was not found at the Subscriber when applying the replicated {title} command for Table "
            f"'{article}' with Primary Key(s): "
        )
    return f"2627: Violation of PRIMARY KEY. Cannot insert duplicate key in Table '{article}' with Primary Key(s): "


def batch_text(
    shape: Shape, path: str, *, bounds: str = "", operations: Collection[Operation] = tuple(Operation)
) -> str:
    """Return the single MERGE that does the work of all three procedures: one row of `commands` per row of the table.

    Clauses of operations without rows are left out: without inserts, few rows are joined where the table's rows are.

    `commands`: operation (ins, upd, del), pkc1 to pkcm (the key in the table; NULL of a row to insert), c1 to cn, set1 to
    setn (whether a column was set). `bounds` are conditions on the table's key, as text.
    """
    names = ", ".join(quote(name) for name in shape.columns)
    values = ", ".join(f"s.c{k}" for k in range(1, len(shape.columns) + 1))
    on = " AND ".join(f"t.{quote(name)} = s.pkc{i}" for i, name in enumerate(shape.key_columns, 1))
    differs = " OR ".join(
        f"({_is_set(k)}{_and_differs(name, k, type_)})"
        for k, (name, type_) in enumerate(zip(shape.columns, shape.types, strict=True), 1)
    )
    clauses = {
        Operation.DELETE: "WHEN MATCHED AND s.operation = 'del' THEN DELETE",
        Operation.UPDATE: f"WHEN MATCHED AND s.operation = 'upd' AND ({differs}) THEN UPDATE SET\n"
        f"{_set(shape, _is_set)}",
        Operation.INSERT: f"WHEN NOT MATCHED AND s.operation = 'ins' THEN INSERT ({names}) VALUES ({values})",
    }
    # A MERGE has a clause, also one without rows.
    chosen = [text for each, text in clauses.items() if each in operations] or [clauses[Operation.DELETE]]
    merge = f"MERGE INTO {table_text(path)} AS t USING commands AS s ON {bounds}{on}"
    return "\n".join([merge, *chosen])


def batch_script(shape: Shape, path: str) -> str:
    """Return the printed text of the MERGE: comments, the statement."""
    types = shape.parameter_types
    typed = [f"{name} {type_}" for name, type_ in types.items() if name not in ("bitmap", *VERSIONS)]
    columns, keys = typed[: len(shape.columns)], typed[len(shape.columns) :]
    flags = [f"set{k} BOOLEAN" for k in range(1, len(columns) + 1)]
    return "\n".join(
        [
            f"-- A batch of '{shape.article}'. Generated for schema version {shape.schema_version}; regenerated after a "
            "schema change.",
            "-- A row of `commands` per row of the table: operation STRING (ins, upd or del), the key that it has in the "
            f"table (NULL: none yet) {', '.join(keys)}, its values {', '.join(columns)}, which of them are set "
            f"{', '.join(flags)}",
            f"{batch_text(shape, path)};",
        ]
    )


def _is_set(k: int) -> str:
    return f"s.set{k}"


def _and_differs(name: str, k: int, type_: str) -> str:
    """Return the condition that excludes unchanged values, where equality can decide that."""
    if type_ in _PLAIN or type_.startswith("decimal"):
        return f" AND NOT (s.c{k} <=> t.{quote(name)})"
    return ""
