"""The staged changeset of a merge session: redo log, audit trail and commit point.

`<publisher>/_mergerepl/staging/<session>/` holds one Parquet folder per article (RESOLVED rows) and `manifest.json`,
written last. With the manifest, this process or the next run carries the session out; without it nothing has happened
yet and the folder is dropped. It has all that a repeated run needs: start versions, run numbers, generation numbers and
guids, watermarks.
"""

from dataclasses import dataclass, field
from uuid import uuid4

from mergerepl.changes import DATA_ACTIONS, PUBLISHER, SUBSCRIBER
from mergerepl.errors import give_up_advice
from mergerepl.model.horizon import NOTHING_SETTLES, Horizon
from mergerepl.model.results import PhaseCounts
from mergerepl.store.lease import LOCK_FILE
from mergerepl.store.location import Location
from mergerepl.store.redo import RedoLog, RegisteredRedoLog
from mergerepl.store.register import line_under, register_of, state_of
from mergerepl.store.storage import (
    begin_folder,
    copy_file,
    files_below,
    files_in,
    folders_in,
    is_local,
    make_folder,
    remove_leftover,
    rename,
    storage,
)
from mergerepl.systables.genhistory import Generation

STAGING = "staging"
UNSENT = "unsent"
"""The folder, beside that of staged sessions, of rows of sessions that did not finish."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A generation watermark: number and guid."""

    generation: int
    guid: str | None


@dataclass(frozen=True, kw_only=True)
class ArticleWork:
    """One side's work on one article.

    `from_version` is the side's captured version: our MERGE comes after it, and so do user commits that land before the
    MERGE. `actions` are row counts by action; `live` and `deleted` count the metadata rows; `bounds` are the key
    ranges. `is_filtered`: the side keeps no rows outside of its partition. `events` are staged mappings.
    """

    nickname: int
    from_version: int
    actions: dict[str, int] = field(default_factory=dict)
    live: int = 0
    deleted: int = 0
    bounds: dict[str, tuple[str, str]] = field(default_factory=dict)
    is_filtered: bool = False
    events: int = 0

    @property
    def touches_rows(self) -> bool:
        """True if the user's table itself changes."""
        return any(self.actions.get(action.value) for action in DATA_ACTIONS)


@dataclass(frozen=True, kw_only=True)
class SideWork:
    """One replica's work.

    `peer` is the replid of the session's other replica. `base_seq` is its last committed run before, `seq` the run
    that this changeset appends, `clock` its clock after the capture. `commits` has, by nickname, the commits of the
    articles' `from_version`, where their logs still have them.
    """

    root: str
    replid: str
    peer: str
    nickname: int
    base_seq: int
    seq: int
    last_generation: int
    clock: int
    publication_number: int = 0
    generations: list[Generation] = field(default_factory=list)
    articles: list[ArticleWork] = field(default_factory=list)
    commits: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The plan of a changeset. A late round (user commits before our MERGE) has only one side and no watermarks.

    Versions up to `floor` count as known to both sides. `horizon` is stored with the watermarks. `void`: a
    reinitialisation; tablenick -> the subscriber's generation up to which its metadata is void.
    """

    session: str
    number: int
    round: int = 0
    publication: str
    pubid: str
    subid: str
    upload: bool
    download: bool
    started: str
    conflict_logging: str
    conflicts: dict[int, int] = field(default_factory=dict)
    publisher: SideWork | None = None
    subscriber: SideWork | None = None
    upload_watermark: Mark | None = None
    download_watermark: Mark | None = None
    uploaded_guids: list[str] = field(default_factory=list)
    replicastate: str
    floor: int = 0
    horizon: Horizon = NOTHING_SETTLES
    void: dict[int, int] = field(default_factory=dict)

    def side(self, name: str) -> SideWork | None:
        """Return the work of `publisher` or `subscriber`."""
        return {PUBLISHER: self.publisher, SUBSCRIBER: self.subscriber}[name]

    @property
    def waiting_generations(self) -> list[Generation]:
        """The generations of changes that wait at either side because the other side refuses them."""
        works = [work for work in (self.publisher, self.subscriber) if work is not None]
        return [row for work in works for row in work.generations if row.waits_for is not None]

    def counts(self, name: str) -> PhaseCounts:
        """Return the planned row counts at one side, without conflicts."""
        side = self.side(name)
        works = side.articles if side else []
        inserts, updates, deletes, left = (
            sum(w.actions.get(a.value, 0) for w in works) for a in DATA_ACTIONS
        )
        return PhaseCounts(inserts, updates, deletes + left)


@dataclass(frozen=True)
class Changeset:
    """A staged changeset: its folder and its plan."""

    folder: Location
    manifest: Manifest

    def work_of(self, side: str) -> SideWork:
        """Return the work of a side that takes part."""
        return self.works[side]

    @property
    def works(self) -> dict[str, SideWork]:
        """The work of the sides that take part."""
        sides = {name: self.manifest.side(name) for name in (PUBLISHER, SUBSCRIBER)}
        return {name: work for name, work in sides.items() if work is not None}

    def rows(self, nickname: int) -> Location:
        """Return the folder of an article's staged rows."""
        return self.folder / str(nickname)

    def events(self, nickname: int) -> Location:
        """Return the folder of an article's staged EVENTS, which the publisher appends with its run."""
        return events_folder(self.folder, nickname)

    @property
    def redo(self) -> RedoLog[Manifest]:
        """The redo log that keeps the plan."""
        return redo_log(self.folder)

    def is_done(self, side: str) -> bool:
        """True if one side has been carried out completely."""
        return self.redo.is_done(side)

    def late_folder(self, side: str, round_number: int) -> Location:
        """Return the folder of a late round; all of them lie in the session's folder."""
        session_folder = self.folder if self.manifest.round == 0 else self.folder.parent
        name = f"late-{side}-{round_number}"
        if is_local(self.folder):
            return session_folder / name
        # A displaced agent may still write rows of the round: its folder is another one.
        held = register_of(self.folder)
        staged = [key for key in held.state.sessions if key.startswith(f"{session_folder.name}/{name}-")]
        return session_folder / (staged[0].partition("/")[2] if staged else f"{name}-{held.fence}")

    def commit(self) -> None:
        """Stage the manifest: from here on the changeset will be carried out."""
        self.redo.stage(self.manifest)


