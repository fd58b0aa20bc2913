"""Reasons why a table cannot take part: one list of problems for all products.

A product has a text for each problem that stops it, in the order in which it reports them (`Texts`).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mergerepl.delta.metadata import CHAR_VARCHAR, DEFAULT_EXPRESSION, FEED_COLUMNS, GENERATION_EXPRESSION
from mergerepl.delta.table import TableState
from mergerepl.delta.types import (
    Field,
    ddl_of,
    has_not_null_parts,
    invariants,
    leaf_types,
    nested_names,
    padded_types,
)
from mergerepl.store.storage import is_local

Problem = tuple[str, str]
"""The reason why a table cannot take part, and the remedy."""

_KNOWN_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""Table features that Spark reads and writes here without loss."""

_HEEDED_FEATURES = frozenset(
    {"checkpointProtection", "icebergCompatV1", "icebergCompatV2", "materializePartitionColumns"}
)
"""Features that a published table may get later, as DROP FEATURE adds the first: Spark honours them on writing."""

COMMITTED_BY_DELTA_RS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)
"""Features of tables that delta-rs 1.6.6 commits to, found by trying: a table on a store needs a fence by it."""

_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"

_LAST_READER_VERSION, _LAST_WRITER_VERSION = 3, 7
_ISOLATION_LEVEL, _SERIALIZABLE = "delta.isolationLevel", "Serializable"

_KEY_TYPES = frozenset(
    {
        *("tinyint", "smallint", "int", "bigint", "decimal", "string", "date", "timestamp", "timestamp_ntz"),
        *("boolean", "binary"),
    }
)
"""The types whose values have one exact form, in which equal keys are equal (a decimal has a precision, too)."""

_UNSUPPORTED_TYPES = {"variant": "VARIANT", "calendar_interval": "an interval", "interval": "an interval"}
_OF_THE_MERGE = frozenset(
    {
        "__delta_internal_is_row_deleted",
        "__is_cdc",
        "_metadata",
        "_row_dropped_",
        "_source_row_present_",
        "_target_row_present_",
        "_tmp_metadata_row_index",
    }
)
"""Columns that Delta's MERGE, or its reading of files and feeds, adds to a table's own, found by trying with
delta-spark 4.4.0. `_metadata` only with deletion vectors, which a table may get at any time."""

_MAPPING_CHARACTERS = frozenset(" ,;{}()\n\t=")


class Code(StrEnum):
    """The names of the problems; for a column problem, `column` is the column's name."""

    FEATURE = "a table feature that is not known"
    HEEDED_FEATURE = "a table feature that is known, but not to publish with"
    PROTOCOL = "a later protocol"
    ISOLATION = "appends do not conflict with a MERGE"
    UNFENCED = "a table feature with which a table on a store cannot get a fence"
    EXPIRING = "transactions are forgotten, and with them the fences of a table on a store"
    APPEND_ONLY = "no updates or deletes"
    FEED_NAME = "a name of the change feed's own columns"
    MERGE_NAME = "a name that Delta's MERGE needs"
    MAPPED_NAME = "a name that needs column mapping"
    MAPPED_PART = "a name inside of a column that needs column mapping"
    BACKTICK = "a name that Delta's MERGE cannot quote"
    BACKTICK_PART = "a name inside of a column that cannot be quoted"
    VOID = "a type without values"
    TYPE = "a type that is not replicated"
    COLLATED = "a collated text"
    IDENTITY = "an identity column"
    GENERATED = "a generated column"
    INNER_RULE = "NOT NULL inside of a column, or an invariant"
    INNER_LENGTH = "char or varchar inside of a column"
    ONLY_PARTITIONS = "no column but partition columns takes part"
    UNFILLED = "a column without a value for rows from elsewhere"
    KEY_TYPE = "a key column whose values have no one form"
    KEY_PADDED = "a key column of type char(n)"


_OF_TAKING_PART = frozenset(Code) - {Code.FEED_NAME, Code.MERGE_NAME, Code.UNFILLED}
"""Problems only of columns that take part; the others apply to any column."""

Texts = Mapping[Code, Problem]
"""Reason and remedy of each problem that stops a product, with {path}, {column} and {detail}."""


