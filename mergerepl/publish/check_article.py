"""Check that a table can be published as an article, by its Delta log, before any row is read."""

from collections.abc import Collection, Mapping, Sequence

from mergerepl.delta.contract.problems import (
    OF_REPLICAS,
    OF_REPLICATED_COLUMNS,
    Code,
    Problem,
    TableContract,
    Texts,
)
from mergerepl.delta.tables import TableState, open_table, table_place_problem
from mergerepl.delta.types import Field, ddl_of
from mergerepl.errors import PublicationError, StoreError
from mergerepl.model.publication import Article, Tracking
from mergerepl.model.resolvers import RESOLVERS, TypeFamily
from mergerepl.model.tracking_options import SYSTEM_PREFIX
from mergerepl.store.location import Location
from mergerepl.systables.conflicts_info import CONFLICT_COLUMNS

_RESERVED_PREFIX = "__mr_"
_MOST_NAMED = 12
_LEAVE_OUT = "Rename the column, or leave it out with `columns:`."

_OF_NAMES: Texts = {
    Code.FEED_NAME: (
        "its column '{column}' has a name that Delta's Change Data Feed needs for itself, so that Delta cannot turn the "
        "feed on, whether the column is published or not",
        "Rename the column.",
    ),
    Code.MAPPED_NAME: (
        "its column {detail} has a name that Delta allows only with column mapping, which replicas do not share",
        _LEAVE_OUT,
    ),
    Code.MAPPED_PART: (
        "its column '{column}' has a part with the name {detail}, which Delta allows only with column mapping; replicas do "
        "not share that",
        "Rename the part, or leave the column out with `columns:`.",
    ),
}
_OF_KEY: Texts = {
    Code.KEY_TYPE: (
        "its key column '{column}' is {detail}, whose values have no one exact form to compare by",
        "Use a key of integers, strings, dates, timestamps, decimals, booleans or binaries.",
    )
}
_OF_LEFT_OUT: Texts = {
    Code.ONLY_PARTITIONS: (
        "`columns:` leaves out all columns but those that the table is partitioned by, and Delta has no table of such "
        "columns alone: there could be no copy",
        "Publish another column, too.",
    ),
    Code.UNFILLED: (
        "its column '{column}' is left out by `columns:` but is NOT NULL without a default, so rows inserted at a "
        "subscriber could not be stored here",
        "Publish the column, or allow NULLs or give it a default.",
    ),
}


def read_article_table(article: Article, path: Location) -> TableState:
    """Read the table an article names.

    Raises: PublicationError naming what the path has in place of a readable Delta table.
    """
    try:
        if problem := table_place_problem(path):
            raise refusal(
                article, f"its table '{path}' {problem}", "Check `table:`, or create the table first."
            )
        return open_table(path)
    except StoreError as error:
        raise PublicationError(f"Article '{article.name}': {error.message}", article=article.name) from error


def check_article(article: Article, table: TableState) -> None:
    """Check that the table can be an article.

    Raises: PublicationError naming the article, the column or property, and the next step.
    """
    _refuse_if(article, TableContract(table).explain(OF_REPLICAS))
    columns = published_fields(article, table)
    names = [field["name"] for field in columns]
    contract = TableContract(table, names, article.identity)
    _check_reserved_names(article, names)
    _refuse_if(article, contract.explain({**_OF_NAMES, **OF_REPLICATED_COLUMNS}))
    _check_identity(article, table)
    _refuse_if(article, contract.explain({**_OF_KEY, **_OF_LEFT_OUT}))
    types = {field["name"]: ddl_of(field["type"]) for field in columns}
    check_resolver(article, types, table.generated_columns)


def published_fields(article: Article, table: TableState) -> list[Field]:
    """Return the published columns, in table order; the identity is always included.

    The columns of Compact change tracking are never published: each database has its own numbers.

    Raises: PublicationError if `columns` names a column that the table lacks, or one twice.
    """
    if article.columns is None:
        return [field for field in table.fields if not field["name"].startswith(SYSTEM_PREFIX)]
    names = _all_found(article, table, article.columns, "`columns`")
    wanted = {*names, *_all_found(article, table, article.identity, "the key")}
    return [field for field in table.fields if field["name"] in wanted]


