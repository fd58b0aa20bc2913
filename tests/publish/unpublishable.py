"""Tables that cannot be published: how each comes to be, the article that names it, and what is said of it."""

import shutil
from collections.abc import Callable

from mergerepl.model.publication import Article
from tests.networks import Hub
from tests.publish.publishing import column, orders

ID = column("id", "integer")


def with_fields(*fields: dict[str, object], **properties: str) -> Callable[[Hub], None]:
    def prepare(hub: Hub) -> None:
        hub.empty_table("orders", list(fields), **properties)

    return prepare


def file_at_table(hub: Hub) -> None:
    (hub.publisher / "orders").write_text("x")


def parquet_without_log(hub: Hub) -> None:
    hub.table("orders", {"id": [1]})
    shutil.rmtree(hub.publisher / "orders" / "_delta_log")


def empty_log(hub: Hub) -> None:
    (hub.publisher / "orders" / "_delta_log").mkdir(parents=True)


def truncated_last_commit(hub: Hub) -> None:
    hub.table("orders", {"id": [1]})
    hub.table("orders", {"id": [2]}, mode="append")
    (hub.publisher / "orders" / "_delta_log" / f"{1:020d}.json").write_text("")


def missing_first_commit(hub: Hub) -> None:
    hub.table("orders", {"id": [1]})
    hub.table("orders", {"id": [2]}, mode="append")
    (hub.publisher / "orders" / "_delta_log" / f"{0:020d}.json").unlink()


def edited_protocol(old: str, new: str) -> Callable[[Hub], None]:
    def prepare(hub: Hub) -> None:
        log = hub.table("orders", {"id": [1]}) / "_delta_log" / f"{0:020d}.json"
        text = log.read_text()
        assert old in text
        log.write_text(text.replace(old, new))

    return prepare


VECTOR = {
    "type": "udt",
    "class": "org.apache.spark.ml.linalg.VectorUDT",
    "pyClass": "pyspark.ml.linalg.VectorUDT",
    "sqlType": {"type": "struct", "fields": [column("type", "byte")]},
}


PROTOCOL = '"minReaderVersion":1,"minWriterVersion":2'


