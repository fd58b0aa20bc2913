"""The two forms of output: nothing cut or drawn when piped, drawn on a terminal, strict JSON."""

import io
import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import pytest

from mergerepl import Listing
from mergerepl.cli.report import merge
from mergerepl.cli.report import tasks as shown
from mergerepl.cli.report.columns import listing_or
from mergerepl.cli.report.logs import JsonFormatter
from mergerepl.cli.report.merge import Rounds
from mergerepl.cli.report.output import Output, dumps, jsonable
from mergerepl.cli.report.progress import LineProgress, LiveProgress, NoProgress, Patience, open_progress
from mergerepl.cli.report.table import Table, printable
from mergerepl.errors import LeaseError
from mergerepl.model import replica_status, results, tasks
from mergerepl.model.cdc import JobEvent
from mergerepl.model.conflicts import ConflictRecord
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult, SyncResult
from mergerepl.model.words import CONFLICT_NAMES, conflict_name, text_of
from mergerepl.systables.conflicts_info import ConflictType

NOW = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)
LONG = "MSmerge_ins_" + "0123456789ABCDEF" * 12
SOME = PhaseCounts(2, 1, 0, 1)
TOTAL = {"conflict_list": {"total": 1}, "conflict_rows": {"total": 1}}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(method: str, *arguments, out, is_for_programs, **options):
    output = Output(out, is_for_programs=is_for_programs)
    options = {**TOTAL.get(method, {}), **options}
    if hasattr(output, method):
        getattr(output, method)(*arguments, **options)
    elif method == "synced_round":
        merge.Rounds(output).synced_round(*arguments, **options)
    elif hasattr(shown, method):
        output.reported(arguments[0], *getattr(shown, method)(*arguments, **options))
    else:
        output.reported(*getattr(merge, method)(*arguments, **options))
    return out.getvalue()


def text(method: str, *arguments, out=None, **options) -> str:
    return report(method, *arguments, out=out or io.StringIO(), is_for_programs=False, **options)


def said(method: str, *arguments, **options):
    return json.loads(report(method, *arguments, out=io.StringIO(), is_for_programs=True, **options))


