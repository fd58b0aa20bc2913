"""The failpoints of each engine, and those that its code passes: a new one cannot be forgotten."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2] / "mergerepl"


def points_in(*folders: str, named: Sequence[str] = ()) -> set[str]:
    """Return every failpoint that code passes, with those of its redo logs; `named` are the values of names in braces."""
    return {name for folder in folders for call in calls_in(folder) for name in _points_of(call, named)}


def calls_in(folder: str) -> Iterator[ast.Call]:
    """Yield the calls in the modules of a folder."""
    for path in sorted({*(ROOT / folder).glob("*.py")} - {ROOT / "store/redo.py"}):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield node


def _points_of(call: ast.Call, named: Sequence[str]) -> set[str]:
    called = getattr(call.func, "id", "")
    if called == "failpoint":
        return _names_of(call.args[0], named)
    if called != "RedoLog":
        return set()
    files = _names_of(call.args[3], [""]) if len(call.args) > 3 else {"plan"}
    return {
        f"{engine}.{when}_{file.partition('-')[0]}"
        for engine in _names_of(call.args[2], [""])
        for file in files
        for when in ("before", "after")
    }


def _names_of(argument: ast.expr, named: Sequence[str]) -> set[str]:
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    if isinstance(argument, ast.IfExp):
        return _names_of(argument.body, named) | _names_of(argument.orelse, named)
    assert isinstance(argument, ast.JoinedStr)
    parts = [part.value if isinstance(part, ast.Constant) else None for part in argument.values]
    return {"".join(name if part is None else str(part) for part in parts) for name in named}


LADDER = (
    "capture.before_genhistory",
    "capture.before_contents",
    "run.before_contents",
    "run.after_contents",
    "run.before_tombstone",
    "run.after_tombstone",
    "capture.before_replinfo",
    "capture.after_replinfo",
    "stage.before_pointer",
    "stage.before_manifest",
    "stage.after_manifest",
    "publisher.before_merge",
    "publisher.after_merge",
    "conflicts.before_rows",
    "conflicts.after_rows",
    "conflicts.before_info",
    "conflicts.after_info",
    "bookkeeping.before_genhistory",
    "bookkeeping.before_replinfo",
    "bookkeeping.after_replinfo",
    "publisher.after_done",
    "subscriber.before_merge",
    "subscriber.after_merge",
    "subscriber.after_done",
    "watermarks.before_subscriber",
    "watermarks.after_subscriber",
    "watermarks.before_publisher",
    "watermarks.after_publisher",
    "history.before_publisher",
    "history.before_articles_of_publisher",
    "history.before_message_of_publisher",
    "history.before_subscriber",
    "history.before_articles_of_subscriber",
    "history.before_message_of_subscriber",
    "session.before_drop",
    "session.before_unlink",
    "session.after_drop",
)
"""In the order in which a session passes them, the publisher's side first: the sides run beside each other."""


SOME = ("publisher.after_merge",)
"""That of a short ladder. By default a sync dies by kill -9 after `stage.after_manifest`."""


CAPTURED_BEFORE = (
    "generations.before_close",
    "generations.after_close",
    # The first run that such a session appends is the one that it applies.
    "run.before_contents",
    "run.after_contents",
    "run.before_tombstone",
    "run.after_tombstone",
)
"""Of a session for which `mergerepl capture` has captured everything."""


LATE = ("late.before_manifest", "late.after_manifest")
"""Of a session beside which users wrote."""


MAPPED = (
    "run.before_mappings",
    "run.after_MSmerge_current_partition_mappings",
    "run.after_MSmerge_past_partition_mappings",
    "run.after_MSmerge_generation_partition_mappings",
)
"""Of a run of a publisher with row filters: they follow the others of the run."""


PARTITION_CHANGED = ("partition.after_group", "partition.before_row", "partition.after_row")
"""Failpoints of a session that moves its subscriber to another partition."""


FILTERS_CHANGED = (
    *("filter.before_definition", "filter.after_definitions", "filter.after_next"),
    *("filter.before_run", "filter.after_move"),
)
"""Failpoints of an `apply` that changes filters; passed in tests/partitions/test_changed_filters.py."""


ENDED = (
    *("end.before_sent", "end.after_sent", "end.before_ended", "end.after_ended"),
    *("end.before_forgotten", "end.after_forgotten"),
)
"""Failpoints of a session of a publication with an article that ends; passed in tests/publish/test_ended_article.py."""


QUIET = ("quiet.before_move",)
"""Of a session without changes, at each commit by which it moves what is settled."""


CLEANED = (
    "cleanup.before_cleaned",
    "cleanup.after_cleaned",
    "cleanup.before_rewrite",
    "cleanup.after_rewrite",
)
"""Of a cleanup of metadata."""

UNUSED_FILES = ("files.before_removed", "files.after_removed")
"""Of a cleanup of the files of system tables."""


REINITIALISED = ("reinit.after_export", "reinit.after_taken", "reinit.before_void", "reinit.after_void")
"""Of a reinitialisation: what it keeps, gives up, and the commit from which former metadata does not count."""


COLUMNS_CHANGED = (
    *(
        "schema.before_record",
        "schema.after_record",
        "schema.after_capture",
        "schema.before_published_columns",
    ),
    *("schema.before_alter", "schema.after_alter", "schema.before_capture", "schema.before_dropped_values"),
    *("schema.between_dropped_values", "schema.after_dropped_values", "schema.before_articles"),
    *("schema.before_published_version", "schema.after_articles", "schema.between_skips"),
    *("replace.after_capture", "replace.after_properties"),
)
"""Of a session, a capture, an `apply` or a skip that follows columns; passed in tests/schema."""


REPAIRED = ("repair.before_losing_rows", "repair.before_info", "repair.after_losers")
"""Of a repair; passed in tests/monitoring/test_merge_repair.py."""


GIVEN_UP = ("give_up.before_move", "give_up.after_move", "give_up.before_pointer")
"""Of a session that is given up."""
