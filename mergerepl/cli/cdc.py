"""`mergerepl cdc`: Change Data Capture over a folder of Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mergerepl.cli import cdc_reading
from mergerepl.cli.cdc_reading import LsnType
from mergerepl.cli.help import Group
from mergerepl.cli.options import limit_option, reporting
from mergerepl.cli.report.output import Output
from mergerepl.cli.report.table import Columns, Part, cell, listing
from mergerepl.model.words import counted, moment_text

if TYPE_CHECKING:
    from mergerepl.logreader.lsn import Lsn
    from mergerepl.model.cdc import DatabaseStatus, StatusWarning

root_argument = click.argument("root", metavar="ROOT")
source_argument = click.argument("source", metavar="TABLE")
instance_argument = click.argument("instance", metavar="INSTANCE")

_INSTANCES: Columns = {
    "instance": "capture_instance",
    "table": lambda each: f"{each.source_schema}.{each.source_table}",
    "key": "index_column_list",
    "net changes": "supports_net_changes",
    "start_lsn": "start_lsn",
    "end_lsn": "end_lsn",
    "columns": "captured_column_list",
}
_CAPTURED_COLUMNS: Columns = {
    ">ordinal": "column_ordinal",
    "column": "column_name",
    "type": "column_type",
    "in the table": lambda each: each.source_name or "dropped",
}
_DDL_HISTORY: Columns = {
    "lsn": "ddl_lsn",
    "time": "ddl_time",
    "change table rewritten": "required_column_update",
    "statement": "ddl_command",
}
_SOURCES: Columns = {
    "table": "source",
    "status": "status",
    ">read": "position",
    ">head": "head",
    ">unread": "unread_commits",
    "VACUUM is safe until": lambda each: each.vacuum_safe_until or "any time",
    "log_reuse_wait": "log_reuse_wait",
    "instances": "capture_instances",
}
_ERRORS: Columns = {
    "time": "entry_time",
    ">number": "error_number",
    ">severity": "error_severity",
    "message": "error_message",
}


def database_parts(found: DatabaseStatus) -> list[Part]:
    """Return the sources with their positions, and the validity interval."""
    low, high = cell(found.min_lsn) or "none", cell(found.max_lsn) or "none"
    parts: list[Part] = [
        listing(found.sources, _SOURCES),
        f"LSNs: {low} to {high} ({moment_text(found.max_time) or 'no time'}).",
    ]
    if found.has_plan:
        parts.append("A scan cycle was begun and not finished: the next scan goes on with it.")
    return parts + [f"{each.source}: {each.reason}" for each in found.sources if each.reason]


@click.group(cls=Group)
def cdc() -> None:
    """Capture the changes of tables into change tables, for ETL jobs and other consumers.

    ROOT is a folder of Delta tables, TABLE a table's folder below it.

    Example:
      mergerepl cdc enable-db ./shop
      mergerepl cdc enable-table ./shop orders --index order_id
      mergerepl cdc capture ./shop
    """


@cdc.command("enable-db")
@root_argument
@click.option(
    "--log-retention",
    metavar="TIME",
    default="7 days",
    show_default=True,
    help="How long removed files of captured tables are kept at least.",
)
@reporting
def enable_db(root: str, log_retention: str, output: Output) -> None:
    """Enable a folder of tables for Change Data Capture.

    Example:
      mergerepl cdc enable-db ./shop
    """
    from mergerepl.cdc import tsql

    is_new = tsql.sp_cdc_enable_db(root, log_retention=log_retention)
    text = "is enabled" if is_new else "was enabled already; nothing was changed"
    output.reported({"database": root, "enabled": True, "changed": is_new}, [f"{root} {text}."])


@cdc.command("disable-db")
@root_argument
@reporting
def disable_db(root: str, output: Output) -> None:
    """Disable a database: all capture instances go, with their rows.

    Example:
      mergerepl cdc disable-db ./shop
    """
    from mergerepl import cdc as api

    database = api.Database(root)
    was = database.is_enabled()
    database.disable()
    text = "is no longer enabled" if was else "was not enabled; nothing was changed"
    output.reported({"database": root, "enabled": False, "changed": was}, [f"{root} {text}."])


@cdc.command("enable-table")
@root_argument
@source_argument
@click.option("--capture-instance", metavar="NAME", help="Name of the instance; else <schema>_<table>.")
@click.option("--index", metavar="COLUMNS", help="The columns that identify a row, with commas between them.")
@click.option("--index-name", metavar="NAME", help="A name for the key; stored and shown only.")
@click.option("--columns", metavar="COLUMNS", help="The columns to capture, with commas; else all.")
@click.option("--role", "role_name", metavar="NAME", help="Gating role; stored and shown only.")
@click.option("--net/--no-net", "net", default=None, help="Support net changes; else if there is a key.")
@click.option(
    "--on-gap",
    type=click.Choice(["compare", "stop"]),
    default="compare",
    show_default=True,
    help="What becomes of versions whose change feed is gone.",
)
@reporting
def enable_table(
    root: str,
    source: str,
    capture_instance: str | None,
    index: str | None,
    index_name: str | None,
    columns: str | None,
    role_name: str | None,
    net: bool | None,
    on_gap: str,
    output: Output,
) -> None:
    """Capture a table: a capture instance begins. A table has two at most.

    Example:
      mergerepl cdc enable-table ./shop orders --index order_id
      mergerepl cdc enable-table ./shop bronze/eu/items --columns id,price --index id
    """
    from mergerepl import cdc as api

    begun = api.Database(root).enable(
        source,
        key=index,
        columns=columns,
        name=capture_instance,
        net=net,
        on_gap=on_gap,
        role_name=role_name,
        index_name=index_name,
    )
    found = begun.describe().instance
    output.reported(
        found,
        [
            f"Capture instance {found.capture_instance} begins at {cell(found.start_lsn)}. "
            "Run `mergerepl cdc capture`, or the agent, to capture what comes."
        ],
    )


@cdc.command("disable-table")
@root_argument
@source_argument
@click.option(
    "--capture-instance", metavar="NAME", required=True, help="Name of the instance, or all of the table."
)
@reporting
def disable_table(root: str, source: str, capture_instance: str, output: Output) -> None:
    """End a capture instance: its change table goes, with its rows.

    Example:
      mergerepl cdc disable-table ./shop orders --capture-instance dbo_orders
      mergerepl cdc disable-table ./shop orders --capture-instance all
    """
    from mergerepl import cdc as api

    name = None if capture_instance == "all" else capture_instance
    names = api.Database(root).disable(source, name=name)
    output.reported({"disabled": names}, [f"Disabled: {', '.join(names)}."])


@cdc.command("help")
@root_argument
@click.argument("source", metavar="[TABLE]", required=False)
@reporting
def help_(root: str, source: str | None, output: Output) -> None:
    """List the capture instances, of all tables or of one.

    Example:
      mergerepl cdc help ./shop orders
    """
    from mergerepl import cdc as api

    found = api.Database(root).instances(source)
    output.reported({"capture_instances": found}, [listing(found, _INSTANCES)])


@cdc.command()
@root_argument
@instance_argument
@reporting
def columns(root: str, instance: str, output: Output) -> None:
    """List the captured columns of an instance.

    Example:
      mergerepl cdc columns ./shop dbo_orders
    """
    from mergerepl import cdc as api

    found = api.Database(root).instance(instance).columns()
    output.reported({"columns": found}, [listing(found, _CAPTURED_COLUMNS)])


@cdc.command("ddl-history")
@root_argument
@instance_argument
@reporting
def ddl_history(root: str, instance: str, output: Output) -> None:
    """List what was changed of the columns of an instance's table.

    Example:
      mergerepl cdc ddl-history ./shop dbo_orders
    """
    from mergerepl import cdc as api

    found = api.Database(root).instance(instance).ddl_history()
    output.reported({"ddl_history": found}, [listing(found, _DDL_HISTORY)])


@cdc.command()
@root_argument
@click.option(
    "--maxtrans",
    metavar="N",
    type=int,
    default=1000,
    show_default=True,
    help="Transactions of a cycle at most.",
)
@click.option("--maxscans", metavar="N", type=int, default=10, show_default=True, help="Cycles at most.")
@reporting
@click.pass_context
def capture(ctx: click.Context, root: str, maxtrans: int, maxscans: int, output: Output) -> None:
    """Capture what is new, once. Exit code 1 says that a table is paused.

    Example:
      mergerepl cdc capture ./shop
    """
    from mergerepl import cdc as api

    result = api.Database(root).capture(maxtrans=maxtrans, maxscans=maxscans)
    parts = ["Nothing is new."]
    if result.cycles:
        rows, cycles = counted(result.rows, "row"), counted(result.cycles, "cycle")
        parts = [
            f"{counted(result.transactions, 'transaction')}, {rows} in {cycles}. "
            f"Highest LSN: {cell(result.last_lsn) or 'as before'}.",
            *(f"Paused: {reason}" for reason in result.paused.values()),
        ]
    output.reported(result, parts)
    if result.paused:
        ctx.exit(1)


@cdc.command()
@root_argument
@click.option(
    "--check",
    is_flag=True,
    help="Warn of paused tables, of feeds that are off, and of commits that are not captured.",
)
@reporting
def status(root: str, check: bool, output: Output) -> int:
    """Show how far each table was read, until when VACUUM is safe, and which LSNs are valid.

    With --check the exit code is 0 if all is well, 1 for a warning (commits are unread for longer than 30 seconds, less
    than a quarter of the time is left until VACUUM may remove them, or a table's feed is off), 2 if it is critical (no time
    is left, or a table is paused), 3 if it is not known.

    Example:
      mergerepl cdc status ./shop
      mergerepl cdc status ./shop --check
    """
    from mergerepl import cdc as api
    from mergerepl.cli.look import report_check

    def find() -> tuple[DatabaseStatus, list[StatusWarning]]:
        found = api.Database(root).status()
        return found, [*found.warnings]

    if check:
        return report_check(find, output)
    found = api.Database(root).status()
    output.reported(found, database_parts(found))
    return 0


@cdc.command()
@root_argument
@limit_option("At most so many, newest first.")
@reporting
def errors(root: str, limit: int, output: Output) -> None:
    """List errors and notices of scans.

    Example:
      mergerepl cdc errors ./shop
    """
    from mergerepl import cdc as api

    found = api.Database(root).history(failed=True, limit=limit)
    output.reported({"errors": found}, [listing(found, _ERRORS) if found else "No errors."])


@cdc.command()
@root_argument
@instance_argument
@click.option("--compare", is_flag=True, help="Take the difference of the versions around a gap.")
@click.option("--restart", is_flag=True, help="Begin again at the table's head; consumers take a snapshot.")
@reporting
def resume(root: str, instance: str, compare: bool, restart: bool, output: Output) -> None:
    """Let a paused table in again: what was not read gets new LSNs.

    Example:
      mergerepl cdc resume ./shop dbo_orders --compare
    """
    from mergerepl import cdc as api

    was = api.Database(root).resume(instance, compare=compare, restart=restart)
    text = "The table of" if was else "Nothing was changed: the table of"
    how = "is captured again" if was else "is not paused"
    output.reported({"capture_instance": instance, "changed": was}, [f"{text} {instance} {how}."])


@cdc.command()
@root_argument
@reporting
def adopt(root: str, output: Output) -> None:
    """Take over a database whose folder was moved or copied. A copy gets LSNs of its own from then on.

    Example:
      mergerepl cdc adopt ./shop-copy
    """
    from mergerepl import cdc as api

    is_copy = api.Database(root).relocate()
    text = "A new epoch begins: its LSNs are higher than all before." if is_copy else "Its LSNs go on."
    output.reported({"database": root, "new_epoch": is_copy}, [f"{root} is adopted. {text}"])


@cdc.command()
@root_argument
@click.option("--show", "lsn", metavar="LSN", type=LsnType(), help="Show the parts of this LSN.")
@reporting
def lsn(root: str, lsn: Lsn | None, output: Output) -> None:
    """Show the lowest and the highest LSN that can be asked for, or the parts of one.

    Example:
      mergerepl cdc lsn ./shop
      mergerepl cdc lsn ./shop --show 0x003757F80000002A0003
    """
    from mergerepl import cdc as api

    if lsn is not None:
        epoch, cycle = divmod(lsn.scan_cycle, 1 << 32)
        parts = {"lsn": str(lsn), "epoch": epoch, "cycle": cycle, "slot": lsn.slot}
        output.reported(parts, [f"{lsn} is {epoch}:{cycle}:{lsn.slot} (epoch:cycle:slot)."])
        return
    found = api.Database(root).status()
    low, high = cell(found.min_lsn), cell(found.max_lsn)
    output.reported(
        {"min_lsn": low, "max_lsn": high, "max_time": found.max_time},
        [f"{low or 'none'} to {high or 'none'}"],
    )


for _command in cdc_reading.COMMANDS:
    cdc.add_command(_command)