STATE = replica_status.ReplicaStatus(
    replid="guid",
    nickname=1,
    articles=(
        replica_status.ArticleStatus(
            "sales",
            "orders",
            "guid",
            1,
            "row",
            "/data/hq/orders",
            9,
            7,
            2,
            (LONG, "MSmerge_upd", "MSmerge_del"),
        ),
    ),
    subscriptions=(
        replica_status.SubscriptionStatus(
            publication="sales",
            subscriber="/data/north",
            subscriber_type="server",
            priority=75.0,
            status="active",
            sentgen=4,
            recgen=3,
            unsent_generations=1,
            upload=0,
            download=12,
            retention_used=0.25,
            last_sync_date=NOW,
            last_sync_status="succeeded",
            last_sync_summary="2 up, 0 down",
        ),
        replica_status.SubscriptionStatus(
            publication="sales",
            subscriber="/data/west",
            subscriber_type="client",
            priority=0.0,
            status="active",
            sentgen=0,
            recgen=0,
            unsent_generations=5,
            last_sync_summary="",
            is_reachable=False,
        ),
    ),
    conflicts=1,
    open_sessions=("s1",),
)
STATUS = tasks.Status(
    "merge", "/data/hq", "publisher", (tasks.StatusWarning("orders", "critical", "gone"),), STATE
)
ROW = replica_status.RowInfo(
    "sales",
    "orders",
    {"order_id": "7"},
    "guid",
    (
        replica_status.RowReplicaInfo(
            "/data/hq",
            1,
            "contents",
            4,
            {1: 2, 3: 1},
            (replica_status.ColumnVersion("amount", 1, 2),),
            {"amount": "9"},
            True,
        ),
        replica_status.RowReplicaInfo("/data/north", 3, "none", None, {}, (), {"amount": "5"}, False),
    ),
)
CONFLICT = ConflictRecord(
    "c1",
    "sales",
    "orders",
    "guid",
    {"order_id": 7},
    3,
    3,
    "because",
    "north",
    "hq",
    NOW,
    {"order_id": 7, "n": None},
)
SESSION = replica_status.SessionRecord(
    "s1", "sales", "/data/north", NOW, NOW, 1.25, "succeeded", SOME, PhaseCounts(), (), ("late changes: 2",)
)
RUN = tasks.Run(
    "merge",
    "session",
    "s1",
    "/data/hq",
    "sales",
    "/data/north",
    NOW,
    1.25,
    "succeeded",
    3,
    "late changes: 2",
    SESSION,
)
PENDING = tasks.Pending("merge", "sales", "/data/north", "orders", "upload", 12, 1, 3)
CAPTURED = JobEvent(
    datetime(2026, 3, 1, 12, tzinfo=UTC), "./shop", "capture", "transactions 3, change rows 4."
)
CAPTURE = results.CaptureResult("/data/hq", (results.ArticleCapture("orders", 1, 2, 3, 4, 4),))
DIFFERENT = results.ArticleValidation("orders", "checksum", 3, 4, 1, subscriber="/data/north")
EVERYTHING = [
    ("applied", results.ApplyResult("sales", (results.PlanStep("publish", "orders", LONG),))),
    ("synced", SyncResult("sales", (SessionResult("sales", "/data/north", "succeeded", SOME, SOME),))),
    ("captured", [tasks.Captured("merge", "/data/hq", 6, {"stock": "gone"}, CAPTURE)]),
    ("status", [STATUS]),
    ("pending", [PENDING]),
    ("conflict_list", "/data/hq", [CONFLICT]),
    ("conflict_rows", "/data/hq", [CONFLICT]),
    ("row", ROW),
    ("validated", tasks.ValidationResult(Listing([replace(DIFFERENT, level="rowcount")]))),
    ("noted", CAPTURED, "2026-03-01 12:00:00Z ./shop capture: transactions 3, change rows 4."),
]


def test_status_says_what_is_dear():
    (orders,) = STATE.articles
    dear = replace(
        STATUS, details=replace(STATE, articles=(replace(orders, cost="files of up to 300 MiB."),))
    )
    assert "Cost of orders: files of up to 300 MiB.\n" in text("status", [dear])
    assert "Cost" not in text("status", [STATUS])
    assert said("status", [dear])[0]["details"]["articles"][0]["cost"] == "files of up to 300 MiB."


def test_a_state_is_facts_tables_and_what_to_do_next():
    unknown = tasks.Status(
        "tracking", "/data/hq", "", (tasks.StatusWarning("/data/hq", "unknown", "lost"), *STATUS.warnings)
    )
    lines = text("status", [STATUS, unknown]).splitlines()
    assert lines[0] == "publisher /data/hq (merge): replid guid, nickname 1, conflicts 1"
    assert lines[1].split("  ")[0] == "article"
    # A column without a value is left out: no subscriber has a partition.
    assert "partition" not in "".join(lines)
    assert "`mergerepl abort s1 -f /data/hq` ends it." in "".join(lines)
    assert lines[-3:] == [
        "/data/hq (tracking): its state cannot be read",
        "Critical: orders: gone",
        "Unknown: /data/hq: lost",
    ]


def test_runs_of_several_types_are_one_table():
    scan = tasks.Run(*("cdc", "scan", "7", "/data/hq", "", ""), NOW, 0.5, "succeeded", 2, "latency 2 s")
    lines = text("history", [RUN, scan], failed=False, total=9).splitlines()
    assert lines[0].split() == [
        "time",
        "at",
        "type",
        "kind",
        "publication",
        *["result", "seconds", "changes", "id"],
    ]
    assert lines[3:] == [
        "2026-11-21 03:04:05Z /data/north: late changes: 2",
        "2026-11-21 03:04:05Z /data/hq: latency 2 s",
        "2 of 9 runs. See more with --limit.",
    ]


