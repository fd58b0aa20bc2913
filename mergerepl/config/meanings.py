"""The meaning of every key of the project file, in Markdown: for docs/keys.md, and for editors in the JSON Schema."""

import re
from typing import Any, Final

_PUBLISHER = "the publisher's folder or URI, relative to the file; it must exist, and lie in no other replica"
_SUBSCRIPTIONS = "the subscribers; may be empty"
_ALERTS = (
    "from when `status` warns ([monitoring](monitoring.md)); not stored, counts from the next command on"
)
_NAME_OF_REPLICA = "what commands call it; default: the last part of its folder"
_CONFLICT_RETENTION = (
    "how long conflicts are [kept](configuration.md#retention), in whole days; `0`: for ever"
)
_FILTER_VALUE = "what `{}()` gives in filters for this subscriber; text of 1 to 128 characters"
_KEY_OR_GUID = "instead of `key`: an existing string column of GUIDs"
_FOLDER = "its folder inside of {}; default: the name"

MEANINGS: Final[dict[str, dict[str, str]]] = {
    "PublicationKeys": {
        "publication": "its name",
        "publisher": _PUBLISHER,
        "articles": "the published tables",
        "subscriptions": _SUBSCRIPTIONS,
        "retention": "how long the published tables' logs and removed files, and "
        "[metadata of rows](protocol.md#13-metadata-cleanup-and-expiry), are kept at least, in whole hours. A subscription "
        "for which changes wait longer, by more than a day, expires: it is refused",
        "conflict_retention": _CONFLICT_RETENTION,
        "conflict_logging": "where losing rows are kept",
        "engine": "where a `sync` computes, and who writes the tables: with `auto` this process where at most 10,000 rows "
        "changed, and delta-rs where at most 100,000 did, else Spark; with `spark` Spark alone: "
        "[small changes](configuration.md#small-changes)",
        "joins": "row [filters through joins](filters.md#joins)",
        "allow_partition_realignment": "whether a row that leaves a subscriber's partition is removed there. `false` is "
        "refused by this version",
        "catalog": "[the schema that names the publisher's tables](clusters.md#names-in-a-catalog) in the catalog of a "
        "Spark session",
        "alerts": _ALERTS,
    },
    "ArticleKeys": {
        "name": "its name; two articles' names differ in more than case or Unicode form",
        "table": _FOLDER.format("each replica"),
        "key": "the columns that identify a row; with `tracking: column` none that is generated from several columns "
        "outside of the key",
        "rowguid": _KEY_OR_GUID,
        "tracking": "what conflicts: two changes of one row, or of one column",
        "columns": "only these columns travel; the key is always among them",
        "resolver": "how conflicts are decided",
        "filter": 'which rows travel: a clause such as `"region = HOST_NAME()"`, see [filters](filters.md)',
        "partition_options": "of a filtered article: whether partitions may overlap, and what a subscriber may write: "
        "[the options](filters.md#partition_options)",
        "compensate_for_errors": "a change that a table refuses "
        "[waits where it was made](conflicts.md#rows-that-a-table-refuses); with `upload` a subscriber's change that the "
        "publisher's table refuses [is undone there](conflicts.md#compensate_for_errors). `true`, which would undo the "
        "publisher's changes as well, is refused by this version",
    },
    "ResolverKeys": {
        "name": "[one of the resolvers](conflicts.md#resolvers)",
        "resolution": "the winner's whole row wins, or only the conflicting columns are lost (needs `tracking: column`)",
        "column": "the column that it reads or makes",
        "columns": "several that it makes",
        "delimiter": "of `merge_text`: what stands between two texts",
        "update_delete": "who wins where one side deleted the row; default: by priority",
        "resolver_info": "the column, as SQL Server states it",
        "function": "of `custom`: the name of [a function of the agent](conflicts.md#resolvers-of-your-own)",
    },
    "JoinKeys": {
        "article": "the article whose rows are taken along",
        "parent": "the article whose rows take them along",
        "on": "the comparison of their columns",
        "unique": "whether the parent's columns in `on` contain its key",
    },
    "SubscriptionKeys": {
        "subscriber": "its folder, beside the publisher's and the others', never inside; a table belongs to one replica, "
        "also by a link; it is no publisher, and has no other publisher",
        "name": _NAME_OF_REPLICA,
        "type": "`server`: its changes keep their own priority; `client`: the first to reach the publisher wins",
        "priority": "0.00 to 99.99; the publisher has 100. A `client` has none; default: 75.0",
        "sync_type": "`automatic`: starts from a snapshot; `none`: it holds the data already, in tables in its own folder "
        "(no links out of it) with exactly the published columns: the same types (char and varchar by their length) and "
        "generation expressions, NULL allowed where the publisher's column allows it; a string or binary column is a "
        "partition column of both tables or of neither",
        "host_name": _FILTER_VALUE.format("HOST_NAME"),
        "suser_sname": _FILTER_VALUE.format("SUSER_SNAME"),
        "catalog": "[the schema that names its tables](clusters.md#names-in-a-catalog); `apply` registers new ones there",
    },
    "AlertKeys": {
        "expiration": "a change waits for a subscriber for this part of the retention; default: 80%",
        "pending_hours": "a change waits for a subscriber for so many hours; of transactional publications 30 seconds",
        "run_seconds": "the last session took longer",
        "min_rows_per_second": "the last session of at least 50 rows was slower",
        "uninitialized": "a subscriber has no first copy of the rows; `false` leaves the warning out",
        "capture_lag": "commits stay uncaptured for this part of the retention of files and log; default: 50%, in a "
        "captured folder 75%",
        "conflicts_per_session": "the last session met more conflicts",
    },
    "TransactionalKeys": {
        "publication": "its name",
        "publisher": _PUBLISHER,
        "articles": "the published tables",
        "subscriptions": _SUBSCRIPTIONS,
        "retention": "how long commands are kept at most; default: 72 hours",
        "min_retention": "how long delivered commands are kept at least; default: 0 hours",
        "conflict_retention": "of [subscribers that write](transactional.md#subscribers-that-write): "
        f"{_CONFLICT_RETENTION}",
        "conflict_policy": "who wins where a subscriber writes",
        "alerts": _ALERTS,
    },
    "TransactionalArticleKeys": {
        "name": "its name",
        "table": _FOLDER.format("the publisher"),
        "key": "the columns that identify a row",
        "columns": "only these columns are sent",
        "filter": "only rows are sent that meet a condition on columns",
        "ins_cmd": "[how an insert is sent](transactional.md#methods)",
        "upd_cmd": "how an update is sent",
        "del_cmd": "how a delete is sent",
        "text_columns": "columns whose old values `XCALL` leaves out; no key columns",
        "singleton_key_updates": "whether an update of one row's key is sent as an update",
    },
    "TransactionalSubscriptionKeys": {
        "subscriber": "the folder that receives",
        "name": _NAME_OF_REPLICA,
        "sync_type": "`none`: the tables have the rows already. Another one of a subscription that has begun is for its "
        "next snapshot",
        "verify": "with `sync_type: none`: whether the rows are compared first",
        "skip_errors": "[errors](transactional.md#batches-and-errors) that do not stop the agent: 20598, 2627, 2601",
        "streams": "articles that are worked on at a time",
        "destination": "article to table below the subscriber; default: the same table",
        "procedures": "a procedure that articles call, to the [one of your own](transactional.md#procedures-of-your-own) "
        "that this subscriber has in its place",
        "updatable": "`queued`: the [subscriber writes, too](transactional.md#subscribers-that-write)",
    },
    "CaptureKeys": {
        "root": "the folder of the tables; it must exist",
        "tables": "the [capture instances](cdc.md); two of one table at most. `[]`: the folder is enabled, and no table is "
        "captured",
        "retention": "how long change rows are kept, in whole minutes; 3 days in a new folder",
        "log_retention": "how long removed files of the tables are kept at least, in whole hours; 7 days in a new folder",
        "interval": "the pause between two captures of the agent, in seconds; 5s in a new folder",
        "jobs": "parameters of the [jobs](cdc.md#jobs)",
        "alerts": _ALERTS,
    },
    "CaptureTableKeys": {
        "table": "the table's folder below the root",
        "name": "the instance's name; default: `<folder>_<table>`, with `dbo` for a table in the root",
        "key": "the columns that identify a row; default: the key of the article that publishes the table, else none",
        "columns": "only these columns are captured; default: all that the table has when the instance begins",
        "net": "whether net changes can be read; default: `true` with a key",
        "on_gap": "versions without a feed are compared, or stop the capture",
    },
    "JobKeys": {"capture": "of the job `capture`", "cleanup": "of the job `cleanup`"},
    "CaptureJobKeys": {
        "maxtrans": "transactions of a scan cycle at most",
        "maxscans": "cycles before it waits",
        "continuous": "whether it goes on after a wait",
    },
    "CleanupJobKeys": {"threshold": "rows of a statement at most", "schedule": "time of day"},
    "TrackingKeys": {
        "root": "the folder of the tables; it must exist",
        "tables": "the [tracked tables](compact.md)",
        "retention": "how long removed files and the log of the tables are kept at least, in whole hours",
        "foreign": "commits outside of transactions become transactions, or are an error",
    },
    "TrackingTableKeys": {
        "table": "the table's folder in the root",
        "key": "the columns that identify a row",
        "rowguid": _KEY_OR_GUID,
        "track": "what is tracked: `insert`, `update`, `delete` or `all`",
    },
}
"""Model -> key -> meaning. `type` has none: it chooses the model."""
MEANINGS["DeliveryAlertKeys"] = MEANINGS["CaptureAlertKeys"] = MEANINGS["AlertKeys"]
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def add_meanings(schema: dict[str, Any]) -> None:
    """Give each key of a JSON Schema its meaning, without links and code marks."""
    for model, stated in schema["$defs"].items():
        for key, value in stated["properties"].items():
            if key in MEANINGS[model]:
                value["description"] = _LINK.sub(r"\1", MEANINGS[model][key])