@dataclass(frozen=True)
class FoundProblem:
    """A problem of a table: its name, its column, and further detail for the text."""

    code: Code
    column: str = ""
    detail: str = ""


@dataclass(frozen=True)
class TableContract:
    """A table, its columns that take part (None: all) and the key."""

    table: TableState
    columns: Collection[str] | None = None
    key: Collection[str] = ()

    def problems(self) -> Iterator[FoundProblem]:
        """Yield all problems: of the table, then of its columns in their order."""
        yield from self._table_problems()
        for field in self.table.fields:
            takes_part = self.columns is None or field["name"] in self.columns
            for code, detail in self._column_problems(field):
                if takes_part or code not in _OF_TAKING_PART:
                    yield FoundProblem(code, field["name"], detail)

    def find(self, *codes: Code) -> FoundProblem | None:
        """Return the first of some problems that the table has, in the order of the codes, or None."""
        found = {each.code: each for each in reversed([*self.problems()])}
        return next((found[code] for code in codes if code in found), None)

    def explain(self, texts: Texts) -> Problem | None:
        """Return the text of the first of some problems that the table has, in the order of the texts."""
        found = self.find(*texts)
        if found is None:
            return None
        facts = {"path": self.table.path, "column": found.column, "detail": found.detail}
        why, next_step = texts[found.code]
        return why.format(**facts), next_step.format(**facts)

    def _table_problems(self) -> Iterator[FoundProblem]:
        table = self.table
        if others := table.features - _KNOWN_FEATURES - _HEEDED_FEATURES:
            yield FoundProblem(Code.FEATURE, detail=", ".join(sorted(others)))
        if heeded := table.features & _HEEDED_FEATURES:
            yield FoundProblem(Code.HEEDED_FEATURE, detail=", ".join(sorted(heeded)))
        if table.reader_version > _LAST_READER_VERSION or table.writer_version > _LAST_WRITER_VERSION:
            yield FoundProblem(Code.PROTOCOL, detail=f"{table.reader_version}/{table.writer_version}")
        # Only at the level Serializable, the default, does an append of a key conflict with the MERGE that inserts it.
        level = table.properties.get(_ISOLATION_LEVEL, _SERIALIZABLE)
        if level.casefold() != _SERIALIZABLE.casefold():
            yield FoundProblem(Code.ISOLATION, detail=level)
        if not is_local(table.path):
            if unfenced := table.features & _KNOWN_FEATURES - COMMITTED_BY_DELTA_RS:
                yield FoundProblem(Code.UNFENCED, detail=", ".join(sorted(unfenced)))
            if _TRANSACTION_RETENTION in table.properties:
                yield FoundProblem(Code.EXPIRING)
        if table.is_append_only:
            yield FoundProblem(Code.APPEND_ONLY)
        if self.columns is not None and set(self.columns) <= set(table.metadata.partition_columns):
            yield FoundProblem(Code.ONLY_PARTITIONS)

    def _column_problems(self, field: Field) -> Iterator[tuple[Code, str]]:
        name, metadata, ddl = field["name"], field["metadata"], ddl_of(field["type"])
        leaves = leaf_types(field["type"])
        parts = [*nested_names(field["type"])]
        mapped = [part for part in parts if not _MAPPING_CHARACTERS.isdisjoint(part)]
        declared = str(metadata.get(CHAR_VARCHAR, ""))
        words = (
            words
            for type_, words in _UNSUPPORTED_TYPES.items()
            if any(leaf.startswith(type_) for leaf in leaves)
        )
        has_value = DEFAULT_EXPRESSION in metadata or GENERATION_EXPRESSION in metadata
        is_left_out = self.columns is not None and name not in self.columns
        # Delta's log has the collation of a text next to its type.
        is_collated = "__COLLATIONS" in metadata or "collate" in ddl.lower()
        found = {
            Code.FEED_NAME: name.lower() in FEED_COLUMNS,
            Code.MERGE_NAME: name.lower() in _OF_THE_MERGE,
            Code.MAPPED_NAME: not _MAPPING_CHARACTERS.isdisjoint(name) and repr(name),
            Code.MAPPED_PART: bool(mapped) and repr(mapped[0]),
            Code.BACKTICK: "`" in name,
            Code.BACKTICK_PART: "`" in ddl and ddl,
            Code.VOID: "void" in leaves and "VOID",
            Code.TYPE: next(words, False),
            Code.COLLATED: is_collated,
            Code.IDENTITY: any(key.startswith("delta.identity.") for key in metadata),
            Code.GENERATED: GENERATION_EXPRESSION in metadata,
            Code.INNER_RULE: has_not_null_parts(field["type"]) or bool(invariants([field])),
            Code.INNER_LENGTH: "char" in declared and ddl != "string",
            Code.UNFILLED: is_left_out and not field["nullable"] and not has_value,
            Code.KEY_TYPE: name in self.key
            and (is_collated or ddl.partition("(")[0] not in _KEY_TYPES)
            and ddl,
            Code.KEY_PADDED: name in self.key and bool(padded_types(field)),
        }
        for code, detail in found.items():
            if detail:
                yield code, detail if isinstance(detail, str) else ""


