"""Command types, their parameters, the texts of commands and of generated procedures."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mergerepl
from mergerepl.errors import ConfigurationError
from mergerepl.transactional.article_procedures import batch_script, batch_text, procedure_text
from mergerepl.transactional.call_syntax import (
    Arguments,
    CommandType,
    Operation,
    bitmask,
    call_text,
    default_procedure,
    statement_text,
)
from mergerepl.transactional.refusals import TransactionalError, TransactionalUsageError, require_streams
from tests import project_files as config
from tests.transactional import publications

INSERT, UPDATE, DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

PARAMETERS = [
    (INSERT, "CALL", "c1 c2 c3"),
    (INSERT, "SQL", "c1 c2 c3"),
    (INSERT, "NONE", ""),
    (UPDATE, "CALL", "c1 c2 c3 pkc1 pkc2"),
    (UPDATE, "SCALL", "c1 c2 c3 pkc1 pkc2 bitmap"),
    (UPDATE, "MCALL", "c1 c2 c3 pkc1 pkc2 bitmap"),
    (UPDATE, "XCALL", "old_c1 old_c2 old_c3 c1 c2 c3"),
    (UPDATE, "NONE", ""),
    (DELETE, "CALL", "pkc1 pkc2"),
    (DELETE, "XCALL", "old_c1 old_c2 old_c3"),
    (DELETE, "SQL", "pkc1 pkc2"),
    (DELETE, "NONE", ""),
]


@pytest.mark.parametrize(("operation", "text", "expected"), PARAMETERS)
def test_the_parameters_of_each_method(operation: Operation, text: str, expected: str) -> None:
    assert CommandType.parse(text, operation).parameters(3, 2) == expected.split()


@pytest.mark.parametrize(
    ("operation", "text", "stored", "procedure"),
    [
        (UPDATE, "xcall audit_update", "XCALL audit_update", "audit_update"),
        (UPDATE, "SCALL [sp_MSupd_dboorders]", "SCALL sp_MSupd_dboorders", "sp_MSupd_dboorders"),
        (INSERT, " CALL ", "CALL", None),
        (DELETE, "none", "NONE", None),
    ],
)
def test_a_command_type_is_read(operation: Operation, text: str, stored: str, procedure: str | None) -> None:
    command = CommandType.parse(text, operation)
    assert (command.text, command.procedure) == (stored, procedure)


@pytest.mark.parametrize(
    ("operation", "text", "said"),
    [
        (INSERT, "SCALL", "ins_cmd may be CALL, SQL, NONE"),
        (INSERT, "XCALL", "ins_cmd may be CALL, SQL, NONE"),
        (DELETE, "MCALL", "del_cmd may be CALL, XCALL, SQL, NONE"),
        (UPDATE, "VCALL", "for internal use"),
        (UPDATE, "SQL my_procedure", "SQL calls no procedure"),
        (UPDATE, "XCALL os:system", "letters, digits and _ only"),
        (UPDATE, "", "upd_cmd may be CALL, SCALL"),
    ],
)
def test_a_method_that_does_not_fit_is_refused(operation: Operation, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CommandType.parse(text, operation)


@pytest.mark.parametrize(
    ("changed", "columns", "expected"),
    [
        ({3, 8}, 8, "8400"),
        ({3, 10}, 10, "0402"),
        ({5, 8, 9, 13, 14}, 14, "9031"),
        ({9}, 9, "0001"),
        ({7}, 7, "40"),
    ],
)
def test_the_bitmask(changed: set[int], columns: int, expected: str) -> None:
    assert bitmask(changed, columns).hex() == expected


ORDER = Arguments(
    old=["7", "'N'", "10.00", "'x'"], new=["7", "'N'", "12.50", "'x'"], pk=["7"], bitmap=b"\x04"
)


@pytest.mark.parametrize(
    ("operation", "method", "expected"),
    [
        (UPDATE, "CALL", "(7,'N',12.50,'x',7)"),
        (UPDATE, "SCALL", "(,,12.50,,7,0x04)"),
        (UPDATE, "MCALL", "(7,'N',12.50,'x',7,0x04)"),
        (UPDATE, "XCALL", "(7,'N',10.00,'x',7,'N',12.50,'x')"),
        (DELETE, "CALL", "(7)"),
        (DELETE, "XCALL", "(7,'N',10.00,'x')"),
        (INSERT, "CALL", "(7,'N',12.50,'x')"),
    ],
)
def test_the_text_of_a_command(operation: Operation, method: str, expected: str) -> None:
    command = CommandType.parse(method, operation)
    name = default_procedure(operation, "orders")
    assert call_text(command, name, ORDER) == f"{{CALL [sp_MS{operation}_dboorders] {expected}}}"


def test_the_page_shows_the_commands_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transactional.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| `(\{.*\})` \|$", page, re.M))
    name = default_procedure(UPDATE, "orders")
    assert shown == {
        method: call_text(CommandType.parse(method, UPDATE), name, ORDER)
        for method in ("CALL", "SCALL", "MCALL", "XCALL")
    }


def test_a_key_change_by_scall_sends_the_new_key_and_its_bit() -> None:
    given = Arguments(new=["8", "NULL", "NULL", "NULL"], pk=["7"], bitmap=b"\x01")
    command = CommandType.parse("SCALL", UPDATE)
    assert call_text(command, "p", given) == "{CALL [p] (8,,,,7,0x01)}"


@pytest.mark.parametrize(
    ("operation", "versions", "expected", "parameters"),
    [
        (INSERT, (None, b"\x02"), "(7,'N',12.50,'x',0x02)", "c1 c2 new_version"),
        (
            UPDATE,
            (b"\x01", b"\x02"),
            "(7,'N',12.50,'x',7,0x04,0x01,0x02)",
            "c1 c2 pkc1 bitmap old_version new_version",
        ),
        (DELETE, (b"\x01", None), "(7,0x01)", "pkc1 old_version"),
    ],
)
def test_vcall_sends_the_versions_of_the_row(
    operation: Operation, versions: tuple[bytes | None, ...], expected: str, parameters: str
) -> None:
    command = CommandType.stored("VCALL", operation)
    assert call_text(command, "p", replace(ORDER, versions=versions)) == f"{{CALL [p] {expected}}}"
    assert command.parameters(2, 1) == parameters.split()


def test_procedures_of_vcall_set_a_row_whether_it_is_there_or_not() -> None:
    methods = dict.fromkeys(("ins_cmd", "upd_cmd", "del_cmd"), "VCALL")
    shape = publications.shape(("id", "qty"), ("int", "int"), ("id",), **methods)
    sets = "WHEN MATCHED THEN UPDATE SET\n  t.`id` = s.c1,\n  t.`qty` = s.c2\n"
    for operation in (INSERT, UPDATE):
        text = procedure_text(shape, operation, "/s/t")
        assert f"s.c1\n{sets}WHEN NOT MATCHED THEN INSERT (`id`, `qty`) VALUES (s.c1, s.c2);" in text
        assert "raise_error" not in text
    assert "`id` = s.pkc1\nWHEN MATCHED THEN DELETE;" in procedure_text(shape, DELETE, "/s/t")


def test_the_statements_of_sql() -> None:
    columns, key = ["`order_id`", "`amount`"], ["`order_id`"]
    given = Arguments(new=["7", "12.50"], pk=["7"])
    assert statement_text(UPDATE, "t", columns, key, given) == (
        "UPDATE t SET `order_id` = 7, `amount` = 12.50 WHERE `order_id` = 7"
    )
    assert statement_text(INSERT, "t", columns, key, given) == (
        "INSERT INTO t (`order_id`, `amount`) VALUES (7, 12.50)"
    )
    assert statement_text(DELETE, "t", columns, key, given) == "DELETE FROM t WHERE `order_id` = 7"


def test_the_ninth_column_has_the_first_bit_of_the_second_byte() -> None:
    names = tuple(f"n{k}" for k in range(1, 10))
    shape = publications.shape(names, ("int",) * 9, ("n1",))
    text = procedure_text(shape, UPDATE, "/s/t")
    assert "substring(s.bitmap, 2, 1)), 16, 10) AS int) & 1 = 1 THEN s.c9" in text


def test_a_batch_has_the_clauses_of_its_operations() -> None:
    shape = publications.shape(("id", "qty"), ("int", "int"), ("id",))
    assert re.findall("THEN [A-Z]+", batch_text(shape, "/s/t")) == [
        "THEN DELETE",
        "THEN UPDATE",
        "THEN INSERT",
    ]
    assert re.findall("THEN [A-Z]+", batch_text(shape, "/s/t", operations=[UPDATE])) == ["THEN UPDATE"]
    # Delta takes no MERGE without a clause; a batch without effect is a commit, too.
    assert re.findall("THEN [A-Z]+", batch_text(shape, "/s/t", operations=[])) == ["THEN DELETE"]


def test_a_printed_batch_says_what_its_commands_are() -> None:
    shape = publications.shape(("id", "note"), ("int", "string"), ("id",))
    *comments, last = batch_script(shape, "/s/t").split("\n", 2)
    assert all(line.startswith("-- ") for line in comments)
    assert (
        "pkc1 INT, its values c1 INT, c2 STRING, which of them are set set1 BOOLEAN, set2 BOOLEAN"
        in comments[1]
    )
    assert last == batch_text(shape, "/s/t") + ";"


def test_names_are_quoted() -> None:
    shape = publications.shape(
        ("k`1", "v 2"), ("int", "string"), ("k`1",), article="odd", destination_object="a`b/c.d"
    )
    text = procedure_text(shape, UPDATE, "/s/a`b/c.d")
    assert "MERGE INTO delta.`/s/a``b/c.d` AS t" in text
    assert "t.`k``1` = s.pkc1" in text


VENDOR_INSERT = """
create procedure [sp_MSins_PurchasingVendor]
  @c1 int,@c2 nvarchar(15),@c3 nvarchar(50),@c4 tinyint,@c5 bit,@c6 bit,@c7 nvarchar(1024),@c8 datetime