@pytest.mark.parametrize("report", EVERYTHING, ids=lambda report: report[0])
def test_a_terminal_shows_the_same_words(report, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    drawn = text(*report, out=Terminal())
    assert all(word in drawn for word in text(*report).replace("\n", " ").split())


def test_a_narrow_terminal_folds_and_cuts_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    drawn = text("applied", EVERYTHING[0][1], out=Terminal())
    assert "…" not in drawn
    assert drawn.count("0123456789") + drawn.count("ABCDEF") >= 12


def test_sync_shows_articles_and_their_sum():
    session = SessionResult(
        "sales",
        "north",
        "succeeded",
        upload=PhaseCounts(3, 0, 0, 0),
        articles=(
            ArticleCounts("orders", PhaseCounts(1), PhaseCounts()),
            ArticleCounts("lines", PhaseCounts(2), PhaseCounts()),
        ),
        duration_s=2.0,
        recovered=1,
        late_changes=2,
    )
    assert text("synced", SyncResult("sales", (session,))).splitlines() == [
        "subscriber  direction  article  inserts  updates  deletes  conflicts",
        "north       upload     orders         1        0        0          0",
        "north       upload     lines          2        0        0          0",
        "north       upload     (all)          3        0        0          0",
        "north       download   (all)          0        0        0          0",
        "north: synchronized, finished 1 interrupted session first, "
        "2 changes made meanwhile will travel next time (2.0 s).",
    ]


def test_a_dry_run_says_who_wins():
    row = {"id": "7", "n": "1"}
    preview = results.ConflictPreview("orders", {"id": "7"}, 3, "publisher", None, row, "delta", "overflow")
    refused = results.ConflictPreview(
        "orders", {"id": "8"}, 9, "publisher", None, row, None, "CHECK n (n > 1)"
    )
    session = SessionResult("sales", "north", "planned", conflicts=(preview, refused))
    shown = text("synced", SyncResult("sales", (session,)))
    assert "north: planned, nothing was changed (--dry-run)" in shown
    assert (
        "Conflict in orders id=7: update against delete, delete won; publisher wins, subscriber loses (delta, overflow)"
        in shown
    )
    assert "id=8: update refused at the publisher; it stays at the subscriber (CHECK n (n > 1))" in shown
    assert "(deleted)" in shown
    assert (
        said("synced", SyncResult("sales", (session,)))["sessions"][0]["conflicts"][0]["winner"]
        == "publisher"
    )
    assert "not shown" not in shown


def test_a_dry_run_counts_the_conflicts_it_does_not_show():
    preview = results.ConflictPreview("orders", {"id": "7"}, 3, "hq", None, {"id": "7", "n": "1"})
    many = ArticleCounts("orders", PhaseCounts(conflicts=5), PhaseCounts())
    session = SessionResult("sales", "north", "planned", articles=(many,), conflicts=(preview,))
    assert "orders: 4 more conflicts not shown\n" in text("synced", SyncResult("sales", (session,)))


def test_a_failed_session_is_shown_and_a_round_says_why():
    """Outside of rounds, why it failed stands on standard error, as of every failure."""
    error = {"message": "Disk full."}
    result = SyncResult("sales", (SessionResult("sales", "north", "failed", duration_s=2.0, error=error),))
    assert text("synced", result) == "north: failed after 2.0 s.\n"
    assert text("synced_round", result, time="T") == "T  north: failed after 2.0 s: Disk full\n"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("nothing_to_do", "north: nothing to do, not validated (2.0 s)"),
        ("succeeded", "north: synchronized, uploaded +2 ~1, downloaded 0, 1 conflict, not validated (2.0 s)"),
    ],
)
def test_a_session_that_could_not_be_validated_keeps_its_counts(status, line):
    counts = SOME if status == "succeeded" else PhaseCounts()
    error = {"message": "Disk full."}
    result = SyncResult(
        "sales", (SessionResult("sales", "north", status, counts, duration_s=2.0, error=error),)
    )
    assert text("synced_round", result, time="T") == f"T  {line}: Disk full\n"
    assert (said("synced", result)["ok"], said("synced", result)["sessions"][0]["status"]) == (False, status)


