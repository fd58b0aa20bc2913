"""Whether a table can be published as an article: everything that its Delta log says, before any row is read."""

from collections.abc import Sequence
from pathlib import Path

from mergerepl.delta.metadata import DEFAULT_EXPRESSION, FEED_COLUMNS, GENERATION_EXPRESSION
from mergerepl.delta.tables import TableState, open_table, table_place_problem
from mergerepl.delta.types import Field, ddl_of, leaf_types, nested_names
from mergerepl.errors import PublicationError, StoreError
from mergerepl.model.publication import Article
from mergerepl.publish.check_resolver import check_resolver
from mergerepl.systables.compact import SYSTEM_PREFIX
from mergerepl.systables.conflicts_info import CONFLICT_COLUMNS

Problem = tuple[str, str]
"""Why a table cannot take part, and what to do."""

KNOWN_FEATURES = frozenset(
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
"""Table features that Spark reads and writes here without loss. Others are refused: their meaning is unknown."""

_HEEDED_FEATURES = frozenset(
    {"checkpointProtection", "icebergCompatV1", "icebergCompatV2", "materializePartitionColumns"}
)
"""Features that a published table may get later, as DROP FEATURE gives it the first: Spark writes it as they ask."""

_LAST_READER_VERSION, _LAST_WRITER_VERSION = 3, 7
_ISOLATION_LEVEL, _SERIALIZABLE = "delta.isolationLevel", "Serializable"

_KEY_TYPES = frozenset(
    {"byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz", "boolean", "binary"}
)
_UNSUPPORTED_TYPES = {
    "void": "VOID",
    "variant": "VARIANT",
    "calendar_interval": "an interval",
    "interval": "an interval",
}
_RESERVED_PREFIX = "__mr_"
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
delta-spark 4.4.0. `_metadata` with deletion vectors only, which a table may get at any time."""

_MAPPING_CHARACTERS = " ,;{}()\n\t="


def read_article_table(article: Article, path: Path) -> TableState:
    """Return the facts of the table an article names.

    Raises: PublicationError saying what is there instead of a readable Delta table.
    """
    try:
        if problem := table_place_problem(path):
            raise _refusal(
                article, f"its table '{path}' {problem}", "Check `table:`, or create the table first."
            )
        return open_table(path)
    except StoreError as error:
        raise PublicationError(f"Article '{article.name}': {error.message}", article=article.name) from error


def check_article(article: Article, table: TableState) -> None:
    """Check that the table can be an article.

    Raises: PublicationError naming the article, the column or property, and what to do.
    """
    _refuse_if(article, table_problem(table))
    _check_column_names(article, table)
    columns = published_fields(article, table)
    _refuse_if(article, column_problem(columns))
    _check_identity(article, table)
    _check_left_out(article, table, {field["name"] for field in columns})
    types = {field["name"]: ddl_of(field["type"]) for field in columns}
    check_resolver(article, types, table.generated_columns)


def published_fields(article: Article, table: TableState) -> list[Field]:
    """Return the published columns, in table order; the identity is always among them.

    The columns of Compact change tracking are never published: each database has its own numbers.

    Raises: PublicationError if `columns` names one that the table does not have, or one twice.
    """
    if article.columns is None:
        return [field for field in table.fields if not field["name"].startswith(SYSTEM_PREFIX)]
    names = _all_found(article, table, article.columns, "`columns`")
    wanted = {*names, *_all_found(article, table, article.identity, "the key")}
    return [field for field in table.fields if field["name"] in wanted]


def _all_found(article: Article, table: TableState, names: Sequence[str], where: str) -> list[str]:
    for name in names:
        if table.field(name) is None:
            near = next((f["name"] for f in table.fields if f["name"].lower() == name.lower()), None)
            hint = f"Did you mean '{near}'?" if near else f"The table has {_names(table)}."
            raise _refusal(
                article, f"{where} names column '{name}', which table '{table.path}' does not have", hint
            )
    if len(set(names)) != len(names):
        raise _refusal(article, f"{where} names a column twice", "Name each once.")
    return list(names)


def _names(table: TableState, most: int = 12) -> str:
    names = [field["name"] for field in table.fields]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def table_problem(table: TableState) -> Problem | None:
    """Return why a table cannot take part at any replica, and what to do; None if it can."""
    return (
        _protocol_problem(table, KNOWN_FEATURES)
        or _isolation_problem(table)
        or _append_only_problem(table)
        or _name_problem(table)
    )


def write_problem(table: TableState, *, takes_away: bool) -> Problem | None:
    """Return why a MERGE into a published table would fail, one that updates or deletes (`takes_away`) or only inserts."""
    problem = _protocol_problem(table, KNOWN_FEATURES | _HEEDED_FEATURES) or _isolation_problem(table)
    problem = problem or _name_problem(table)
    return problem or (_append_only_problem(table) if takes_away else None)


def _protocol_problem(table: TableState, known: frozenset[str]) -> Problem | None:
    unknown = sorted(table.features - known)
    if unknown:
        return (
            f"table '{table.path}' uses the Delta table feature {', '.join(unknown)}, which this mergerepl "
            "does not know",
            "Drop the feature with ALTER TABLE … DROP FEATURE, or use a later mergerepl.",
        )
    if table.reader_version > _LAST_READER_VERSION or table.writer_version > _LAST_WRITER_VERSION:
        return (
            f"table '{table.path}' has Delta protocol {table.reader_version}/{table.writer_version}; this "
            f"mergerepl knows up to {_LAST_READER_VERSION}/{_LAST_WRITER_VERSION}",
            "Use a later mergerepl.",
        )
    return None


def _isolation_problem(table: TableState) -> Problem | None:
    """Return a problem if Delta would accept appends beside a MERGE that read the table before; else None.

    Only at the level Serializable does an append of a key conflict with the MERGE that inserts it. Delta takes a table that
    does not state its level for Serializable.
    """
    level = table.properties.get(_ISOLATION_LEVEL, _SERIALIZABLE)
    if level.casefold() == _SERIALIZABLE.casefold():
        return None
    return (
        f"table '{table.path}' has {_ISOLATION_LEVEL} = {level}: a row that a user inserts while a session writes could "
        "stay beside the one that the session brings, two rows of one key",
        f"Set it to {_SERIALIZABLE}.",
    )


def _name_problem(table: TableState) -> Problem | None:
    """Return a problem if a column has a name that Delta's MERGE needs for itself, and what to do; else None."""
    for field in table.fields:
        if field["name"].lower() in _OF_THE_MERGE:
            return (
                f"column '{field['name']}' of table '{table.path}' has a name that Delta's MERGE needs for itself",
                "Rename the column.",
            )
    return None


def _append_only_problem(table: TableState) -> Problem | None:
    """Return a problem if a table takes no updates or deletes, and what to do; else None."""
    if not table.is_append_only:
        return None
    return (
        f"table '{table.path}' is append-only (delta.appendOnly = true), so updates and deletes of other "
        "replicas could not be applied",
        "Unset the property, or leave the table out.",
    )


def _check_column_names(article: Article, table: TableState) -> None:
    conflict_columns = {column.name.lower() for column in CONFLICT_COLUMNS}
    for name in (field["name"] for field in table.fields):
        lower = name.lower()
        if lower in FEED_COLUMNS:
            raise _refusal(
                article,
                f"its column '{name}' has a name that Delta's Change Data Feed needs for itself, so that Delta cannot "
                "turn the feed on, whether the column is published or not",
                "Rename the column.",
            )
    for field in published_fields(article, table):
        name = field["name"]
        lower = name.lower()
        is_identity = lower == "rowguid" and name == article.rowguid
        if lower.startswith(_RESERVED_PREFIX) or (lower in conflict_columns and not is_identity):
            hint = f" (or publish it as the identity: `rowguid: {name}`)" if lower == "rowguid" else ""
            raise _refusal(
                article,
                f"its column '{name}' has a name that mergerepl needs for itself",
                f"Rename the column, or leave it out with `columns:`{hint}.",
            )
        if any(character in _MAPPING_CHARACTERS for character in name):
            raise _refusal(
                article,
                f"its column {name!r} has a name that Delta allows only with column mapping, which replicas "
                "do not share",
                "Rename the column, or leave it out with `columns:`.",
            )
        for part in nested_names(field["type"]):
            if any(character in _MAPPING_CHARACTERS for character in part):
                raise _refusal(
                    article,
                    f"its column '{name}' has a part with the name {part!r}, which Delta allows only with column mapping; "
                    "replicas do not share that",
                    "Rename the part, or leave the column out with `columns:`.",
                )


def column_problem(columns: Sequence[Field]) -> Problem | None:
    """Return why one of these columns cannot take part at any replica, and what to do; None if all can."""
    for field in columns:
        for name, words in _UNSUPPORTED_TYPES.items():
            if any(leaf.startswith(name) for leaf in leaf_types(field["type"])):
                return (
                    f"its column '{field['name']}' is {words}, which cannot be replicated",
                    "Leave the column out with `columns:`, or change its type.",
                )
        if "__COLLATIONS" in field["metadata"]:
            return (
                f"its column '{field['name']}' is a collated string, which this version of Delta cannot "
                "change",
                "Leave the column out with `columns:`, or give it the default collation.",
            )
        if any(name.startswith("delta.identity.") for name in field["metadata"]):
            return (
                f"its column '{field['name']}' is an identity column (GENERATED … AS IDENTITY): each replica "
                "would give out the same numbers, and Delta allows no values from elsewhere",
                "Use keys that are unique everywhere, such as GUIDs, in an ordinary column.",
            )
    return None


def _check_identity(article: Article, table: TableState) -> None:
    if not article.identity:
        raise _refusal(article, "it has no key", "Name the columns that identify a row: `key: [column, …]`.")
    for name in _all_found(article, table, article.identity, "the key"):
        field = table.field(name)
        assert field is not None
        if article.rowguid and field["type"] != "string":
            raise _refusal(
                article,
                f"its rowguid column '{name}' is {ddl_of(field['type'])}, not string",
                "Name a string column of GUIDs, or give `key:` instead.",
            )
        data_type = field["type"]
        is_supported = isinstance(data_type, str) and (
            data_type in _KEY_TYPES or data_type.startswith("decimal")
        )
        if not is_supported:
            raise _refusal(
                article,
                f"its key column '{name}' is {ddl_of(data_type)}, whose values have no one exact form to "
                "compare by",
                "Use a key of integers, strings, dates, timestamps, decimals, booleans or binaries.",
            )


def _check_left_out(article: Article, table: TableState, published: set[str]) -> None:
    if published <= set(table.metadata.partition_columns):
        raise _refusal(
            article,
            "`columns:` leaves out all columns but those that the table is partitioned by, and Delta has no table of such "
            "columns alone: there could be no copy",
            "Publish another column, too.",
        )
    for field in table.fields:
        has_value = {DEFAULT_EXPRESSION, GENERATION_EXPRESSION} & set(field["metadata"])
        if field["name"] not in published and not field["nullable"] and not has_value:
            raise _refusal(
                article,
                f"its column '{field['name']}' is left out by `columns:` but is NOT NULL without a default, "
                "so rows inserted at a subscriber could not be stored here",
                "Publish the column, or allow NULLs or give it a default.",
            )


def _refuse_if(article: Article, problem: Problem | None) -> None:
    if problem is not None:
        raise _refusal(article, *problem)


def _refusal(article: Article, why: str, next_step: str) -> PublicationError:
    return PublicationError(
        f"Article '{article.name}' cannot be published: {why}. {next_step}",
        article=article.name,
        table=article.table,
    )
