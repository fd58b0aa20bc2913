"""Values and columns of system tables that somebody removed or changed by hand: named where they are needed."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta.log import head_version, log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.small_tables import Row
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, conflicts_info, genhistory, replinfo, sessions
from mergerepl.systables.table import TypedTable
from tests.bad_inputs.conftest import Refused, run
from tests.networks import FILE, Network, commit

pytestmark = pytest.mark.usefixtures("no_engine")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = "0b5e38c1-5f0e-4f4c-9d0e-0a8f7c1f5d11"
SYNC = ("sync", "north", "-f", "hq")
STATUS, PENDING, HISTORY, CONFLICTS = (("status",), ("pending",), ("history",), ("conflicts", "list"))
VALIDATE = ("validate", "north", "-f", "hq", "--level", "rowcount")
APPLY = ("apply", "-f", FILE)
NEEDED_BY: dict[TypedTable[Any], tuple[tuple[str, ...], ...]] = {
    catalog.PUBLICATIONS: (STATUS, SYNC, APPLY),
    catalog.ARTICLES: (STATUS, PENDING, VALIDATE, SYNC, APPLY),
    catalog.SUBSCRIPTIONS: (STATUS, PENDING, VALIDATE, SYNC, APPLY),
    genhistory.TABLE: (PENDING, VALIDATE, SYNC),
    replinfo.TABLE: (STATUS, PENDING, HISTORY, CONFLICTS, VALIDATE, SYNC, ("capture",), APPLY),
    sessions.SESSIONS: (HISTORY,),
    sessions.ARTICLEHISTORY: (HISTORY,),
    conflicts_info.TABLE: (CONFLICTS,),
}


def rows_of(network: Network, table: TypedTable[Any]) -> list[Row]:
    """Return rows that the tables which are empty in a new network could have."""
    known = {"session_id": ID, "start_time": NOW}
    return {
        genhistory.TABLE: [
            {
                "guidsrc": ID,
                "pubid": Replica(network.root("hq")).control.rows(catalog.PUBLICATIONS)[0].pubid,
                "generation": 1,
                "art_nick": 1,
                "nicknames": [1, 2, 3],
                "coldate": NOW,
                "genstatus": 1,
                "changecount": 0,
                "seq": 0,
            }
        ],
        sessions.SESSIONS: [
            {**known, "publication": "sales", "subscriber": str(network.root("north")), "end_time": NOW}
        ],
        sessions.ARTICLEHISTORY: [{**known, "phase_id": 1, "article_name": "orders", "inserts": 1}],
        sessions.HISTORY: [{"session_id": ID, "timestamp": NOW, "comments": "said"}],
        conflicts_info.TABLE: [
            {
                "tablenick": 1,
                "rowguid": ID,
                "conflict_type": 1,
                "pubid": "p",
                "MSrepl_create_time": NOW,
                "conflict_id": ID,
            }
        ],
    }.get(table) or [table.values(row) for row in Replica(network.root("hq")).control.rows(table)]


def write(table: DeltaTable, schema: pa.Schema, rows: list[Row], *, without: Sequence[str] = ()) -> None:
    values = pa.Table.from_pylist(
        [{name: _arrow(row.get(name)) for name in schema.names} for row in rows], schema=schema
    ).drop_columns(list(without))
    write_deltalake(table.table_uri, values, mode="overwrite", schema_mode="overwrite")


def _arrow(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def edited(
    network: Network, table: TypedTable[Any], groups: Iterable[Sequence[str]]
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield each group of columns, its table without their values and then without them, and what is to be said of one."""
    for each in (sessions.SESSIONS, table):
        rows, stored = rows_of(network, each), DeltaTable(str(network.system_table("hq", each.name)))
        schema = pa.schema(stored.schema().to_arrow())
        write(stored, schema, rows)
    for columns in groups:
        write(stored, schema, [{**row, **dict.fromkeys(columns)} for row in rows])
        yield columns, f"has no value in column '{columns[0]}'"
        write(stored, schema, rows, without=columns)
        yield columns, f"has no column '{columns[0]}'"
    write(stored, schema, rows)


def words_for(command: tuple[str, ...]) -> tuple[str, ...]:
    return command if len(command) > 2 or FILE in command else (*command, "-f", "hq")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=table.name, marks=[pytest.mark.slow] * (number % 2))
        for number, table in enumerate(NEEDED_BY)
    ],
)
def test_51_a_needed_value_that_is_gone_is_named(
    network: Network, refused: Refused, table: TypedTable[Any]
) -> None:
    for (column,), how in edited(network, table, [(column,) for column in table.required]):
        for command in NEEDED_BY[table][: None if column == table.required[0] else 1]:
            refused(
                *words_for(command),
                code=1,
                says=(
                    f"'{table.name}' of replica",
                    "/hq' ",
                    how,
                    "Restore it to the version before that",
                    "copy",
                ),
            )