@pytest.mark.parametrize(
    ("status", "waiting", "line"),
    [
        ("nothing_to_do", 1, "north: nothing to do, 1 refused change waiting (2.0 s)"),
        ("succeeded", 2, "north: synchronized, uploaded 0, downloaded 0, 2 refused changes waiting (2.0 s)"),
    ],
)
def test_changes_that_wait_are_counted(status, waiting, line):
    session = SessionResult("sales", "north", status, waiting=waiting, duration_s=2.0)
    result = SyncResult("sales", (session,))
    assert text("synced_round", result, time="T") == f"T  {line}\n"
    assert said("synced", result)["sessions"][0]["waiting"] == waiting


def test_a_round_is_one_line():
    different = results.ArticleValidation("orders", "checksum", 3, 3, 2)
    sessions = (
        SessionResult(
            "sales", "north", "succeeded", SOME, PhaseCounts(), duration_s=1.0, validation=(different,)
        ),
        SessionResult("sales", "south", "nothing_to_do"),
    )
    assert text("synced_round", SyncResult("sales", sessions), time="T") == (
        "T  north: synchronized, uploaded +2 ~1, downloaded 0, 1 conflict (1.0 s); "
        "south: nothing to do (0.0 s); orders differs in 2 rows\n"
    )
    assert said("synced_round", SyncResult("sales", sessions), time="T")["time"] == "T"


def compared(*articles):
    return tasks.ValidationResult(Listing(articles))


def test_validation_counts_the_keys_it_does_not_name():
    example = results.KeyDifference({"id": "1"}, "missing_at_subscriber")
    shown = text("validated", compared(results.ArticleValidation("orders", "checksum", 9, 3, 6, (example,))))
    assert "orders id=1: missing at subscriber" in shown
    assert "orders: 5 more differing" in shown
    by_count = text("validated", compared(results.ArticleValidation("orders", "rowcount", 9, 3, 6)))
    assert by_count.splitlines()[-1].endswith("DIFFERENT"), "no empty line"


def test_validation_distinguishes_articles_of_several_publications():
    example = results.KeyDifference({"id": "1"}, "different")
    alone = results.ArticleValidation("orders", "checksum", 1, 1, 1, (example,), publication="sales")
    other = results.ArticleValidation("orders", "checksum", 3, 3, 0, publication="staff")
    shown = text("validated", compared(alone, other))
    assert ("sales.orders id=1: different" in shown, "staff.orders" in shown) == (True, True)
    assert "sales" not in text("validated", compared(alone))


def test_validation_names_an_article_that_a_side_lacks():
    missing = results.ArticleValidation("lines", "rowcount", 0, 0, 0, missing_at="subscriber")
    shown = text("validated", compared(missing))
    assert "DIFFERENT" in shown
    assert "lines: the subscriber does not have this article; run `mergerepl apply`" in shown
    assert said("validated", compared(missing))["ok"] is False
    synced = SyncResult("sales", (SessionResult("sales", "north", "succeeded", validation=(missing,)),))
    assert "lines is not at the subscriber" in text("synced_round", synced, time="T")


def test_a_table_that_cannot_be_read_is_not_said_to_have_nothing_pending():
    waiting = [
        tasks.Pending("merge", "sales", f"/data/{name}", "orders", "upload", problem="'orders' is damaged.")
        for name in ("north", "south")
    ]
    assert text("pending", waiting) == "Problem: 'orders' is damaged.\n"
    assert text("pending", []) == "Nothing is pending.\n"


