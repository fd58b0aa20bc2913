"""Own side first: the staged sessions that a replica takes part in as the subscriber of others.

Before a replica captures, cleans up or takes part in a session, it finishes its side of every staged session: a MERGE
that is still to come would overwrite what is recorded now. The folder of such a session is at its publisher; the replica
has a pointer to it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mergerepl.delta.tables import tables_kept_open
from mergerepl.errors import CaptureError, LeaseError, OutOfReachError
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import Pointer, pointers, settle_pointers
from mergerepl.store.lease import lease
from mergerepl.store.location import Location

_ATTEMPTS = 5


def publishers_of_pending(replica: Replica) -> set[Location]:
    """Return the publishers that have a staged, unfinished session with this subscriber.

    Raises: OutOfReachError if such a publisher is out of reach; CaptureError if a pointer is damaged.
    """
    for pointer in pointers(replica):
        if pointer.publisher is None:
            raise CaptureError(
                f"'{pointer.file}' is damaged: it names the publisher of an unfinished session. Nothing was "
                "captured. Run `mergerepl sync` at that publisher, or remove the file if no session was "
                "interrupted.",
                replica=str(replica.root),
            )
    return _of_pointers(replica, list(pointers(replica)))


def pending_elsewhere(replica: Replica, publisher: Replica) -> set[Location]:
    """Return the publishers but this one that have a staged session with a replica; a damaged pointer names none.

    Raises: OutOfReachError.
    """
    here = publisher.info().replid
    others = [each for each in pointers(replica) if each.publisher is not None and each.replid != here]
    return _of_pointers(replica, others)


def _of_pointers(replica: Replica, found: list[Pointer]) -> set[Location]:
    publishers = set()
    for pointer in found:
        assert pointer.publisher is not None
        if not pointer.is_publisher_there:
            root = pointer.publisher.root
            raise OutOfReachError(
                f"Session {pointer.session} of '{replica.root}' was interrupted and its publisher '{root}' is "
                "out of reach. Nothing was changed: that session must be finished first. Make the publisher "
                "reachable, then run again.",
                replica=str(replica.root),
                publisher=str(root),
            )
        if pointer.is_staged:
            publishers.add(pointer.publisher.root)
    return publishers


@contextmanager
def held_with_publishers(replica: Replica, purpose: str) -> Iterator[list[Replica]]:
    """Hold a replica and, before it, the publishers whose sessions it must finish first; yield the publishers.

    Raises: As `publishers_of_pending`; LeaseError.
    """
    for _ in range(_ATTEMPTS):
        publishers = publishers_of_pending(replica)
        with ExitStack() as stack:
            for root in (*sorted(publishers), replica.root):
                stack.enter_context(lease(root, purpose=f"{purpose} {replica.root}"))
            # A session may have started and died before this process got the lease.
            if publishers_of_pending(replica) <= publishers and settle_pointers(replica, publishers):
                with tables_kept_open(replica.root, *publishers):
                    yield [Replica(root) for root in sorted(publishers)]
                return
    raise LeaseError(
        f"Replica '{replica.root}' is synchronized again and again. Wait for its agent, then run again.",
        replica=str(replica.root),
    )