as
begin
insert into [Purchasing].[Vendor]([VendorID]
,[AccountNumber]
,[Name]
,[CreditRating]
,[PreferredVendorStatus]
,[ActiveFlag]
,[PurchasingWebServiceURL]
,[ModifiedDate])
values (
 @c1
,@c2
,@c3
,@c4
,@c5
,@c6
,@c7
,@c8
 )
end
"""
VENDOR_UPDATE = """
create procedure [sp_MSupd_PurchasingVendor]
 @c1 int = null,@c2 nvarchar(15) = null,@c3 nvarchar(50) = null,@c4 tinyint = null,@c5 bit = null,@c6 bit = null,@c7 nvarchar(1024) = null,@c8 datetime = null,@pkc1 int
,@bitmap binary(2)
as
begin
update [Purchasing].[Vendor] set
 [AccountNumber] = case substring(@bitmap,1,1) & 2 when 2 then @c2 else [AccountNumber] end
,[Name] = case substring(@bitmap,1,1) & 4 when 4 then @c3 else [Name] end
,[CreditRating] = case substring(@bitmap,1,1) & 8 when 8 then @c4 else [CreditRating] end
,[PreferredVendorStatus] = case substring(@bitmap,1,1) & 16 when 16 then @c5 else [PreferredVendorStatus] end
,[ActiveFlag] = case substring(@bitmap,1,1) & 32 when 32 then @c6 else [ActiveFlag] end
,[PurchasingWebServiceURL] = case substring(@bitmap,1,1) & 64 when 64 then @c7 else [PurchasingWebServiceURL] end
,[ModifiedDate] = case substring(@bitmap,1,1) & 128 when 128 then @c8 else [ModifiedDate] end
where [VendorID] = @pkc1
if @@rowcount = 0
    if @@microsoftversion>0x07320000
        exec sp_MSreplraiserror 20598
