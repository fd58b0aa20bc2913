"""What a feed window says of a table: a path and a position are all it needs."""

import json
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.window import FeedPosition, FeedWindow, feed_window
from mergerepl.delta.log import commit_text, log_path
from mergerepl.delta.marks import CommitMark, CommitUnit, is_own_of_merge

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}


def columns(
    *names: str, partitions: tuple[str, ...] = (), types: dict[str, Any] | None = None, **properties: str
) -> dict[str, Any]:
    """Return a metaData action."""
    types = types or {}
    fields = [
        {"name": name, "type": types.get(name, "long"), "nullable": True, "metadata": {}} for name in names
    ]
    return {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partitions),
            "configuration": {"delta.enableChangeDataFeed": "true", **properties},
        }
    }


def rows(operation: str = "WRITE", mark: CommitMark | None = None, **info: str) -> tuple[dict[str, Any], ...]:
    """Return the actions of a commit that changes rows."""
    stated = {"operation": operation, **info}
    stated |= {"userMetadata": mark.to_user_metadata()} if mark is not None else {}
    return {"commitInfo": stated}, {"remove": {"path": "x.parquet", "dataChange": True}}


PLAIN = columns("id", "a")


def written(table: Path, *commits: tuple[dict[str, Any], ...]) -> Path:
    """Write a table's log: version 0 makes it, then these commits."""
    for version, actions in enumerate([(PROTOCOL, PLAIN), *commits]):
        log_path(table, version).parent.mkdir(parents=True, exist_ok=True)
        log_path(table, version).write_text("\n".join(json.dumps(action) for action in actions))
    return table


def window(table: Path, version: int = 0, commit: str | None = None, **bounds: int) -> FeedWindow:
    return feed_window(table, FeedPosition("t", version, commit), **bounds)


def nobody(mark: CommitMark | None) -> bool:
    return False


def changes(found: FeedWindow) -> list[Commit]:
    return found.changes(nobody)


# Commits after version 0; the versions that each frame begins and ends with.
SEGMENTS: dict[str, tuple[list[tuple[dict[str, Any], ...]], list[tuple[int, int]]]] = {
    "rows alone are one": ([rows(), rows(), rows()], [(1, 3)]),
    "what changes no rows is not read": ([rows(), ({"commitInfo": {}},), rows(), ({"commitInfo": {}},)], [(1, 3)]),
    "a property cuts nothing": ([rows(), (columns("id", "a", x="y"),), rows()], [(1, 3)]),
    "an added column cuts": ([rows(), (columns("id", "a", "b"),), rows()], [(1, 1), (3, 3)]),
    "a dropped column cuts": ([rows(), (columns("id"),), rows()], [(1, 1), (3, 3)]),
    "another type cuts": ([rows(), (columns("id", "a", types={"a": "string"}),), rows(), rows()], [(1, 1), (3, 4)]),
    "columns and rows of one commit begin a frame": (
        [rows(), (*rows(), columns("id", "a", "b")), rows()],
        [(1, 1), (2, 3)],
    ),
    "another partitioning cuts": ([rows(), (columns("id", "a", partitions=("a",)),), rows()], [(1, 1), (3, 3)]),
    "columns that come back cut twice": (
        [rows(), (columns("id"),), rows(), (PLAIN,), rows()],
        [(1, 1), (3, 3), (5, 5)],
    ),
    "columns that changed before the first row cut nothing": ([(columns("id"),), rows(), rows()], [(2, 3)]),
    "columns that changed after the last row cut nothing": ([rows(), rows(), (columns("id"),)], [(1, 2)]),
    "nothing is no frame": ([({"commitInfo": {}},)], []),
}  # fmt: skip


@pytest.mark.parametrize(("commits", "expected"), SEGMENTS.values(), ids=SEGMENTS)
def test_a_frame_has_the_versions_that_one_schema_describes(
    tmp_path: Path, commits: list[tuple[dict[str, Any], ...]], expected: list[tuple[int, int]]
) -> None:
    found = window(written(tmp_path / "t", *commits))
    segments = found.segments(changes(found), ["id"])
    assert [(each.from_version_inclusive, each.through_version_inclusive) for each in segments] == expected


