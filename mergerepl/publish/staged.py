"""Sessions that were interrupted: staged at the publisher, and finished before their subscription ends.

Recovery needs the rows of the subscription and of its articles: whoever takes them out finishes the session
first.
"""

from dataclasses import dataclass
from pathlib import Path

from mergerepl.systables.table import FOLDER


@dataclass(frozen=True)
class StagedSession:
    """One session that will be carried out: its subscription, and the generations it uploads."""

    session: str
    subid: str
    subscriber: str
    uploaded_guids: tuple[str, ...]


def staged_sessions(root: Path) -> tuple[StagedSession, ...]:
    """Return the sessions staged at a publisher, by name; one without a manifest does not count.

    Raises: StoreError if a manifest is damaged.
    """
    folder = root / FOLDER / "staging"
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not folders:
        return ()
    from mergerepl.store.changeset import read_changeset

    manifests = [changeset.manifest for path in folders if (changeset := read_changeset(path)) is not None]
    return tuple(
        StagedSession(
            manifest.session,
            manifest.subid,
            manifest.subscriber.root if manifest.subscriber is not None else "",
            tuple(manifest.uploaded_guids),
        )
        for manifest in manifests
    )