def test_an_end_that_is_out_of_reach_is_not_said_to_have_nothing():
    gone = tasks.Pending(
        "merge", "sales", "/data/north", "", "upload", problem="'/data/north' is out of reach."
    )
    assert text("pending", [gone]) == "Problem: '/data/north' is out of reach.\n"
    row = replace(ROW, out_of_reach=("/data/south",))
    assert "Replica /data/south is out of reach" in text("row", row)
    assert said("row", row)["out_of_reach"] == ["/data/south"]


def test_a_row_tells_its_partitions_and_why_it_left():
    partitions = (
        replica_status.RowPartition(1, "North", None, 3),
        replica_status.RowPartition(-1, None, None, 4, "deleted"),
        replica_status.RowPartition(2, "South", "ann", 5, "host_name", "/data/south"),
    )
    lines = text("row", replace(ROW, partitions=partitions)).splitlines()
    begin = next(number for number, line in enumerate(lines) if "HOST_NAME()" in line)
    assert [" ".join(line.split()) for line in lines[begin : begin + 4]] == [
        "partition HOST_NAME() SUSER_SNAME() the row generation",
        "1 North is in it 3",
        "everybody left it: it was deleted 4",
        "/data/south South ann left it: the subscriber's host_name changed 5",
    ]


def test_a_row_that_no_replica_knows_is_not_called_up_to_date():
    nowhere = tuple(
        replace(each, source="none", generation=None, lineage={}, columns=(), row=None, current=True)
        for each in ROW.replicas
    )
    row = replace(ROW, replicas=nowhere, out_of_reach=("/data/south",))
    assert text("row", row).splitlines() == [
        "sales.orders order_id=7  (rowguid guid)",
        "No replica has this row, nor knows of one that was deleted (asked: /data/hq, /data/north). Check the key.",
        "Replica /data/south is out of reach: its row is unknown.",
    ]
    assert (said("row", row)["is_known"], said("row", ROW)["is_known"]) == (False, True)
    deleted = replace(nowhere[0], source="tombstone", lineage={1: 2})
    assert "tombstone" in text("row", replace(ROW, replicas=(deleted,)))
    assert replace(ROW, replicas=(replace(nowhere[0], row={"amount": None}),)).is_known


@pytest.mark.parametrize("method", ["conflict_list", "conflict_rows"])
def test_conflicts_that_are_left_out_are_counted(method):
    arguments = "/data/hq", [CONFLICT]
    assert text(method, *arguments, total=1200).endswith(
        "1,199 older not shown: see all with `--limit 1200`.\n"
    )
    assert said(method, *arguments, total=1200)["total"] == 1200
    assert "not shown" not in text(method, *arguments)


def test_empty_reports_are_sentences():
    assert "nothing to do" in text("applied", results.ApplyResult("sales", ()))
    assert text("history", [], failed=False, total=0) == "Nothing has run yet.\n"
    assert text("history", [], failed=True, total=0) == "Nothing has failed.\n"
    assert "no conflicts" in text("conflict_list", "hq", [])
    assert "no conflicts" in text("conflict_rows", "hq", [])


def test_null_is_not_empty_text():
    row = replace(CONFLICT, losing_row={"note": None}, winning_row={"note": ""})
    assert "*  note    NULL" in text("conflict_rows", "hq", [row])


def test_columns_in_conflict_are_marked_apart_from_others_that_differ():
    rows = {"losing_row": {"id": 7, "a": 1, "b": 1, "c": 1}, "winning_row": {"id": 7, "a": 2, "b": 2, "c": 1}}
    by_column = replace(CONFLICT, conflict_type=2, conflict_columns=("a",), **rows)
    *_, of_id, of_a, of_b, of_c, legend = text("conflict_rows", "hq", [by_column]).splitlines()
    assert [line.split()[0] for line in (of_id, of_a, of_b, of_c)] == ["id", "*", "~", "c"]
    assert legend == "  * in conflict; ~ differs too, but was not in conflict"
    assert said("conflict_rows", "hq", [by_column])["conflicts"][0]["conflict_columns"] == ["a"]
    # For a conflict of the whole row, and where one side deleted it, no column is marked.
    for whole in (replace(by_column, conflict_columns=("a", "b")), replace(by_column, conflict_columns=())):
        shown = text("conflict_rows", "hq", [whole])
        assert "~" not in shown
        assert shown.count("*") == 2