STOPPED_BY = {
    ("sysmergesubscriptions", "replicastate"): "do not end with the same session",
    ("MSmerge_replinfo", "captured"): "does not say up to which version its table",
    ("MSmerge_articlehistory", "session_id"): "No field named session_id",
    ("MSmerge_articlehistory", "start_time"): "No field named start_time",
    ("MSmerge_history", "session_id"): "No field named session_id",
    ("MSmerge_history", "timestamp"): "No field named timestamp",
}
"""What else a command may stop at, and its words; every other column is missed by nobody."""


WIDE = (catalog.PUBLICATIONS, catalog.ARTICLES, catalog.SUBSCRIPTIONS)
"""Tables whose columns that nobody misses are taken away all at once; one after the other, they take half a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("table", [*NEEDED_BY, sessions.HISTORY], ids=lambda table: table.name)
def test_51_what_is_not_needed_is_no_bug(network: Network, table: TypedTable[Any]) -> None:
    missed = [column for name, column in STOPPED_BY if name == table.name]
    unneeded = [name for name in table.names if name not in (*table.required, *missed)]
    groups = [unneeded] if table in WIDE else [[name] for name in unneeded]
    for columns, _ in edited(network, table, [*groups, *([name] for name in missed)]):
        for command in NEEDED_BY.get(table, (HISTORY,)):
            shown = run(*words_for(command), *(["--dry-run"] if command in (SYNC, APPLY) else []))
            assert "bug" not in shown.output, (columns, command, shown.output)
            words = STOPPED_BY.get((table.name, columns[0]))
            if shown.exit_code == 0 or words is None:
                assert (shown.exit_code, "Error: " in shown.output) == (0, False), (
                    columns,
                    command,
                    shown.output,
                )
            else:
                assert shown.exit_code == 1
                assert shown.stderr.startswith("Error: ")
                assert words in shown.stderr


ROW = ("row", "orders", "-f", "hq", "--key", "id=1")
LIST = "no list of columns in published_columns"
TYPES = "not one type in published_types for each of published_columns"
KEY = "key_columns or a rowguid_column that are not among published_columns"


@pytest.mark.parametrize(
    ("table", "values", "says"),
    [
        pytest.param(
            catalog.PUBLICATIONS, {"pubid": "other"}, "a pubid that sysmergepublications", id="publication"
        ),
        pytest.param(
            catalog.ARTICLES, {"pubid": "other"}, "does not have (other)", id="publication of an article"
        ),
        pytest.param(catalog.ARTICLES, {"published_columns": []}, LIST, id="no column"),
        pytest.param(catalog.ARTICLES, {"published_columns": ["id", None, "amount"]}, LIST, id="NULL column"),
        pytest.param(catalog.ARTICLES, {"published_columns": ["id", "id", "amount"]}, LIST, id="twice"),
        pytest.param(catalog.ARTICLES, {"published_columns": ["id", "region"]}, TYPES, id="fewer columns"),
        pytest.param(catalog.ARTICLES, {"published_types": ["bigint"]}, TYPES, id="fewer types"),
        pytest.param(
            catalog.ARTICLES, {"published_types": ["bigint", None, "double"]}, TYPES, id="NULL type"
        ),
        pytest.param(catalog.ARTICLES, {"key_columns": []}, KEY, id="no key"),
        pytest.param(catalog.ARTICLES, {"key_columns": ["id", "nr"]}, KEY, id="unknown key"),
        pytest.param(catalog.ARTICLES, {"key_columns": [None]}, KEY, id="NULL key"),
        pytest.param(catalog.ARTICLES, {"rowguid_column": "region"}, KEY, id="another GUID"),
    ],
)
def test_51_an_article_that_contradicts_itself_is_named(
    network: Network, refused: Refused, table: TypedTable[Any], values: Row, says: str
) -> None:
    network.edit("hq", table, **values)
    for command in (STATUS, PENDING, ROW, ("capture",)):
        where = (
            "'sysmergearticles' of replica",
            "/hq' has ",
            "'orders'",
            "it was edited or damaged",
            "Restore it",
        )
        refused(*words_for(command), code=1, says=(*where, says))
    for command in (SYNC, VALIDATE, (*APPLY, "--dry-run")):
        shown = run(*command)
        # `apply` compares the file with what it needs of the row, which may be all right.
        assert shown.exit_code != 0 or command[0] == "apply"
        assert "bug" not in shown.output


_ADDED = {"path": "b.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
_REMOVED = {"path": "a.parquet", "dataChange": True, "deletionTimestamp": 0}
ROW_CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "UPDATE": ({"remove": _REMOVED}, {"add": _ADDED}),
    "DELETE": ({"remove": _REMOVED},),
    "WRITE": ({"add": _ADDED},),
}


@pytest.mark.parametrize("operation", ROW_CHANGES)
@pytest.mark.parametrize(
    "name", ["MSmerge_contents", pytest.param("MSmerge_tombstone", marks=pytest.mark.slow)]
)
def test_51_rows_of_the_past_that_were_edited_are_refused_until_that_is_undone(
    network: Network, refused: Refused, name: str, operation: str
) -> None:
    """A lineage that somebody changed lets a user's write look known where it is not."""
    for replica, words in (("north", SYNC), ("hq", (*SYNC, "--dry-run")), ("hq", ("capture", "-f", "hq"))):
        table = network.system_table(replica, name)
        before = head_version(table)
        commit(table, {"commitInfo": {"operation": operation}}, *ROW_CHANGES[operation])
        # Commits that change no rows lie between.
        commit(table, {"commitInfo": {"operation": "OPTIMIZE"}})
        # The last version that is a session's: that of the table's creation.
        says = (name, f"/{replica}' was edited: its version {before + 1} ({operation})", "VERSION AS OF 0;")
        message = refused(*words, code=1, says=(*says, "nothing was read"))
        (state,) = json.loads(run("status", "-f", replica, "--json").stdout)["status"]
        assert message.strip() in [each["text"] for each in state["warnings"]]
        restore(table, 0)
        assert run(*SYNC).exit_code == 0


