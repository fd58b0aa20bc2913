"""The system tables of a tracked folder: an edit is noticed, and the commit sequence is purged by own anchors. No Spark."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import mergerepl
import mergerepl.tracking
from mergerepl.errors import StoreError
from mergerepl.model.tracking import CommittedTransaction
from mergerepl.store.location import Location
from mergerepl.systables.tracking import COMMIT_SEQUENCE, COMMITS, CONSUMERS, OutOfSequence
from mergerepl.tracking import consumers
from mergerepl.tracking.change_tracking import ChangeTracking, SqlCeChangeTracking
from mergerepl.tracking.counters import change_counters, create_database
from mergerepl.tracking.database import Database, Session, create_tables, packed, require_unedited

NOW = datetime.now(UTC)
BEFORE = NOW - timedelta(days=10)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A folder in which transactions 1 and 2 committed in the other order, then 3 and 4 ten days later."""
    found = Database(Location.of(tmp_path))
    create_database(found.root)
    create_tables(found, retention=timedelta(days=30))
    change_counters(found.root, lambda each: replace(each, last_bsn=4, last_csn=4))
    times = {1: BEFORE, 2: BEFORE, 3: NOW, 4: NOW}
    found.control.append(
        COMMITS,
        [
            CommittedTransaction(csn, bsn, times[csn], f"n{csn}", None, {"orders": csn})
            for csn, bsn in ((1, 2), (2, 1), (3, 4), (4, 3))
        ],
    )
    found.control.append(
        COMMIT_SEQUENCE,
        [OutOfSequence(packed(b), packed(c), times[c]) for b, c in ((2, 1), (1, 2), (4, 3), (3, 4))],
    )
    return found


def purged(database: Database, **terms: object) -> tuple[int, int, int | None, list[int]]:
    stated = {"older_than": None, "to": None, **terms}
    done = consumers.purge(Session(database), None, **stated, dry_run=False)  # type: ignore[arg-type]
    left = sorted(int.from_bytes(row.csn, "big") for row in database.control.rows(COMMIT_SEQUENCE))
    return done.removed, done.held_back, done.bound_csn, left


def test_an_application_purges_by_its_own_anchors(database: Database) -> None:
    assert purged(database, to=2) == (2, 0, None, [3, 4])
    assert [row.csn for row in database.control.rows(COMMITS)] == [2, 3, 4]
    assert purged(database, older_than="1 day") == (0, 0, None, [3, 4])
    assert purged(database, to=4) == (2, 0, None, [])
    # The last transaction stays: the next window begins at its snapshot.
    assert [row.csn for row in database.control.rows(COMMITS)] == [4]
    # The file of the rows that the first purge removed goes a day later.
    note = Path(database.control.folder / "quiet" / "unused-files.json")
    noted = json.loads(note.read_text())
    note.write_text(json.dumps({n: {**each, "at": BEFORE.isoformat()} for n, each in noted.items()}))
    before = [*Path(database.control.path(COMMIT_SEQUENCE.name)).glob("*.parquet")]
    purged(database, to=4)
    assert sum(file.exists() for file in before) == len(before) - 1


def test_cleanup_purges_what_all_registered_consumers_have_passed(database: Database) -> None:
    def removed(**terms: Any) -> list[tuple[int, bool]]:
        done = mergerepl.Project.load(database.root).cleanup(**terms).removed
        return [(each.rows, each.note is not None) for each in done]

    assert removed() == [(0, True)], "applications may hold anchors of their own"
    mergerepl.ChangeTracking(database.root).consumer("reader")
    change_consumer = {"lcsn": 3, "lbsn": 3}
    database.control.change_where(CONSUMERS, change_consumer, name="reader")
    assert removed() == [(0, False)], "they are not ninety days old"
    terms = {"only": ["tombstones"], "older_than": timedelta(days=9)}
    assert removed(**terms, dry_run=True) == removed(**terms) == [(2, False)]
    assert purged(database, older_than="0 days") == (0, 2, 3, [3, 4])


def test_edits_of_system_tables_are_noticed(database: Database) -> None:
    for table in (COMMIT_SEQUENCE.name, COMMITS.name, CONSUMERS.name):
        require_unedited(database)
        path = str(database.control.path(table))
        version = DeltaTable(path).version()
        if table == CONSUMERS.name:
            DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
            continue
        DeltaTable(path).delete("true")
        with pytest.raises(
            StoreError, match=f"'{table}' .* was edited: its version {version + 1} .DELETE. is not ours"
        ):
            require_unedited(database)
        with pytest.raises(StoreError, match=f"VERSION AS OF {version}"), Session(database).held("test"):
            pass
        DeltaTable(path).restore(version)
    require_unedited(database)


def test_upgrading_is_a_member_of_the_original_s_class_alone() -> None:
    found = [
        f"{place.__name__}.{name}"
        for place in (mergerepl, mergerepl.tracking, ChangeTracking, SqlCeChangeTracking)
        for name in dir(place)
        if "upgrade" in name.lower()
    ]
    assert found == ["SqlCeChangeTracking.UpgradePublicTracking"]