TABLES: dict[str, tuple[Callable[[Hub], None], Article, str]] = {
    "no folder": (lambda hub: None, orders(), "does not exist.*create the table"),
    "a file": (file_at_table, orders(), "is a file, not a Delta table"),
    "an empty folder": (lambda hub: (hub.publisher / "orders").mkdir(), orders(), "is no Delta table"),
    "Parquet without a log": (parquet_without_log, orders(), "CONVERT TO DELTA"),
    "an empty log": (empty_log, orders(), "empty Delta log"),
    "a truncated last commit": (truncated_last_commit, orders(), r"00000000000000000001\.json was not written"),
    "a missing commit": (missing_first_commit, orders(), r"00000000000000000000\.json"),
    "an unknown feature": (
        edited_protocol(
            PROTOCOL, '"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["timeTravelPlus"]'
        ),
        orders(),
        "feature timeTravelPlus.*DROP FEATURE",
    ),
    "managed by a catalog": (
        edited_protocol(
            PROTOCOL,
            '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["catalogManaged"],'
            '"writerFeatures":["catalogManaged","inCommitTimestamp"]',
        ),
        orders(),
        "managed by a catalog, such as Unity Catalog, and cannot be written by path.*or copy it to one",
    ),
    "a newer protocol": (
        edited_protocol(PROTOCOL, '"minReaderVersion":4,"minWriterVersion":8'),
        orders(),
        "minimum reader version 4",
    ),
    "isolation": (
        with_fields(ID, **{"delta.isolationLevel": "WriteSerializable"}),
        orders(),
        "isolationLevel = WriteSerializable.*Set it to Serializable",
    ),
    "append-only": (with_fields(ID, **{"delta.appendOnly": "true"}), orders(), "append-only.*Unset"),
    "an identity column": (
        with_fields(ID, column("n", "long", **{"delta.identity.start": 1})),
        orders(),
        "'n' is an identity column",
    ),
    "an interval": (with_fields(ID, column("i", "interval day to second")), orders(), "'i' is an interval"),
    "VOID": (with_fields(ID, column("x", "void")), orders(), "'x' is VOID"),
    "VARIANT": (with_fields(ID, column("x", "variant")), orders(), "'x' is VARIANT.*columns:"),
    "VARIANT in a struct": (
        with_fields(ID, column("s", {"type": "struct", "fields": [column("x", "variant")]})),
        orders(),
        "'s' is VARIANT",
    ),
    "a user-defined type": (
        with_fields(ID, column("features", VECTOR)),
        orders(),
        r"orders' has a column of a user-defined type.*published or not\. Store it as",
    ),
    "a user-defined type in an array that is left out": (
        with_fields(ID, column("features", {"type": "array", "elementType": VECTOR, "containsNull": True})),
        orders(columns=("id",)),
        "a column of a user-defined type",
    ),
    "names equal but for case": (
        with_fields(ID, column("ID", "string")),
        orders(),
        r"Duplicate field name \(case-insensitive\): 'ID'",
    ),
    "a column of the feed": (with_fields(ID, column("_change_type", "string")), orders(), "'_change_type'.*Rename"),
    "a column of the feed that is left out": (
        with_fields(ID, column("_Commit_Version", "long")),
        orders(columns=("id",)),
        r"'_Commit_Version'.*whether the column is published or not\. Rename the column\.$",
    ),
    "a column of the MERGE that is left out": (
        with_fields(ID, column("_Row_Dropped_", "long")),
        orders(columns=("id",)),
        r"'_Row_Dropped_'.*that Delta's MERGE needs for itself.*Rename the column\.$",
    ),
    "a column of the conflict table": (with_fields(ID, column("modifieddate", "date")), orders(), "'modifieddate'"),
    "rowguid that is not the identity": (
        with_fields(ID, column("rowguid", "string")),
        orders(),
        "'rowguid'.*`rowguid: rowguid`",
    ),
    "a name of ours": (with_fields(ID, column("__mr_x", "string")), orders(), "'__mr_x'"),
    "a part with a name that needs column mapping": (
        with_fields(ID, column("s", {"type": "struct", "fields": [column("unit price", "integer")]})),
        orders(),
        "'s' has a part with the name 'unit price'.*column mapping",
    ),
    "a name that needs column mapping": (with_fields(ID, column("a b", "string")), orders(), "'a b'.*column mapping"),
    "partition columns alone": (
        lambda hub: hub.table("orders", {"id": [1], "a": [2]}, partition_by=["id"]),
        orders(columns=("id",)),
        "all columns but those that the table is partitioned by",
    ),
    "no key": (with_fields(ID), orders(key=()), "has no key"),
    "a missing key column": (with_fields(ID), orders(key=("nr",)), "the key names column 'nr'.*The table has id"),
    "a key in the wrong case": (with_fields(ID), orders(key=("Id",)), "Did you mean 'id'"),
    "a key column twice": (with_fields(ID), orders(key=("id", "id")), "names a column twice"),
    "a float key": (with_fields(column("id", "float")), orders(), "key column 'id' is float"),
    "a map key": (
        with_fields(
            column("id", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True})
        ),
        orders(),
        "key column 'id' is map<string,bigint>",
    ),
    "an array key": (
        with_fields(column("id", {"type": "array", "elementType": "long", "containsNull": True})),
        orders(),
        "key column 'id' is array<bigint>",
    ),
    "a struct key": (
        with_fields(column("id", {"type": "struct", "fields": [ID]})),
        orders(),
        "key column 'id' is struct<id:int>",
    ),
    "a collated string": (
        with_fields(ID, column("s", "string", __COLLATIONS={"s": "spark.UTF8_LCASE"})),
        orders(),
        "'s' is a collated string",
    ),
    "a rowguid that is a number": (with_fields(ID), orders(key=(), rowguid="id"), "rowguid column 'id' is int"),
    "a rowguid that is missing": (with_fields(ID), orders(key=(), rowguid="g"), "column 'g'"),
    "columns that are missing": (with_fields(ID), orders(columns=("id", "z")), "`columns` names column 'z'"),
    "columns that leave out NOT NULL": (
        with_fields(ID, column("must", "string", nullable=False)),
        orders(columns=("id",)),
        "'must' is left out by `columns:` but is NOT NULL without a default",
    ),
}  # fmt: skip