end
"""  # noqa: E501
VENDOR_DELETE = """
create procedure [sp_MSdel_PurchasingVendor]
  @pkc1 int
as
begin
delete [Purchasing].[Vendor]
where [VendorID] = @pkc1
if @@rowcount = 0
    if @@microsoftversion>0x07320000
        exec sp_MSreplraiserror 20598
end
"""
"""The procedures of the original's page "Specify How Changes Are Propagated for Transactional Articles", word for word."""

NUMBERS = {"int": "INT", "tinyint": "SMALLINT", "bit": "BOOLEAN", "datetime": "TIMESTAMP"}
"""Types of the original in Spark; nvarchar is STRING."""


def of_the_original(text: str) -> tuple[str, list[str]]:
    """Return the name of a procedure of the original, and its parameters in Spark's types."""
    name = re.search(r"procedure \[(\w+)\]", text)
    assert name
    parameters = re.findall(r"@(\w+) (\w+)(\(\d+\))?", text.partition("\nas\n")[0])
    return name[1], [
        f"{parameter} BINARY{size}" if type_ == "binary" else f"{parameter} {NUMBERS.get(type_, 'STRING')}"
        for parameter, type_, size in parameters
    ]


def test_the_three_procedures_of_the_vendor_table_are_those_of_the_original() -> None:
    columns = tuple(re.findall(r"\[(\w+)\][\n)]", VENDOR_INSERT)[1:])
    types = ("int", "string", "string", "smallint", "boolean", "boolean", "string", "timestamp")
    shape = publications.shape(
        columns,
        types,
        ("VendorID",),
        article="Vendor",
        destination_object="Purchasing/Vendor",
        singleton_key_updates=False,
    )
    assert len(columns) == 8
    texts = {
        operation: procedure_text(shape, operation, "/north/Purchasing/Vendor") for operation in Operation
    }
    for operation, original in ((INSERT, VENDOR_INSERT), (UPDATE, VENDOR_UPDATE), (DELETE, VENDOR_DELETE)):
        name, parameters = of_the_original(original)
        title, shown, *_ = texts[operation].splitlines()
        assert title.startswith(f"-- {name}: ")
        assert shown == f"-- A row of `commands` per command: {', '.join(parameters)}"
        number = "20598" if "20598" in original else "2627"
        assert f"SELECT raise_error(concat('{number}: " in texts[operation]
    inserted = re.search(r"INSERT INTO .* \((.*)\)\nSELECT (.*) FROM", texts[INSERT])
    assert inserted
    assert inserted[1] == ", ".join(f"`{name}`" for name in re.findall(r"[(,]\[(\w+)\]", VENDOR_INSERT))
    assert inserted[2] == ", ".join(f"s.c{k}" for k in re.findall(r"[ ,]@c(\d)\n", VENDOR_INSERT))
    assert re.findall(
        r"t\.`(\w+)` = CASE WHEN .*substring\(s\.bitmap, (\d), 1\).* & (\d+) = (\d+) THEN s\.c(\d) ELSE t\.`(\w+)` END",
        texts[UPDATE],
    ) == re.findall(
        r"\[(\w+)\] = case substring\(@bitmap,(\d),1\) & (\d+) when (\d+) then @c(\d) else \[(\w+)\] end",
        VENDOR_UPDATE,
    )
    assert texts[UPDATE].count("CASE WHEN") == 7
    for operation in (UPDATE, DELETE):
        assert "USING commands AS s ON t.`VendorID` = s.pkc1\n" in texts[operation]