def _all_found(article: Article, table: TableState, names: Sequence[str], where: str) -> list[str]:
    for name in names:
        if table.field(name) is None:
            known = [field["name"] for field in table.fields]
            near = next((each for each in known if each.lower() == name.lower()), None)
            more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
            hint = (
                f"Did you mean '{near}'?"
                if near
                else f"The table has {', '.join(known[:_MOST_NAMED])}{more}."
            )
            raise refusal(
                article, f"{where} names column '{name}', which table '{table.path}' does not have", hint
            )
    if len(set(names)) != len(names):
        raise refusal(article, f"{where} names a column twice", "Name each once.")
    return list(names)


def _check_reserved_names(article: Article, published: Sequence[str]) -> None:
    conflict_columns = {column.name.lower() for column in CONFLICT_COLUMNS}
    for name in published:
        lower = name.lower()
        is_identity = lower == "rowguid" and name == article.rowguid
        if lower.startswith(_RESERVED_PREFIX) or (lower in conflict_columns and not is_identity):
            hint = f" (or publish it as the identity: `rowguid: {name}`)" if lower == "rowguid" else ""
            raise refusal(
                article,
                f"its column '{name}' has a name that mergerepl needs for itself",
                f"{_LEAVE_OUT.removesuffix('.')}{hint}.",
            )


def _check_identity(article: Article, table: TableState) -> None:
    if not article.identity:
        raise refusal(article, "it has no key", "Name the columns that identify a row: `key: [column, …]`.")
    for name in _all_found(article, table, article.identity, "the key"):
        field = table.field(name)
        assert field is not None
        if article.rowguid and field["type"] != "string":
            raise refusal(
                article,
                f"its rowguid column '{name}' is {ddl_of(field['type'])}, not string",
                "Name a string column of GUIDs, or give `key:` instead.",
            )


def _refuse_if(article: Article, problem: Problem | None) -> None:
    if problem is not None:
        raise refusal(article, *problem)


def refusal(article: Article, why: str, next_step: str, **facts: str) -> PublicationError:
    """The error for a table that cannot be an article."""
    return PublicationError(
        f"Article '{article.name}' cannot be published: {why}. {next_step}",
        article=article.name,
        **{"table": article.table, **facts},
    )


_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_TYPES = {
    TypeFamily.NUMBER: (*_INTEGERS, "decimal", "float", "double"),
    TypeFamily.TIME: ("date", "timestamp", "timestamp_ntz"),
    TypeFamily.TEXT: ("string",),
    TypeFamily.ARRAY: ("array",),
    TypeFamily.FIELDS: ("struct", "map"),
}
_MOST_DIGITS = 35
"""Digits of a decimal that is computed with: sums of three, and half of one, are exact in Spark's 38."""


def check_resolver(article: Article, types: Mapping[str, str], generated: Collection[str]) -> None:
    """Check the columns that an article names for its resolver.

    `types` are the published columns with their types as Spark DDL, `generated` those that Delta computes.

    Raises: PublicationError naming the article, the column and the next step.
    """
    resolver = RESOLVERS.get(article.resolver)
    if (
        resolver is None
        or (resolver.reads is not None) != bool(article.resolver_info.columns)
        or not (resolver.by_row or article.tracking is Tracking.COLUMN)
    ):
        # A file with these is refused when it is read.
        raise refusal(
            article,
            f"it names the resolver '{article.resolver}', which is unknown, or without the column or the tracking that it "
            "needs",
            "See the table of resolvers in docs/conflicts.md.",
        )
    for name in article.resolver_info.columns:
        problem = _problem(name, article, types, generated)
        if problem is None and resolver.reads is not None:
            data_type = types[name]
            head = data_type.partition("<")[0].partition("(")[0]
            if head not in _TYPES[resolver.reads] or (
                resolver.reads is TypeFamily.ARRAY and "map<" in data_type
            ):
                problem = f"is {data_type}, and it must be {resolver.reads.value}"
            elif (
                resolver.makes_value
                and head == "decimal"
                and int(data_type[8:].partition(",")[0]) > _MOST_DIGITS
            ):
                problem = f"is {data_type}, and it can have {_MOST_DIGITS} digits at most to be computed with"
        if problem is not None:
            why = f"its resolver '{resolver.name}' names column '{name}', which {problem}"
            raise refusal(article, why, "Name another column, or another resolver.")


def _problem(name: str, article: Article, types: Mapping[str, str], generated: Collection[str]) -> str | None:
    if name not in types:
        near = next((other for other in types if other.lower() == name.lower()), None)
        return f"is not published (did you mean '{near}'?)" if near else "is not published"
    if name in article.identity:
        return "identifies a row"
    return "Delta computes (GENERATED ALWAYS AS)" if name in generated else None
