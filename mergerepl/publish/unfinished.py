"""Tables that an interrupted initialisation left at a subscriber: recognise and drop them."""

from collections.abc import Sequence

from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.tables import commits, head_version, is_delta_table, read_commit
from mergerepl.errors import PublicationError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.store.location import Location
from mergerepl.store.storage import remove_folder, remove_leftover, rename
from mergerepl.systables import contents
from mergerepl.systables.table import FOLDER

_DROPPED = f"{FOLDER}.dropped"


def initialise_mark(subid: str, step: str, replid: str = "") -> CommitMark:
    """Return the mark of a commit that initialises a subscription."""
    return CommitMark(f"initialise {subid}", f"{SETUP}:{step}", replid)


def is_unfinished(table: Location, subid: str) -> bool:
    """True if an initialisation of this subscription created the table."""
    if not is_delta_table(table):
        return False
    try:
        mark = read_commit(table, 0).mark
    except StoreError:
        return False
    return mark is not None and mark.session == initialise_mark(subid, "").session


def check_unwritten(root: Location, table: Location) -> None:
    """Check that no user has written to a table that an initialisation created: no user's write is dropped.

    Raises: PublicationError.
    """
    head = head_version(table)
    for commit in commits(table, from_version_exclusive=0, through_version_inclusive=head):
        if commit.data_change and commit.kind != SETUP:
            raise PublicationError(
                f"Subscriber '{root}' was being initialised when it was interrupted, and table '{table}' has "
                f"been written to since (version {commit.version}). Move the table away, run `mergerepl "
                "apply` again, and put those rows in afterwards.",
                replica=str(root),
                table=str(table),
            )


def drop_unfinished(tables: Sequence[Location], subid: str) -> None:
    """Remove the tables that an unfinished initialisation of this subscription created."""
    for table in tables:
        aside = table.with_name(f".{table.name}.mergerepl-dropped")
        remove_leftover(aside)
        if is_unfinished(table, subid):
            check_unwritten(table.parent, table)
            _drop(table, aside)


def drop_unfinished_replica(root: Location, subid: str) -> None:
    """Remove the system tables of a replica that this subscription's initialisation created.

    Only for a subscription that is not active, at a replica that no other publication has joined since: the mark stays
    on the tables for good.
    """
    dropped = root / _DROPPED
    remove_leftover(dropped)
    if is_unfinished(root / FOLDER / contents.NAME, subid):
        _drop(root / FOLDER, dropped)


def _drop(folder: Location, aside: Location) -> None:
    """Rename a folder, then remove it: a half-removed table or replica would pass for a user's."""
    rename(folder, aside)
    failpoint("unfinished.dropping")
    remove_folder(aside)
