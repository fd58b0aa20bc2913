"""Fences: the commits that stop an earlier holder of a root on a store. Its writers by delta-rs are tried here."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.fences import FENCE_APP_ID
from mergerepl.delta.marks import CommitMark, is_own_of_merge
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, commit_fence, commit_properties
from mergerepl.delta.writes import add_files
from mergerepl.errors import CommitConflictError, LeaseError
from mergerepl.replica.application_ids import application_ids
from mergerepl.replica.fence import fence_new_table, stop_own_writes
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import ROOT_LOCK, Pace, Register, take
from mergerepl.store.storage import storage

AT_ONCE = Pace(1e-9)
ROWS = pa.table({"id": pa.array([1], pa.int64())})
APP = "mergerepl-runs"


@pytest.fixture
def root(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """An empty root, and no registers held."""
    monkeypatch.setattr("mergerepl.store.register._held", {})
    return Location.of(f"s3://{bucket}/hq")


@pytest.fixture
def table(root: Location) -> Location:
    """A table at version 0."""
    write_deltalake(str(root / "t"), ROWS, storage_options=storage_options(root))
    return root / "t"


def hold(root: Location) -> Register:
    """Take the register of a root over, as its holder of this process."""
    import mergerepl.store.register as module

    at = root / ROOT_LOCK
    register = take(storage(at), at, purpose="a test", pace=AT_ONCE)
    module._held[at] = register
    return register


def act_as(register: Register) -> None:
    """Let this process hold what another one held."""
    import mergerepl.store.register as module

    module._held[register.at] = register


def last_commit(table: Location) -> dict[str, dict]:
    version = open_table(table).version
    found = storage(table).read(table / "_delta_log" / f"{version:020}.json")
    assert found is not None
    actions = [json.loads(line) for line in found[0].splitlines()]
    return {
        "app": {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each},
        "kinds": sorted(kind for each in actions for kind in each),
        "mark": CommitMark.of_user_metadata(
            next(each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each)
        ),
    }


def written(number: int) -> Transaction:
    return Transaction(APP, number, CommitMark("s", f"run:{number}", "R"))


def test_a_fence_names_the_applications_with_their_last_numbers(root, table):
    first = hold(root)
    add_files(open_table(table), {}, written(7))
    assert last_commit(table)["app"] == {APP: (1 << 32) + 7}
    second = hold(root)
    commit_fence(table, second.fence, [APP, "never"])
    found = last_commit(table)
    assert found["app"] == {FENCE_APP_ID: 2, APP: (2 << 32) + 7, "never": 2 << 32}
    assert found["kinds"] == ["commitInfo", "txn", "txn", "txn"]
    assert found["mark"] == CommitMark("fence", "fence:2")
    assert is_own_of_merge(found["mark"], "any replica")
    assert open_table(table).transaction_version(APP) == 7
    version = open_table(table).version
    commit_fence(table, second.fence, [APP])
    assert open_table(table).version == version
    add_files(open_table(table), {}, written(8))
    assert open_table(table).transaction_version(APP) == 8
    assert first.fence == 1


def test_what_a_displaced_agent_opened_before_the_fence_is_not_committed(root, table):
    first = hold(root)
    opened = open_table(table)
    raw = DeltaTable(str(table), storage_options=storage_options(table))
    second = hold(root)
    commit_fence(table, second.fence, [APP])
    act_as(first)
    with pytest.raises(CommitConflictError, match="at the same time"):
        add_files(opened, {}, written(8))
    # Not even rows without a transaction, which delta-rs would commit behind the fence by default.
    with pytest.raises(CommitFailedError):
        write_deltalake(raw, ROWS, mode="append", commit_properties=commit_properties(table))
    assert last_commit(table)["mark"] == CommitMark("fence", "fence:2")


def test_a_displaced_agent_opens_no_fenced_table_for_writing(root, table):
    first = hold(root)
    second = hold(root)
    commit_fence(table, second.fence, [APP])
    act_as(first)
    version = open_table(table).version
    with pytest.raises(LeaseError, match="was taken over by another agent"):
        add_files(open_table(table), {}, written(8))
    assert open_table(table).version == version


@pytest.mark.parametrize("folder", [".", "_mergerepl"])
def test_a_fence_waits_for_other_writers(root, folder, monkeypatch):
    monkeypatch.setattr("mergerepl.delta.transactions.RETRY_WAIT_S", 0)
    table = root.join(folder, "t") if folder != "." else root / "t"
    write_deltalake(str(table), ROWS, storage_options=storage_options(root))
    register = hold(root)
    state, tries = open_table(table), iter(["first"])

    def opened_once(path: Location):
        if next(tries, None):
            write_deltalake(str(table), ROWS, mode="append", storage_options=storage_options(table))
            return state
        return open_table(path)

    monkeypatch.setattr("mergerepl.delta.transactions.open_table", opened_once)
    commit_fence(table, register.fence, [APP])
    assert last_commit(table)["app"] == {FENCE_APP_ID: 1, APP: 1 << 32}
    assert open_table(table).version == 2


def test_what_an_agent_has_in_flight_ends_with_a_give_up(root):
    table = root.join("_mergerepl", "MSmerge_contents")
    write_deltalake(str(table), ROWS, storage_options=storage_options(root))
    register = hold(root)
    opened = open_table(table)
    stop_own_writes(root)
    assert register.fence == 2
    with pytest.raises(CommitConflictError):
        add_files(opened, {}, written(7))
    assert last_commit(table)["app"] == {FENCE_APP_ID: 2, **dict.fromkeys(application_ids(()), 2 << 32)}
    add_files(open_table(table), {}, written(7))
    assert last_commit(table)["app"] == {APP: (2 << 32) + 7}


def test_a_table_that_is_made_again_is_fenced_before_it_gets_rows(root):
    table, fields = root / "t", [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]

    def make() -> None:
        create_table(table, NewTable(fields), CommitMark("s", "setup:create"))

    first = hold(root)
    make()
    opened = open_table(table)
    storage(table).delete_tree(table)
    second = hold(root)
    make()
    assert fence_new_table(table, [APP]) == 1
    act_as(first)
    with pytest.raises(CommitConflictError, match="at the same time"):
        add_files(opened, {}, written(7))
    storage(table).delete_tree(table)
    act_as(second)
    second.forget()
    make()
    act_as(first)
    add_files(opened, {}, written(7))
    act_as(second)
    with pytest.raises(CommitConflictError, match="which was just made"):
        fence_new_table(table, [APP])