def test_a_frame_says_what_of_it_does_not_count_and_what_the_files_say(tmp_path: Path) -> None:
    ours = CommitMark("s", "apply:publisher:1:0", "r")
    table = written(
        tmp_path / "t",
        rows(),
        rows(mark=ours),
        (columns("id", "a", x="y"),),
        rows("UPDATE", engineInfo="delta-rs:1.6.0"),
        rows(mark=ours),
    )
    found = window(table)
    counted = found.changes(lambda mark: is_own_of_merge(mark, "r"))
    (segment,) = found.segments(counted, ["id"])
    assert (segment.left_out, segment.by_files, segment.is_one_metadata) == ((2,), (4,), False)
    # To somebody else these are changes as others are.
    (segment,) = found.segments(found.changes(lambda mark: is_own_of_merge(mark, "another")), ["id"])
    assert (segment.through_version_inclusive, segment.left_out) == (5, ())


def test_a_window_ends_where_it_is_asked_to(tmp_path: Path) -> None:
    table = written(tmp_path / "t", rows(), rows(), rows())
    found = window(table, 1, through_version_inclusive=2)
    assert ([each.version for each in found.commits], found.head_version) == ([2], 3)
    assert window(table, 1, through_version_inclusive=9).through_version_inclusive == 3


def test_a_table_that_is_not_there_is_a_fact(tmp_path: Path) -> None:
    found = window(tmp_path / "t", 4)
    assert (found.head_version, found.commits, found.is_older, found.is_at_position) == (
        None,
        (),
        False,
        False,
    )


def test_a_table_is_unchanged_only_at_the_very_commit_of_the_position(tmp_path: Path) -> None:
    table = written(tmp_path / "t", rows())
    known = commit_text(table, 1)
    assert window(table, 1, known).is_unchanged
    # What commit it was is not known: it may be another one.
    assert (window(table, 1).is_at_position, window(table, 1).is_unchanged) == (True, False)
    other = window(table, 1, "1:another")
    assert (other.is_another_commit, other.is_at_position, other.is_unchanged) == (True, False, False)
    assert window(table, 2).is_older


def test_a_log_that_lacks_commits_is_a_gap_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    table = written(tmp_path / "t", rows(), rows(), rows())
    log_path(table, 2).write_text("{")
    found = window(table)
    assert [each.version for each in found.commits] == [1]
    assert found.unreadable is not None
    assert "is damaged" in found.unreadable.message
    assert not found.is_truncated
    for version in (0, 1):
        log_path(table, version).unlink()
    found = window(table)
    assert (found.is_truncated, found.gap([])) == (True, "versions are gone from its log")


def test_a_feed_that_was_off_is_a_gap_only_where_somebody_wrote(tmp_path: Path) -> None:
    off, on = columns("id", "a", **{"delta.enableChangeDataFeed": "false"}), PLAIN
    ours = CommitMark("s", "apply:publisher:1:0", "r")
    found = window(written(tmp_path / "t", (off,), rows(mark=ours), (on,), rows()))
    assert found.gap(found.changes(lambda mark: is_own_of_merge(mark, "r"))) is None
    assert found.gap(changes(found)) == "Change Data Feed was off at version 2"


MARKS = [
    CommitMark("s", "apply:publisher:1:0"),
    CommitMark("s", "track:7", "r", "p"),
    CommitMark("s", "distribute", "r", unit=CommitUnit("u", ("orders", "bronze/lines"))),
]


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.kind)
def test_a_mark_is_read_as_it_was_written(mark: CommitMark) -> None:
    found = CommitMark.of_user_metadata(mark.to_user_metadata())
    assert (found, found and found.unit) == (mark, mark.unit)


@pytest.mark.parametrize(
    "text",
    [
        *(None, 3, "", "{}", '{"mergerepl":', '{"mergerepl":3}', '{"mergerepl":{"session":"s"}}'),
        *('{"mergerepl":{"session":"s","step":"x","unit":3}}', '{"mergerepl_unit":{"id":"u","tables":[]}}'),
    ],
)
def test_what_others_write_there_is_no_mark(text: object) -> None:
    assert CommitMark.of_user_metadata(text) is None
