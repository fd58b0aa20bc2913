"""Take foreign commits over, or refuse them."""

from mergerepl.compact.errors import ForeignCommitError
from mergerepl.compact.foreign import unadopted
from mergerepl.compact.session import Session


def adopt_or_refuse(session: Session) -> None:
    """Adopt the foreign commits of all tables; the caller holds the lease and has swept."""
    for found in unadopted(session.database):
        raise ForeignCommitError.refused(found.table, found.version, found.operation, found.writer)
