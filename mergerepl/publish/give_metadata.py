"""The publisher's lineage, colv and generations for a new subscriber, in the subscriber's own numbering."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as F

from enumeration.generations import make_generation, received_generation, with_nickname
from mergerepl.apply.side import RUN_APP_ID, next_seq
from mergerepl.delta.appended import delete_where
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.transactions import Transaction
from mergerepl.failpoints import failpoint
from mergerepl.publish.replica_state import ReplicaState, change_info
from mergerepl.publish.work import Work
from mergerepl.snapshot.copy_metadata import copy_metadata
from mergerepl.store.replica import Replica
from mergerepl.store.runs import delete_runs_after
from mergerepl.systables import catalog, contents, genhistory, replinfo, tombstone
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.table import FOLDER

_TABLES = (contents.NAME, tombstone.NAME)


def give_metadata(
    work: Work, publisher: ReplicaState, nicknames: Sequence[int], root: Path, nickname: int, mark: CommitMark
) -> None:
    """Copy what the publisher knows of some articles to the subscriber at `root`, which has `nickname`.

    Without metadata at the publisher nothing is written.
    """
    theirs = _closed_generations(publisher, nicknames)
    if not theirs:
        return
    assert publisher.info is not None
    (info,) = Replica(root).control.rows(replinfo.TABLE)
    numbers = _numbers(theirs, Replica(root).control.rows(genhistory.TABLE), info.last_generation)
    seq = next_seq(root, info.last_seq)
    copy_metadata(
        work.spark,
        publisher.root,
        root,
        nicknames,
        generations=numbers,
        through_seq_inclusive=publisher.info.last_seq,
        seq=seq,
        transaction=Transaction(RUN_APP_ID, seq, mark),
    )
    failpoint("initialise.after_metadata")
    _enter_generations(publisher, theirs, numbers, root, nickname, last_generation=info.last_generation)
    failpoint("initialise.after_genhistory")
    change_info(root, last_seq=seq, last_generation=max(info.last_generation, *numbers.values()))


def _numbers(
    theirs: Sequence[Generation], here: Sequence[Generation], last_generation: int
) -> dict[int, int]:
    """Return the publisher's generation numbers to the subscriber's.

    A generation that an attempt before this one entered keeps its number: a session that ran in between may
    have named it in a watermark.
    """
    known = {row.guidsrc: row.generation for row in here}
    next_number = max([last_generation, *known.values()]) + 1
    numbers = {}
    for row in theirs:
        numbers[row.generation] = known.get(row.guidsrc, next_number)
        next_number += row.guidsrc not in known
    return numbers


def _closed_generations(publisher: ReplicaState, nicknames: Sequence[int]) -> list[Generation]:
    """Close the articles' open generations and return all they have, by number.

    What is captured later must not join a generation that counts as sent. A row beyond the last generation
    given out is what a capture left that was cut short; it is not counted.
    """
    assert publisher.info is not None
    last = publisher.info.last_generation
    rows = publisher.control.rows(genhistory.TABLE)

    def is_theirs(row: Generation) -> bool:
        return row.art_nick in nicknames and row.generation <= last

    theirs = make_generation(row for row in rows if is_theirs(row))
    if any(row.is_open for row in rows if is_theirs(row)):
        after = [*(row for row in rows if not is_theirs(row)), *theirs]
        publisher.control.replace(genhistory.TABLE, sorted(after, key=_number))
    return sorted(theirs, key=_number)


def _enter_generations(
    publisher: ReplicaState,
    theirs: Sequence[Generation],
    numbers: Mapping[int, int],
    root: Path,
    nickname: int,
    *,
    last_generation: int,
) -> None:
    """Enter the generations at the subscriber, and the subscriber among their holders at the publisher.

    What a session or a capture entered there that never came to its commit point lies beyond the subscriber's last
    generation. It goes, as these will move that.
    """
    control = Replica(root).control
    now = datetime.now(UTC)
    received = [
        received_generation(row, generation=numbers[row.generation], nickname=nickname, now=now)
        for row in theirs
    ]
    replaced = {row.guidsrc for row in received}
    others = [
        row
        for row in control.rows(genhistory.TABLE)
        if row.guidsrc not in replaced and row.generation <= last_generation
    ]
    control.replace(genhistory.TABLE, [*others, *received])
    failpoint("initialise.between_genhistories")
    rows = publisher.control.rows(genhistory.TABLE)
    held = [row.guidsrc for row in theirs]
    publisher.control.replace(genhistory.TABLE, with_nickname(rows, held, nickname))


def _number(row: Generation) -> int:
    return row.generation


def last_generation(root: Path, pubid: str) -> tuple[int, str | None]:
    """Return number and guid of a publication's highest generation at a replica, (0, None) if it has none."""
    control = Replica(root).control
    (info,) = control.rows(replinfo.TABLE)
    rows = control.rows(genhistory.TABLE)
    theirs = [row for row in rows if row.pubid == pubid and row.generation <= info.last_generation]
    if not theirs:
        return 0, None
    last = max(theirs, key=_number)
    return last.generation, last.guidsrc


def forget_metadata(work: Work, replica: ReplicaState, nicknames: Sequence[int]) -> None:
    """Remove what an unfinished or a former subscription left of these articles at a subscriber.

    Closed generations stay, without changes: the watermarks of another publication may name them. An open
    one goes: it would go on collecting changes under a number that the watermarks have passed.
    """
    assert replica.info is not None
    for name in _TABLES:
        path = replica.root / FOLDER / name
        if head_version(path) > 0:
            delete_runs_after(work.spark, path, through_seq_inclusive=replica.info.last_seq)
            delete_where(work.spark, path, F.col(contents.TABLENICK).isin(*nicknames))
        failpoint("initialise.forgetting")
    control = replica.control
    generations = control.rows(genhistory.TABLE)
    kept = [
        replace(row, changecount=0) if row.art_nick in nicknames else row
        for row in generations
        if row.art_nick not in nicknames or not row.is_open
    ]
    if kept != generations:
        control.replace(genhistory.TABLE, kept)
    failpoint("initialise.forgetting")
    # Last: by these rows a run that starts over knows which articles are gone from the publication.
    articles = control.rows(catalog.ARTICLES)
    others = [row for row in articles if row.nickname not in nicknames]
    if others != articles:
        control.replace(catalog.ARTICLES, others)
    failpoint("initialise.forgetting")