_UNKNOWN_FEATURE = (
    "table '{path}' uses the Delta table feature {detail}, which this mergerepl does not know",
    "Drop the feature with ALTER TABLE … DROP FEATURE, or use a later mergerepl.",
)

_OF_SESSIONS: Texts = {
    Code.FEATURE: _UNKNOWN_FEATURE,
    Code.PROTOCOL: (
        "table '{path}' has Delta protocol {detail}; this mergerepl knows up to "
        f"{_LAST_READER_VERSION}/{_LAST_WRITER_VERSION}",
        "Use a later mergerepl.",
    ),
    Code.ISOLATION: (
        f"table '{{path}}' has {_ISOLATION_LEVEL} = {{detail}}: a row that a user inserts while a session writes could "
        "stay beside the one that the session brings, two rows of one key",
        f"Set it to {_SERIALIZABLE}.",
    ),
    Code.MERGE_NAME: (
        "column '{column}' of table '{path}' has a name that Delta's MERGE needs for itself",
        "Rename the column.",
    ),
}
_APPEND_ONLY: Texts = {
    Code.APPEND_ONLY: (
        "table '{path}' is append-only (delta.appendOnly = true), so updates and deletes of other replicas could not be "
        "applied",
        "Unset the property, or leave the table out.",
    )
}
OF_STORES: Texts = {
    Code.UNFENCED: (
        "table '{path}' is in an object store and uses the Delta table feature {detail}. An agent that takes over from one "
        "that was killed commits to each table through delta-rs first, which cannot commit to a table with this feature",
        "Drop the feature with ALTER TABLE … DROP FEATURE, or keep the replica in a folder.",
    ),
    Code.EXPIRING: (
        f"table '{{path}}' is in an object store and has the property {_TRANSACTION_RETENTION}: Delta would forget which "
        "agent may write to it",
        f"Unset it with ALTER TABLE … UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}').",
    ),
}
"""Problems that keep fences away from a table in a store."""
OF_REPLICAS: Texts = {**_OF_SESSIONS, Code.HEEDED_FEATURE: _UNKNOWN_FEATURE, **OF_STORES, **_APPEND_ONLY}
"""Problems that bar a table from a merge publication, at any replica."""

_NO_TYPE = (
    "its column '{column}' is {detail}, which cannot be replicated",
    "Leave the column out with `columns:`, or change its type.",
)
OF_REPLICATED_COLUMNS: Texts = {
    Code.VOID: _NO_TYPE,
    Code.TYPE: _NO_TYPE,
    Code.COLLATED: (
        "its column '{column}' is a collated string, which this version of Delta cannot change",
        "Leave the column out with `columns:`, or give it the default collation.",
    ),
    Code.IDENTITY: (
        "its column '{column}' is an identity column (GENERATED … AS IDENTITY): each replica would give out the same "
        "numbers, and Delta allows no values from elsewhere",
        "Use keys that are unique everywhere, such as GUIDs, in an ordinary column.",
    ),
}
"""Problems that bar a column from replication, at any replica."""


def write_problem(table: TableState, *, takes_away: bool) -> Problem | None:
    """Return why a MERGE into a published table would fail if it updates or deletes (`takes_away`) or only inserts."""
    return TableContract(table).explain({**_OF_SESSIONS, **_APPEND_ONLY} if takes_away else _OF_SESSIONS)
