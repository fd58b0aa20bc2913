"""What a process keeps of a root in a store for the next one: it saves requests, and hides no damage."""

from collections.abc import Callable

import pyarrow as pa
import pytest

import mergerepl.delta.known_heads as known_heads
import mergerepl.delta.log as delta_log
import mergerepl.delta.own_log as own_log
import mergerepl.store.objects as objects
import mergerepl.store.register as registers
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.kept_knowledge import adopt_knowledge, keep_knowledge
from mergerepl.delta.known_heads import trust_heads
from mergerepl.delta.log import head_version, log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.small_tables import read_rows, write_rows
from mergerepl.delta.table import open_table
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.register import looking
from mergerepl.store.storage import storage
from tests.store.order_tables import orders, write_orders
from tests.store.proxy import Proxy

FIELDS = [{"name": "seq", "type": "long", "nullable": True, "metadata": {}}]


def append(table: Location, number: int) -> None:
    rows = pa.table({"seq": pa.array([number], pa.int64())})
    write_rows(table, rows, mode="append", properties={}, once=("app", number))


def as_in_a_new_process() -> None:
    for known in (own_log._logs, own_log._transactions, known_heads._heads, delta_log._contents):
        known.clear()
    objects._kept.clear()
    registers._released.clear()


@pytest.fixture
def root(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A root with a user's table and a system table of three rows, kept by a process that has ended."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", "600")
    root = Location.of(f"s3://{bucket}/hq")
    write_orders(root)
    table = history(root)
    with lease(root, purpose="a test"):
        create_table(table, NewTable(FIELDS, (), {}), CommitMark("s", "setup:create"))
        for number in (1, 2, 3):
            append(table, number)
        assert open_table(root / "orders").transaction_version("app") == -1
        assert values(root) == [1, 2, 3]
        keep_knowledge(root, [table])
    as_in_a_new_process()
    return root


def history(root: Location) -> Location:
    return root.join("_mergerepl", "MSmerge_history")


def values(root: Location) -> list[int]:
    return sorted(row["seq"] for row in read_rows(history(root), ("seq",)))


def of_a_session(root: Location, work: Callable[[], object]) -> object:
    """Do what a session does: look, then take the root."""
    with looking(root):
        trust_heads(root)
        adopt_knowledge(root)
        with lease(root, purpose="a test"):
            return work()


def test_a_new_process_reads_one_listing_and_one_object(root: Location, proxy: Proxy) -> None:
    proxy.reset()
    assert of_a_session(root, lambda: values(root)) == [1, 2, 3]
    # The register; what was kept; both PUTs are those of the register.
    assert proxy.counts() == {"GET": 2, "LIST": 1, "PUT-IF": 2}


def test_commits_after_it_was_kept_are_read(root: Location) -> None:
    of_a_session(root, lambda: append(history(root), 4))
    as_in_a_new_process()
    assert of_a_session(root, lambda: values(root)) == [1, 2, 3, 4]


def test_the_log_of_a_users_table_is_read_on_from_where_it_was_kept(root: Location, proxy: Proxy) -> None:
    orders(root).delete("id = 1")
    proxy.reset()

    def work() -> tuple[int, list[str]]:
        state = open_table(root / "orders")
        return state.version, [field["name"] for field in state.fields]

    assert of_a_session(root, work) == (1, ["id", "item", "qty"])
    read = [each.key for each in proxy.requests if each.kind == "GET" and "/orders/" in each.key]
    assert [key.rpartition("/")[2] for key in read] == [f"{1:020}.json"]


def head_and_log(root: Location) -> tuple[int, own_log.OwnLog | None]:
    with looking(root):
        trust_heads(root)
        adopt_knowledge(root)
        return head_version(history(root)), own_log.known_log(history(root))


def test_a_table_that_has_lost_a_file_is_read_as_it_is(root: Location) -> None:
    files = [each for each in storage(root).files_below(history(root)) if each.name.startswith("part-")]
    storage(root).delete(files[0])
    assert head_and_log(root) == (3, None)


def test_a_table_that_was_restored_from_a_copy_is_read_as_it_is(root: Location) -> None:
    storage(root).delete(log_path(history(root), 3))
    assert head_and_log(root) == (2, None)


def test_what_cannot_be_read_is_ignored(root: Location) -> None:
    storage(root).put(root.join("_mergerepl", "quiet", "known"), b"no such thing")
    assert of_a_session(root, lambda: values(root)) == [1, 2, 3]