def restore(table: Path, version: int) -> None:
    """Undo what came after a version, as Spark's RESTORE TABLE does."""
    info = {"operation": "RESTORE", "operationParameters": {"version": version, "timestamp": None}}
    commit(table, {"commitInfo": info}, {"remove": {**_REMOVED, "path": _ADDED["path"]}})


def test_51_rows_of_the_past_that_were_added_are_refused_until_deltalake_takes_them_back(
    network: Network, refused: Refused
) -> None:
    stored = DeltaTable(str(network.system_table("hq", "MSmerge_contents")))
    row = {"tablenick": 1, "rowguid": ID, "generation": 1, "lineage": [(1, 9)], "seq": 1}
    schema = pa.schema(stored.schema().to_arrow())
    write_deltalake(stored.table_uri, pa.Table.from_pylist([row], schema=schema), mode="append")
    refused(*SYNC, code=1, says=("MSmerge_contents", "(WRITE)", "VERSION AS OF 0;"))
    stored.update_incremental()
    stored.restore(0)
    assert run(*SYNC).exit_code == 0


def test_51_an_edit_is_undone_also_where_the_log_has_nothing_before(
    network: Network, refused: Refused
) -> None:
    table = network.system_table("hq", "MSmerge_contents")
    commit(table, {"commitInfo": {"operation": "OPTIMIZE"}})
    last = head_version(table)
    DeltaTable(str(table)).create_checkpoint()
    for version in range(last):
        log_path(table, version).unlink()
    assert run(*SYNC).exit_code == 0
    commit(table, {"commitInfo": {"operation": "DELETE"}}, *ROW_CHANGES["DELETE"])
    refused(*SYNC, code=1, says=("MSmerge_contents", "(DELETE)", "Restore the folder"))
    restore(table, last)
    assert run(*SYNC).exit_code == 0


def test_51_a_table_of_the_past_that_was_made_again_is_refused(network: Network, refused: Refused) -> None:
    table = network.system_table("north", "MSmerge_tombstone")
    schema = DeltaTable(str(table)).schema()
    shutil.rmtree(table)
    DeltaTable.create(str(table), schema)
    refused(
        *SYNC, code=1, says=("MSmerge_tombstone", "/north' was edited: its version 0", "estore the folder")
    )


def test_51_rows_of_the_past_as_they_were_before_a_session_are_refused(
    network: Network, refused: Refused
) -> None:
    table = network.system_table("hq", "MSmerge_contents")
    mark = CommitMark("session", "run").to_user_metadata()
    info = {"operation": "WRITE", "userMetadata": mark}
    commit(table, {"commitInfo": info}, *ROW_CHANGES["WRITE"])
    last = head_version(table)
    for version in (last - 1, last + 2):
        # The second one says that it went back to itself.
        restore(table, version)
        refused(*SYNC, code=1, says=("MSmerge_contents", "(RESTORE)", f"OF {last};"))
    restore(table, last)
    assert run(*SYNC).exit_code == 0


@pytest.mark.parametrize("column", ["status", "subscriber_type", "last_sync_status"])
def test_51_an_unknown_code_is_shown_as_it_is(network: Network, refused: Refused, column: str) -> None:
    network.edit("hq", catalog.SUBSCRIPTIONS, **{column: 99})
    (state,) = json.loads(run(*STATUS, "-f", "hq", "--json").stdout)["status"]
    assert {each[column] for each in state["details"]["subscriptions"]} == {"99"}
    if column == "subscriber_type":
        refused(
            *APPLY,
            code=1,
            says=("'sysmergesubscriptions'", "has 99 in column 'subscriber_type'", "Restore it"),
        )


def test_conflicts_of_a_rowguid_with_a_quote_are_shown(network: Network) -> None:
    """A user may write any text to a GUID column."""
    stored = DeltaTable(str(network.system_table("hq", conflicts_info.NAME)))
    (row,) = rows_of(network, conflicts_info.TABLE)
    write(stored, pa.schema(stored.schema().to_arrow()), [{**row, "rowguid": "it's"}])
    shown = run("conflicts", "show", "-f", "hq", "--table", "orders", "--json")
    assert shown.exit_code == 0, shown.output
    assert [each["rowguid"] for each in json.loads(shown.stdout)["conflicts"]] == ["it's"]
