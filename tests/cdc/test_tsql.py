"""SQL Server's names for Change Data Capture: what its documentation says of each holds here. No Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mergerepl import cdc
from mergerepl.cdc import tsql
from mergerepl.logreader.lsn import ZERO
from mergerepl.spark import session as engine
from tests.cdc.databases import new_table

IN_THE_DOCUMENTATION = (
    *("sp_cdc_enable_db", "sp_cdc_enable_table", "sp_cdc_help_change_data_capture", "sp_cdc_get_ddl_history"),
    *("sp_cdc_add_job", "sp_cdc_change_job", "sp_cdc_drop_job", "sp_cdc_start_job", "sp_cdc_stop_job"),
    *("sp_cdc_help_jobs", "fn_cdc_get_min_lsn", "fn_cdc_get_max_lsn"),
    *("fn_cdc_get_all_changes", "fn_cdc_get_net_changes"),
)


def test_the_procedures_do_what_the_documentation_says(replica_dir: Path) -> None:
    root, before = replica_dir, engine.jvm_pid()
    assert all(callable(getattr(tsql, name)) for name in IN_THE_DOCUMENTATION)
    new_table(root / "HumanResources", "Employee", {1: ("a", 1)})
    with pytest.raises(cdc.CdcUsageError, match="not enabled"):
        tsql.sp_cdc_help_change_data_capture(root)
    assert tsql.sp_cdc_enable_db(root)
    assert not tsql.sp_cdc_enable_db(root)
    # Enabling a table creates the capture and the cleanup job; the instance is named after schema and table.
    assert tsql.sp_cdc_help_jobs(root) == ()
    tsql.sp_cdc_enable_table(root, "HumanResources", "Employee", "admin", captured_column_list="id, note")
    (found,) = tsql.sp_cdc_help_change_data_capture(root, "HumanResources", "Employee")
    assert (found.capture_instance, found.role_name) == ("HumanResources_Employee", "admin")
    assert [each.column_name for each in tsql.sp_cdc_get_captured_columns(root, found.capture_instance)] == [
        *("id", "note")
    ]
    assert [(job.job_type, job.retention) for job in tsql.sp_cdc_help_jobs(root)] == [
        *(("capture", None), ("cleanup", 4320))
    ]
    # A table has two instances at most.
    tsql.sp_cdc_enable_table(root, "HumanResources", "Employee", capture_instance="second")
    with pytest.raises(cdc.CdcUsageError) as third:
        tsql.sp_cdc_enable_table(root, "HumanResources", "Employee", capture_instance="third")
    assert third.value.number == 22962
    # The interval of the database ends at the highest LSN; each instance has its own low end.
    low, high = tsql.fn_cdc_get_min_lsn(root, "second"), tsql.fn_cdc_get_max_lsn(root)
    assert (
        ZERO
        == tsql.fn_cdc_get_min_lsn(root, "nobody")
        < tsql.fn_cdc_get_min_lsn(root, found.capture_instance)
        < low
    )
    assert low == high == tsql.fn_cdc_decrement_lsn(tsql.fn_cdc_increment_lsn(high or b""))
    time = tsql.fn_cdc_map_lsn_to_time(root, low)
    assert time is not None
    assert tsql.fn_cdc_map_time_to_lsn(root, "largest less than or equal", time) == high
    assert tsql.fn_cdc_map_time_to_lsn(root, "smallest greater than", datetime.now(UTC)) is None
    assert tsql.fn_cdc_get_column_ordinal(root, "second", "qty") == 3
    assert tsql.fn_cdc_is_bit_set(3, b"\x04")
    assert tsql.fn_cdc_has_column_changed(root, "second", "qty", b"\x04")
    assert (tsql.sp_cdc_get_ddl_history(root, "second"), tsql.dm_cdc_errors(root)) == ((), ())
    assert tsql.sp_cdc_scan(root).cycles == 0
    assert tsql.sp_cdc_cleanup_change_table(root, "second", high).rows == {"second": 0}
    assert tsql.sp_cdc_stop_job(root, "capture").requested == "stopped"
    assert tsql.sp_cdc_start_job(root, "capture").requested == "started"
    assert tsql.sp_cdc_change_job(root, "cleanup", retention=60).retention == 60
    tsql.sp_cdc_drop_job(root, "cleanup")
    assert tsql.sp_cdc_add_job(root, "cleanup", start_job=False).requested == "stopped"
    # Without instances the database stays enabled.
    assert tsql.sp_cdc_disable_table(root, "HumanResources", "Employee", "second") == ("second",)
    tsql.sp_cdc_disable_table(root, "HumanResources", "Employee", "all")
    assert (tsql.sp_cdc_help_change_data_capture(root), cdc.Database(root).is_enabled()) == ((), True)
    tsql.sp_cdc_disable_db(root)
    assert not cdc.Database(root).is_enabled()
    assert engine.jvm_pid() == before