def test_a_value_of_a_column_that_left_lost_against_no_row():
    left = replace(CONFLICT, conflict_type=11, resolver="dropped column", losing_row={"b": "x"})
    shown = text("conflict_rows", "north", [left])
    assert "not sent to hq, logged at north" in shown
    assert "(deleted)" not in shown


def test_a_winning_row_that_is_not_known_is_not_called_deleted():
    shown = text("conflict_rows", "hq", [replace(CONFLICT, is_published=False, losing_row={"note": "x"})])
    assert "note" in shown
    assert "not published any more" in shown
    assert "deleted" not in shown


def test_row_data_cannot_steer_the_terminal():
    hostile = {"n": "\x1b[2J\x07\u202e[bold]x[/bold]\r\n"}
    for out in (io.StringIO(), Terminal()):
        shown = text("conflict_rows", "hq", [replace(CONFLICT, losing_row=hostile)], out=out)
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
        assert "[bold]x[/bold]" in shown.replace("\n", "")


def test_the_demo_may_print_renderables():
    from rich.table import Table as RichTable

    assert text("said", "a line") == "a line\n"
    table = RichTable("column")
    table.add_row("value")
    assert "value" in text("said", table)


def test_wide_letters_keep_columns_aligned():
    table = Table(("name", ">n"))
    table.add("日本", 1)
    table.add("ab", 22)
    assert table.plain() == "name   n\n日本   1\nab    22\n"


def test_a_listing_shows_values_by_their_type():
    row = {"is": True, "at": NOW, "lsn": b"\x0a\xff", "names": ["a", "b"], "counts": {"x": 2}, "no": None}
    (table,) = listing_or("none", [row])
    assert table.rows == [("yes", "2026-11-21 03:04:05Z", "0x0AFF", "a, b", "x 2", "")]
    assert listing_or("No rows.", []) == ["No rows."]


def test_printable_keeps_what_people_write():
    assert printable("Ünïcödé ☃ a\u00a0b") == "Ünïcödé ☃ a\u00a0b"
    assert printable("a\tb\u2028") == "a\\tb\\u2028"


def test_json_takes_every_value_that_a_row_may_hold():
    class Color(StrEnum):
        RED = "red"

    row = {
        1: float("nan"),
        "inf": float("-inf"),
        "decimal": Decimal("1.10"),
        "bytes": b"\x00\xff",
        "time": NOW,
        "day": date(2026, 1, 2),
        "span": timedelta(hours=1),
        "color": Color.RED,
        "set": {1},
        "big": 2**70,
        "nested": ({"a": None},),
    }
    assert jsonable(row) == {
        "1": "nan",
        "inf": "-inf",
        "decimal": "1.10",
        "bytes": "0x00FF",
        "time": "2026-11-21T03:04:05+00:00",
        "day": "2026-01-02",
        "span": 3600.0,
        "color": "red",
        "set": [1],
        "big": 2**70,
        "nested": [{"a": None}],
    }
    assert dumps(row, indent=None).isascii()


@pytest.mark.parametrize(
    "value",
    [NOW, NOW.replace(tzinfo=None), date(2026, 1, 2), b"\x0a\xff", Decimal("1.10"), "text", None],
    ids=repr,
)
def test_a_row_words_its_values_as_a_conflict_does(value):
    assert text_of(value) == jsonable(value)


def test_every_conflict_type_has_words():
    assert set(CONFLICT_NAMES) >= {int(kind) for kind in ConflictType}
    assert conflict_name(99) == "type 99"


