"""The tables that `apply` makes at a replica: system tables, created empty and widened when an article joins.

Creating them needs no engine; a column of a type that needs a table feature is added through Spark. Tables that an
interrupted initialisation left are recognised here, and dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.properties import retention_properties
from mergerepl.delta.tables import (
    INTERVAL_PROPERTY,
    OWN_INTERVAL,
    NewTable,
    add_columns,
    commits,
    create_table,
    head_version,
    is_delta_table,
    list_logs,
    next_transaction,
    open_table,
    read_commit,
    retype_columns,
)
from mergerepl.delta.types import Field, Json, ddl_of, field, is_widening, json_of, nullable
from mergerepl.errors import PublicationError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.definition import Definition
from mergerepl.replica.application_ids import REPAIR_APP_ID, copy_app_id
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.store.register import forget_tables, register_of
from mergerepl.store.storage import is_folder, is_local, keep_former, remove_folder, remove_leftover, rename
from mergerepl.systables import conflicts_info, contents, partitions, registry, replinfo, tombstone
from mergerepl.systables.catalog import ArticleRow
from mergerepl.systables.contents import base_column, row_column
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMAGE_TABLES = (contents.NAME, tombstone.NAME)
"""The tables that hold row images, one column per article."""

_STATS_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(IMAGE_TABLES, "tablenick,generation,seq"),
    **dict.fromkeys((partitions.CURRENT.name, partitions.PAST.name), "tablenick,generation,seq,partition_id"),
    partitions.GENERATION_PARTITIONS.name: "generation,seq,partition_id",
}


def create_replica(
    root: Location,
    info: ReplicaInfo,
    images: Mapping[int, Sequence[Field]],
    *,
    retention: timedelta,
    mark: CommitMark,
) -> None:
    """Create all system tables of a new replica; MSmerge_replinfo, which marks it as one, comes last.

    `info` is the row of MSmerge_replinfo, `images` are the published columns known so far by article nickname.
    `retention` is how long files must live that a session may still read; `mark` is for the commits.
    """
    control = Replica(root).control
    has_leftovers = is_folder(control.folder)
    list_logs([control.path(table.name) for table in registry.ALL])
    for table in registry.CONTROL_PLANE:
        if table.name != replinfo.NAME:
            control.replace(table, [])
    for data in registry.DATA_PLANE:
        # Tables of an interrupted first `apply` are empty, and may lack the articles of this one.
        if has_leftovers and is_folder(control.path(data.name)):
            remove_leftover(control.path(data.name))
            forget_tables(root)
        columns = [field(column.name, json_of(column.type)) for column in data.columns]
        if data.name in IMAGE_TABLES:
            columns += image_fields(images)
        create_table(control.path(data.name), NewTable(columns, (), _properties(data.name, retention)), mark)
    control.replace(replinfo.TABLE, [info])


def image_fields(images: Mapping[int, Sequence[Field]]) -> list[Field]:
    """Return the two image columns of each article, for rows and for their ancestors.

    An article may get a resolver that reads the latter at any time; empty, they cost nothing.
    """
    return [
        field(name_of(nickname), image_type(columns))
        for nickname, columns in images.items()
        for name_of in (row_column, base_column)
    ]


def image_type(columns: Sequence[Field]) -> Json:
    """Return the type of an article's images: a struct whose field i is its i-th published column."""
    fields = [field(f"c{i}", nullable(column["type"])) for i, column in enumerate(columns)]
    return {"type": "struct", "fields": fields}


def _properties(name: str, retention: timedelta) -> dict[str, str]:
    properties = {INTERVAL_PROPERTY: OWN_INTERVAL, **retention_properties({}, retention)}
    if name in _STATS_COLUMNS:
        properties[STATS_PROPERTY] = _STATS_COLUMNS[name]
    return properties


def add_image_columns(
    spark_of: Callable[[], "SparkSession"], root: Location, images: Mapping[int, Sequence[Field]]
) -> None:
    """Add the image columns that contents and tombstone do not have yet."""
    for name in IMAGE_TABLES:
        path = root / FOLDER / name
        present = {column["name"] for column in open_table(path).fields}
        add_columns(spark_of, path, [each for each in image_fields(images) if each["name"] not in present])


def definition_fields(nickname: int, definition: Definition) -> list[Field]:
    """Return the two image columns of one definition of an article."""
    image = definition.image_column
    parts = [
        field(name, nullable(json_of(type_))) for name, type_ in zip(image.fields, image.types, strict=True)
    ]
    type_: Json = {"type": "struct", "fields": parts}
    return [field(name_of(nickname, image.version), type_) for name_of in (row_column, base_column)]


