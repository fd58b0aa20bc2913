"""`apply` of captured and tracked folders: pure differences, and runs that need no engine."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl import cdc
from mergerepl.cdc import apply as capture
from mergerepl.cdc.apply import apply_capture
from mergerepl.cdc.jobs import new_job
from mergerepl.errors import MergeReplError
from mergerepl.failpoints import FailpointError
from mergerepl.model.folders import Capture, FolderTracking, TableCapture, TableTracking
from mergerepl.model.tracking import TrackedTable
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from mergerepl.project import Project
from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from mergerepl.tracking import tracked_tables as tracking
from tests.cdc.databases import new_table
from tests.publish.publishing import table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = TableCapture("orders", ("id",))
CAPTURED = Capture("/hq", (ORDERS,))


def instance(name: str, path: str = "orders") -> TableCapture:
    """Return a stored instance of the columns id and qty by the key id."""
    return TableCapture(path, ("id",), ("id", "qty"), name, True)


def captured(*instances: TableCapture, **facts: Any) -> capture.Stored:
    jobs = [new_job("", each, {}) for each in ("capture", "cleanup")]
    known = {"instances": instances, "jobs": jobs, "log_retention": timedelta(days=7), **facts}
    return capture.Stored(**known)


def stated(**settings: Any) -> Capture:
    return replace(CAPTURED, tables=(replace(ORDERS, **settings),))


def jobs(**parameters: object) -> Capture:
    return replace(CAPTURED, jobs={"capture": parameters})


FIRST = captured(instance("dbo_orders"))
SECOND = replace(ORDERS, name="orders_2")

CAPTURES: dict[str, tuple[Capture, capture.Stored, list[str]]] = {
    "a new folder": (
        CAPTURED,
        capture.Stored(),
        [
            "enable /hq: capture changes of its tables",
            "capture dbo_orders: capture all columns of orders, by (id)",
        ],
    ),
    "applied twice": (CAPTURED, FIRST, []),
    "settings that are stated as they are": (
        stated(name="DBO_Orders", columns=("QTY", "id"), net=True, on_gap="compare"),
        FIRST,
        [],
    ),
    "a second instance": (
        replace(CAPTURED, tables=(ORDERS, SECOND)),
        FIRST,
        ["capture orders_2: capture all columns of orders, by (id)"],
    ),
    "an instance in place of another begins first": (
        replace(CAPTURED, tables=(SECOND,)),
        FIRST,
        [
            "capture orders_2: capture all columns of orders, by (id)",
            "disable dbo_orders: end the capture of orders; its change rows go !",
        ],
    ),
    "an instance in place of one of two begins when there is room": (
        replace(CAPTURED, tables=(SECOND,)),
        captured(instance("dbo_orders"), instance("old"), instance("dbo_lines", "lines")),
        [
            "disable dbo_orders: end the capture of orders; its change rows go !",
            "disable old: end the capture of orders; its change rows go !",
            "capture orders_2: capture all columns of orders, by (id)",
            "disable dbo_lines: end the capture of lines; its change rows go !",
        ],
    ),
    "retention of the log": (
        replace(CAPTURED, log_retention=timedelta(days=8)),
        FIRST,
        ["change /hq: log_retention 7 days → 8 days"],
    ),
    "parameters of a job": (jobs(maxtrans=50, pollinginterval=5), FIRST, ["change capture job: maxtrans 1000 → 50"]),
    "a job of a shared log": (
        jobs(maxtrans=50),
        captured(instance("dbo_orders"), jobs=[new_job("", "logreader", {})], is_shared=True),
        ["change logreader job: maxtrans 1000 → 50"],
    ),
    "a dropped job that the file states": (
        jobs(maxtrans=1000),
        captured(instance("dbo_orders"), jobs=[]),
        ["change capture job: add it"],
    ),
}  # fmt: skip


def lines(steps: Any) -> list[str]:
    return [
        f"{step.action} {step.object}: {step.detail}{' !' if step.removes_rows else ''}" for step in steps
    ]


@pytest.mark.parametrize("case", CAPTURES)
def test_the_difference_of_a_captured_folder(case: str) -> None:
    folder, found, expected = CAPTURES[case]
    assert lines(capture.difference(folder, found)) == expected


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        (stated(key=("qty",)), "its `key` differs from the file (it is ('id',))"),
        (stated(columns=("id",)), "its `columns` differs"),
        (stated(net=False), "its `net` differs"),
        (stated(on_gap="stop"), "its `on_gap` differs"),
        (stated(table="lines", name="dbo_orders"), "its `table` differs"),
        (jobs(maxtrans=10**9), "maxtrans"),
        (replace(CAPTURED, jobs={"cleanup": {"schedule": "25:00"}}), "schedule"),
    ],
)
def test_a_refused_change_of_a_captured_folder(folder: Capture, said: str) -> None:
    with pytest.raises(MergeReplError) as raised:
        capture.difference(folder, FIRST)
    assert said in raised.value.message
    assert raised.value.exit_code == 2


def test_a_folder_without_keys_is_captured_without_an_engine(replica_dir: Path) -> None:
    before = engine.jvm_pid()
    for name in ("orders", "lines"):
        new_table(replica_dir, name, {})
    both = Capture(
        str(replica_dir),
        (TableCapture("orders"), TableCapture("lines", columns=("id",))),
        timedelta(days=7),
        {"cleanup": {"retention": 60}},
    )
    planned = apply_capture(both, dry_run=True)
    assert [step.action for step in planned.steps] == ["enable", "capture", "capture", "change"]
    assert not (replica_dir / "_cdc").exists()
    assert apply_capture(both).steps == planned.steps
    assert apply_capture(both).steps == ()
    known = {each.capture_instance: each for each in cdc.Database(replica_dir).instances()}
    assert known["dbo_lines"].captured_column_list == ("id",)
    assert [job.retention for job in cdc.Database(replica_dir).jobs.list()] == [None, 60]
    # A refusal changes nothing: all steps are checked before the first one.
    wrong = replace(both, tables=(TableCapture("lines", columns=("id",)), TableCapture("gone")))
    for dry_run in (True, False):
        with pytest.raises(cdc.CdcUsageError, match="is no Delta table"):
            apply_capture(wrong, dry_run=dry_run)
    assert len(cdc.Database(replica_dir).instances()) == 2
    changed = replace(
        both, tables=both.tables[1:], log_retention=timedelta(days=6), jobs={"capture": {"maxtrans": 7}}
    )
    done = apply_capture(changed)
    assert lines(done.steps) == [
        f"change {replica_dir}: log_retention 7 days → 6 days",
        "disable dbo_orders: end the capture of orders; its change rows go !",
        "change capture job: maxtrans 1000 → 7",
    ]
    assert apply_capture(changed).steps == ()
    assert [(job.maxtrans, job.starts) for job in cdc.Database(replica_dir).jobs.list()] == [
        (7, 1),
        (None, 1),
    ]
    assert engine.jvm_pid() == before


def test_one_of_two_instances_is_replaced_in_one_run(replica_dir: Path) -> None:
    new_table(replica_dir, "orders", {})
    first, second = TableCapture("orders"), TableCapture("orders", name="second")
    both = Capture(str(replica_dir), (first, second))
    apply_capture(both)
    changed = replace(both, tables=(first, replace(second, name="third", columns=("id",))))
    planned = apply_capture(changed, dry_run=True).steps
    assert [f"{step.action} {step.object}" for step in planned] == ["disable second", "capture third"]
    assert apply_capture(changed).steps == planned
    assert apply_capture(changed).steps == ()


def test_two_runs_at_once_begin_an_instance_once(replica_dir: Path) -> None:
    new_table(replica_dir, "orders", {})
    stated = Capture(str(replica_dir), (TableCapture("orders"),))
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: apply_capture(stated), range(2)))
    assert sorted(len(each.steps) for each in done) == [0, 2]


def test_an_instance_that_a_dead_run_decided_on_is_not_begun_again(
    replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "lines"):
        new_table(replica_dir, name, {})
    apply_capture(Capture(str(replica_dir), (TableCapture("orders"),)))
    both = Capture(str(replica_dir), (TableCapture("orders"), TableCapture("lines")))
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "logreader.after_plan=raise")
    with pytest.raises(FailpointError):
        apply_capture(both)
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    assert [step.action for step in apply_capture(both, dry_run=True).steps] == ["capture"]
    assert apply_capture(both).steps == ()
    assert len(cdc.Database(replica_dir).instances()) == 2


def test_a_copied_folder_is_refused_also_by_a_dry_run(tmp_path: Path) -> None:
    (tmp_path / "hq").mkdir()
    new_table(tmp_path / "hq", "orders", {})
    apply_capture(Capture(str(tmp_path / "hq"), (TableCapture("orders"),)))
    shutil.copytree(tmp_path / "hq", tmp_path / "copy")
    for dry_run in (True, False):
        with pytest.raises(MergeReplError, match="is a copy of the database"):
            apply_capture(Capture(str(tmp_path / "copy"), ()), dry_run=dry_run)


def test_all_documents_are_checked_before_the_first_one_is_applied(tmp_path: Path) -> None:
    for root in ("hq", "north"):
        (tmp_path / root).mkdir()
        new_table(tmp_path / root, "orders", {})
    file = tmp_path / "mergerepl.yml"
    text = "type: cdc\nroot: ./hq\ntables: [{table: orders}]\n---\ntype: cdc\nroot: ./north\ntables: [{table: gone}]\n"
    file.write_text(text)
    for dry_run in (True, False):
        with pytest.raises(cdc.CdcUsageError, match="is no Delta table"):
            Project.load(file).apply(dry_run=dry_run)
    assert not cdc.Database(tmp_path / "hq").is_enabled()
    file.write_text(text.replace("gone", "orders"))
    done = Project.load(file).apply()
    assert done.publication == "hq, north"
    assert [step.action for step in done.steps] == ["enable", "capture"] * 2
    assert Project.load(file).apply().steps == ()


# ---- tracked folders

NOTES = TableTracking("notes", ("id",))
TRACKED = FolderTracking("/hq", (NOTES,))


def tracked(name: str = "notes", **settings: Any) -> dict[str, TrackedTable]:
    known = TrackedTable(
        name,
        TrackingOptions.ALL,
        TrackingKeyType.PRIMARY_KEY,
        ("id",),
        ("bigint",),
        "",
        0,
        Foreign.ADOPT,
        NOW,
        None,
    )
    return {name: replace(known, **settings)}


PROPERTIES = {"delta.enableChangeDataFeed": "true", "delta.deletedFileRetentionDuration": "interval 14 days"}
READY = table(Location.of("/hq/notes"), **PROPERTIES)
MAPPED = table(Location.of("/hq/notes"), **PROPERTIES, **{"delta.columnMapping.mode": "name"})

TRACKINGS: dict[str, tuple[FolderTracking, tracking.Stored, list[str]]] = {
    "a new folder": (TRACKED, tracking.Stored(), ["track notes: three columns are added; rows are identified by id"]),
    "applied twice": (TRACKED, tracking.Stored(tracked(), {"notes": READY}), []),
    "options": (
        replace(TRACKED, tables=(replace(NOTES, options=TrackingOptions.DELETE),), foreign=Foreign.REFUSE),
        tracking.Stored(tracked(), {"notes": READY}),
        ["change notes: track ALL → DELETE, foreign adopt → refuse"],
    ),
    "a longer retention": (
        replace(TRACKED, retention=timedelta(days=20)),
        tracking.Stored(tracked(), {"notes": READY}),
        ["change notes: keep removed files for 20 days"],
    ),
    "a table that leaves keeps its columns": (
        replace(TRACKED, tables=()),
        tracking.Stored(tracked(), {"notes": READY}),
        ["untrack notes: end its tracking; its tombstones go, not its three columns !"],
    ),
    "a table with column mapping that leaves": (
        replace(TRACKED, tables=()),
        tracking.Stored(tracked(), {"notes": MAPPED}),
        ["untrack notes: end its tracking; its tombstones go, its three columns !"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRACKINGS)
def test_the_difference_of_a_tracked_folder(case: str) -> None:
    folder, found, expected = TRACKINGS[case]
    assert lines(tracking.difference(folder, found)) == expected


@pytest.mark.parametrize("changed", [{"key": ("note",)}, {"is_guid": True}])
def test_the_key_of_a_tracked_table_stays(changed: dict[str, Any]) -> None:
    folder = replace(TRACKED, tables=(replace(NOTES, **changed),))
    with pytest.raises(MergeReplError, match="key"):
        tracking.difference(folder, tracking.Stored(tracked(), {"notes": READY}))