def redo_log(folder: Location) -> RedoLog[Manifest]:
    """Return the redo log of a session, or of a late round inside the session's folder."""
    is_late = folder.parent.name != STAGING
    session = folder.parent if is_late else folder
    root = session.parents[2]
    local = RedoLog(
        folder,
        Manifest,
        "late" if is_late else "stage",
        "manifest",
        f"The staged session '{session.name}'",
        "Its session must be finished before another one. " + give_up_advice(root, session.name),
        owns_folder=True,
    )
    if is_local(folder) or session.parent.name != STAGING:
        return local
    return RegisteredRedoLog(
        **vars(local),
        lock=root / LOCK_FILE,
        key=folder.relative_to(session.parent),
        subscriber_of=_subscriber_of,
    )


def _subscriber_of(manifest: Manifest) -> str:
    """Return the replid of a session's subscriber; a late round has the work of one side."""
    if manifest.subscriber is not None:
        return manifest.subscriber.replid
    assert manifest.publisher is not None
    return manifest.publisher.peer


def events_folder(folder: Location, nickname: int) -> Location:
    """Return the folder of an article's EVENTS in the folder of a changeset."""
    return folder / "events" / str(nickname)


def is_staged(folder: Location) -> bool:
    """True if a folder has a completed changeset."""
    return redo_log(folder).is_pending


def staged_folders(staging: Location) -> list[Location]:
    """Return the folders of staged sessions, complete or not, by name."""
    if (names := _noted_names(staging)) is None:
        names = {*folders_in(staging)}
        if not is_local(staging) and (line := line_under(staging.parents[1])) is not None:
            line.memory["staged", staging] = names
    return [staging / name for name in sorted(names)]


def staged_changesets(folder: Location) -> list[Changeset]:
    """Return the completed changesets below a folder, by name: sessions, or late rounds of one.

    Raises: StoreError if a manifest is damaged.
    """
    if is_local(folder):
        folders = staged_folders(folder)
    else:
        is_staging = folder.name == STAGING
        state = state_of(folder.parents[1] if is_staging else folder.parents[2])
        parents = {key: key.rpartition("/") for key in sorted(state.sessions)}
        above = "" if is_staging else folder.name
        folders = [folder / name for parent, _, name in parents.values() if parent == above]
    found = map(read_changeset, folders)
    return [changeset for changeset in found if changeset is not None]


def unfinished_sessions(staging: Location) -> list[str]:
    """Return the unfinished staged sessions, by name: at a publisher, or by pointers at a subscriber."""
    if not is_local(staging):
        state = state_of(staging.parents[1])
        return sorted({key for key in (*state.sessions, *state.pointers) if "/" not in key})
    return [path.stem for path in files_in(staging) if path.suffix == ".json" or is_staged(path)]


def read_changeset(folder: Location) -> Changeset | None:
    """Return the changeset staged in a folder; None if it was never completed.

    Raises: StoreError if its manifest is damaged.
    """
    manifest = redo_log(folder).pending()
    return None if manifest is None else Changeset(folder, manifest)


def new_folder(folder: Location) -> Location:
    """Create the empty folder of a changeset and return it."""
    drop(folder)
    make_folder(folder)
    if (names := _noted_names(folder.parent)) is not None:
        names.add(folder.name)
    return folder


def new_session_folder(staging: Location) -> Location:
    """Create the folder of a new session, under the session's identifier, and return it."""
    folder = staging / str(uuid4())
    begin_folder(folder)
    if (names := _noted_names(staging)) is not None:
        names.add(folder.name)
    return folder


def _noted_names(staging: Location) -> set[str] | None:
    """Return the noted names of a publisher's staged folders in a store, None if they have to be listed.

    Only the holder of its register makes and removes such folders. A displaced agent may leave another one, which a later
    process removes.
    """
    line = None if is_local(staging) else line_under(staging.parents[1])
    names: set[str] | None = None if line is None else line.memory.get(("staged", staging))
    return names


def set_aside(folder: Location) -> Location:
    """Move a staged folder aside, atomically: the session no longer exists. Returns its new place."""
    unsent = folder.parents[1] / UNSENT
    kept = unsent / folder.name
    if not is_local(folder):
        # Its register forgets the session only once its rows are kept.
        for file in files_below(folder):
            copy_file(file, kept.join(file.relative_to(folder)))
        drop(folder)
        return kept
    make_folder(unsent)
    rename(folder, kept)
    for path in (unsent, folder.parent):
        storage(path).force_to_disk(path)
    return kept


def drop_rows(folder: Location) -> None:
    """Remove staged rows that no manifest names."""
    remove_leftover(folder)


def replace_rows(folder: Location, by: Location) -> None:
    """Replace staged rows that no manifest names with others."""
    drop_rows(folder)
    rename(by, folder)


def drop(folder: Location) -> None:
    """Remove a staged folder."""
    redo_log(folder).finish()
    if (names := _noted_names(folder.parent)) is not None:
        names.discard(folder.name)