def add_definition_columns(
    spark_of: Callable[[], "SparkSession"], root: Location, row: ArticleRow, definition: Definition
) -> None:
    """Add what the tables of a replica lack for a definition: image columns, and columns of the conflict table."""
    for name in IMAGE_TABLES:
        path = root / FOLDER / name
        present = {column["name"] for column in open_table(path).fields}
        wanted = definition_fields(row.nickname, definition)
        add_columns(spark_of, path, [each for each in wanted if each["name"] not in present])
    path = root / FOLDER / row.conflict_table
    kept = {column["name"].lower(): column for column in open_table(path).fields}
    columns = [field(each.name, nullable(json_of(each.type))) for each in definition.fields]
    add_columns(spark_of, path, [each for each in columns if each["name"].lower() not in kept])
    known = ((kept[each.name.lower()], each.type) for each in definition.fields if each.name.lower() in kept)
    wider = {there["name"]: type_ for there, type_ in known if is_widening(ddl_of(there["type"]), type_)}
    if wider:
        # It is rewritten: with type widening, delta-rs could not write it.
        mark = CommitMark("schema", f"schema:conflicts:{definition.version}")
        retype_columns(spark_of(), path, wider, next_transaction(path, REPAIR_APP_ID, mark))


def create_conflict_table(
    root: Location,
    name: str,
    columns: Sequence[Field],
    *,
    spark_of: Callable[[], "SparkSession"],
    retention: timedelta,
    mark: CommitMark,
) -> None:
    """Create the conflict table of an article: its columns, then those about the conflict.

    If the article was published before, its table gets the columns it lacks. A column that has another type now is kept
    under another name; losing rows are never removed.
    """
    path = root / FOLDER / name
    wanted = _conflict_fields(columns)
    if is_delta_table(path):
        present = {column["name"].lower(): column["type"] for column in open_table(path).fields}
        missing = [column for column in wanted if column["name"].lower() not in present]
        others = [column for column in wanted if column not in missing]
        if all(ddl_of(present[column["name"].lower()]) == ddl_of(column["type"]) for column in others):
            add_columns(spark_of, path, missing)
            return
        keep_former(path)
        forget_tables(path)
    create_table(path, NewTable(wanted, (), _properties(name, retention)), mark)


def _conflict_fields(columns: Sequence[Field]) -> list[Field]:
    """Return the columns of a conflict table; a `rowguid` identity of the article appears once."""
    own = [field(column["name"], nullable(column["type"])) for column in columns]
    taken = {column["name"].lower() for column in own}
    about = [
        field(column.name, json_of(column.type))
        for column in conflicts_info.CONFLICT_COLUMNS
        if column.name.lower() not in taken
    ]
    return [*own, *about]


_DROPPED = f"{FOLDER}.dropped"


def initialise_mark(subid: str, step: str, replid: str = "") -> CommitMark:
    """Return the mark of a commit that initialises a subscription."""
    return CommitMark(copy_app_id(subid), f"{SETUP}:{step}", replid)


def is_unfinished(table: Location, subid: str) -> bool:
    """True if an initialisation of this subscription created the table."""
    if not is_delta_table(table):
        return False
    try:
        mark = read_commit(table, 0).mark
    except StoreError:
        return False
    return mark is not None and mark.session == initialise_mark(subid, "").session


def check_unwritten(root: Location, table: Location) -> None:
    """Check that no user has written to a table that an initialisation created: no user's write is dropped.

    Raises: PublicationError.
    """
    head = head_version(table)
    for commit in commits(table, from_version_exclusive=0, through_version_inclusive=head):
        if commit.data_change and commit.kind != SETUP:
            raise PublicationError(
                f"Subscriber '{root}' would get a copy at '{table}'. There is a table, which an initialisation "
                f"made and which has been written to since (version {commit.version}): that initialisation was "
                "interrupted, or the table's article ended. Move the table away, run `mergerepl apply` again, and put "
                "those rows in afterwards.",
                replica=str(root),
                table=str(table),
            )


def drop_unfinished(tables: Sequence[Location], subid: str) -> None:
    """Remove the tables that an unfinished initialisation of this subscription created."""
    for table in tables:
        aside = table.with_name(f".{table.name}.mergerepl-dropped")
        remove_leftover(aside)
        if is_unfinished(table, subid):
            check_unwritten(table.parent, table)
            _drop(table, aside)


def drop_unfinished_replica(root: Location, subid: str) -> None:
    """Remove the system tables of a replica that this subscription's initialisation created.

    Only for a subscription that is not active, at a replica that no other publication has joined since: the mark stays
    on the tables for good.
    """
    dropped = root / _DROPPED
    remove_leftover(dropped)
    if is_unfinished(root / FOLDER / contents.NAME, subid):
        _drop(root / FOLDER, dropped)


def _drop(folder: Location, aside: Location) -> None:
    """Rename a folder, then remove it: a half-removed table or replica would pass for a user's.

    A store removes up to 1000 objects by one request, logs first.
    """
    if is_local(folder):
        rename(folder, aside)
        failpoint("unfinished.dropping")
    else:
        # The folder may be a later holder's.
        register_of(folder).settle()
    remove_folder(aside if is_local(folder) else folder)
    forget_tables(folder)