def test_progress_suits_where_it_is_shown():
    assert isinstance(open_progress(Terminal(), quiet=True), NoProgress)
    assert isinstance(open_progress(Terminal(), quiet=False), LiveProgress)
    out = io.StringIO()
    with open_progress(out, quiet=False) as progress:
        assert isinstance(progress, LineProgress)
        progress.step("apply", article="orders", rows=1200)
    assert out.getvalue().endswith("s  apply orders (1,200 rows)\n")


def test_without_a_terminal_a_line_comes_each_ten_seconds(monkeypatch):
    monkeypatch.setattr("mergerepl.cli.report.progress.EVERY_S", 0.1)
    out = io.StringIO()
    with open_progress(out, quiet=False, log_format="json") as progress:
        progress.step("capture", article="orders")
        progress.step("stage")
        progress.step("apply", rows=3)
        while out.getvalue().count("\n") < 3:
            time.sleep(0.01)
    lines = [json.loads(each) for each in out.getvalue().splitlines()]
    assert [each["phase"] for each in lines[:3]] == ["capture", "apply", "apply"]
    assert lines[0]["article"] == "orders"
    assert "article" not in lines[1]
    ended = out.getvalue()
    time.sleep(0.25)
    assert out.getvalue() == ended


def test_a_command_without_steps_shows_that_it_works_until_it_writes(monkeypatch):
    monkeypatch.setattr("mergerepl.cli.report.progress.PATIENCE_S", 0.01)
    out = io.StringIO()
    progress = LineProgress(out)
    patience = Patience(progress, "validate")
    while "validate" not in out.getvalue():
        time.sleep(0.01)
    patience.end()
    assert progress._ended.is_set()
    quick = Patience(LineProgress(out), "status")
    quick.end()
    time.sleep(0.03)
    assert "status" not in out.getvalue()


def test_a_log_for_programs_has_one_object_a_line():
    record = logging.LogRecord(
        "mergerepl.x", logging.WARNING, "f", 1, "%s", ("s3://key:secret@b/x\nno",), None
    )
    record.article = "orders"
    told = json.loads(JsonFormatter().format(record))
    assert (told["level"], told["logger"], told["article"]) == ("WARNING", "mergerepl.x", "orders")
    assert "secret" not in told["event"]


def test_what_an_agent_does_is_in_its_json_log(capsys):
    out = io.StringIO()
    rounds = Rounds(Output(out, is_for_programs=False, is_logged=True))
    rounds.synced_round(SyncResult("sales", (SessionResult("sales", "/n", "failed"),)), time="12:00")
    rounds.round_failed(LeaseError("It is s3://key:secret@b."), time="12:01")
    Output(out, is_for_programs=False, is_logged=True).noted(1, "text", event="3 rows", job="sync", at=0.0)
    told = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert out.getvalue() == ""
    assert [each["level"] for each in told] == ["ERROR", "ERROR", "INFO"]
    assert told[0]["publication"] == "sales"
    assert "secret" not in told[1]["event"]
    assert told[2] == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "INFO",
        "event": "3 rows",
        "job": "sync",
    }


def test_nobody_has_to_read_the_progress():
    """A pipe that is closed, a disk that is full: a report that cannot be written does not end the work."""
    read, write = os.pipe()
    os.close(read)
    err = os.fdopen(write, "w")
    LineProgress(err).step("capture")
    with suppress(OSError):
        err.close()
    LineProgress(err).step("apply", rows=3)


def test_the_live_line_shows_each_step(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with open_progress(out, quiet=False) as progress:
        progress.step("capture", article="orders")
        progress.step("apply [bold]x")
    assert "capture orders" in out.getvalue()


def test_the_live_line_is_gone_after_an_error():
    progress = open_progress(Terminal(), quiet=False)

    def work():
        with progress:
            progress.step("capture")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert progress.live is None