FILE = """
publication: feed
type: transactional
publisher: ./hq
min_retention: 1 hour
retention: 3 days
articles:
  - {name: orders, key: [id], columns: [amount], filter: "region <> 'X'", upd_cmd: "xcall audit", del_cmd: NONE}
  - {name: lines, table: bronze/lines, key: [id, line]}
subscriptions:
  - {subscriber: ./north, skip_errors: [20598], streams: 4, destination: {orders: sales/orders}}
"""


def test_a_file_is_read(tmp_path) -> None:
    (tmp_path / "hq").mkdir()
    (tmp_path / "feed.yml").write_text(FILE)
    stated = config.load_feed(tmp_path / "feed.yml")
    orders, lines = stated.articles
    assert (orders.columns, orders.ins_cmd, orders.upd_cmd, orders.del_cmd) == (
        ("id", "amount"),
        "CALL",
        "XCALL audit",
        "NONE",
    )
    assert (lines.table, lines.key, lines.upd_cmd) == ("bronze/lines", ("id", "line"), "SCALL")
    (subscription,) = stated.subscriptions
    assert (subscription.subscriber, subscription.skip_errors) == (str(tmp_path / "north"), (20598,))
    assert stated.max_retention.total_seconds() == 3 * 24 * 3600


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("key: [id], columns", "tracking: row, key: [id], columns", "tracking"),
        ('upd_cmd: "xcall audit"', "upd_cmd: VCALL", "for internal use"),
        ("skip_errors: [20598]", "skip_errors: [547]", "holds 547"),
        ("streams: 4", "streams: 65", "streams is 65; it must be between 1 and 64"),
        ("streams: 4", "subscription_streams: 4", "is not a key any more: write `streams`"),
        ("streams: 4", "updatable: immediate", "updatable is 'immediate'"),
        (
            "publication: feed",
            "publication: feed\nconflict_policy: subscriber wins",
            "may be `publisher wins`. .*type: merge",
        ),
        ("sales/orders}", "_transactional/orders}", "not folders of users' tables"),
        ("destination: {orders:", "destination: {order:", "which is no article"),
        ("{orders: sales/orders}", "{orders: bronze/lines}", "leads two articles to the table"),
        (
            "publisher: ./hq",
            "publisher: ./hq\ndistributor: ./other",
            "distributor is a key of a later version",
        ),
        ("retention: 3 days", "retention: 90 minutes", "in whole hours"),
        ("retention: 3 days", "retention: 30m", "in whole hours"),
        ("min_retention: 1 hour", "min_retention: 9 days", "longer than `retention`"),
        ("table: bronze/lines", "table: orders", "the table 'orders' is there already"),
        ("subscriber: ./north", "subscriber: ./hq", "same folder as the publisher"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, before: str, after: str, said: str) -> None:
    (tmp_path / "hq").mkdir()
    assert before in FILE
    (tmp_path / "feed.yml").write_text(FILE.replace(before, after))
    with pytest.raises(ConfigurationError, match=said):
        config.load_feed(tmp_path / "feed.yml")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"validate": "checksum"}, "`--validate`"),
        ({"engine": "auto"}, "`--engine`"),
        ({"direction": "upload", "engine": "auto"}, "`--direction`, `--engine`"),
    ],
)
def test_what_a_one_way_session_has_not_is_refused(tmp_path, options: dict[str, Any], named: str) -> None:
    (tmp_path / "hq").mkdir()
    (tmp_path / "feed.yml").write_text(FILE)
    with pytest.raises(ConfigurationError, match=rf"goes one way: leave out {named}\."):
        mergerepl.Project.load(tmp_path / "feed.yml").sync(**options)


def test_streams_that_there_cannot_be() -> None:
    for number in (None, 1, 64):
        require_streams(number)
    for number in (0, -1, 65):
        with pytest.raises(TransactionalUsageError, match=f"streams cannot be {number}. .* from 1 to 64"):
            require_streams(number)


def test_a_stop_names_the_command_that_skips() -> None:
    said = str(
        TransactionalError.stopped(20598, Path("/data/hq"), Path("/data/mart"), "No row.", "7", "DELETE")
    )
    assert "`mergerepl sync mart -f /data/hq --skip-errors 20598`" in said
    assert "`skip_errors: [20598]` of the subscription" in said
    assert "`mergerepl transactional skip 7 -f /data/hq --at mart`" in said
