"""Tasks that write at the products of some folders: cleanup, reinitialisation, repair, resumption, removal of files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from mergerepl.calls import require_choice
from mergerepl.errors import ConfigurationError, MergeReplError
from mergerepl.model.listing import Listing
from mergerepl.model.products import CDC, MERGE, TRACKING, TRANSACTIONAL, TYPES
from mergerepl.model.progress import Progress
from mergerepl.model.tasks import CleanupResult, Reinit, ReinitResult, Removed, Repair, RepairResult, Vacuumed
from mergerepl.places import PUBLISHER, SUBSCRIBER, types_at
from mergerepl.products import lacks, of_each, of_products
from mergerepl.roots import resolved
from mergerepl.sessions import NO_SUBSCRIPTION
from mergerepl.sessions.targets import Item, distributions, merge_targets
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import REHEARSED, rehearsed

if TYPE_CHECKING:
    from mergerepl.filters.chosen_rows import ChosenRows

CLEANUP_KINDS = {
    "metadata": (MERGE,),
    "conflicts": (MERGE, TRANSACTIONAL),
    "history": (MERGE,),
    "commands": (TRANSACTIONAL,),
    "changes": (CDC,),
    "files": (MERGE,),
    "tombstones": (TRACKING,),
}
"""The kinds of rows and files that `cleanup` removes, with their types; docs/configuration.md has the retention of each."""


def cleanup(
    roots: Sequence[Location], *, only: Collection[str], older_than: timedelta | None, dry_run: bool
) -> CleanupResult:
    """Remove rows past their retention at some folders.

    A product that fails has an `error`; if it is the only one, it is raised.
    """
    for kind in only:
        require_choice("kind of cleanup", kind, tuple(CLEANUP_KINDS))
    chosen = set(only) or set(CLEANUP_KINDS)
    types = {type_ for kind in chosen for type_ in CLEANUP_KINDS[kind]} if only else TYPES
    works = list(of_products("cleanup", roots, types))
    if older_than is not None and len(works) > 1 and not dry_run:
        # A refusal of one product comes before another one removes rows.
        for root, work in works:
            work(root, kinds=chosen, older_than=older_than, dry_run=True)

    def failed(product: str, root: Location, error: MergeReplError) -> CleanupResult:
        kind = next(each for each, of in CLEANUP_KINDS.items() if product in of and each in chosen)
        return CleanupResult(Listing([Removed(product, str(root), kind, "", 0, error.message)]))

    done = list(of_each(works, failed, kinds=chosen, older_than=older_than, dry_run=dry_run))
    removed = Listing(row for each in done for row in each.removed)
    return CleanupResult(removed, dry_run, sum(each.inactive for each in done))


def reinit(
    items: Sequence[Item],
    chosen: Collection[str] | None,
    *,
    upload_first: bool,
    discard_local: bool,
    tables: Collection[str],
    dry_run: bool,
    progress: Progress,
) -> ReinitResult:
    """Fill the chosen subscribers again; a publisher stands for none of its own.

    Raises: ConfigurationError if a chosen root has another type or is no subscriber, or the words do not fit its type; the
    errors of `reinitialise`; TransactionalError.
    """
    if upload_first and discard_local:
        raise ConfigurationError(
            "Changes that were not sent are uploaded first, or discarded: say one of the two."
        )
    of_merge, of_one_way = merge_targets(items, chosen), distributions(items, chosen)
    targets = [each for each in of_merge if chosen is None or resolved(each.subscriber) in chosen]
    one_way = [each for each in of_one_way if chosen is None or each.subscriber in chosen]
    if not targets and not one_way:
        for folder in (item for item in items if isinstance(item, Location)):
            types = types_at(folder)
            if types and not {MERGE, TRANSACTIONAL} & set(types):
                raise lacks("reinit", (folder.name, types[0]))
        publishers = [*(each.publisher for each in of_merge), *(each.publisher for each in of_one_way)]
        if publishers:
            raise ConfigurationError(
                f"{publishers[0].name} publishes: name the subscribers, or choose all of them (--all)."
            )
        raise ConfigurationError(NO_SUBSCRIPTION)
    if one_way and upload_first:
        raise ConfigurationError(
            f"{one_way[0].publisher.name} is transactional: what its subscribers queued is sent in any case. Leave out "
            "`upload_first`."
        )
    names: list[str] = []
    articles: list[Reinit] = []
    if targets:
        from mergerepl.merge.reinit.unsent import ReinitTerms
        from mergerepl.products import merge

        terms = ReinitTerms(upload_first, discard_local, tables, dry_run)
        for target in targets:
            articles += merge.reinit(target, terms, progress)
            names.append(str(target.subscriber))
    if one_way:
        from mergerepl.products import transactional

        for each in one_way:
            if tables:
                of_tables = transactional.reinit_articles(each, [*tables], dry_run=dry_run)
                articles += of_tables
                names += dict.fromkeys(one.subscriber for one in of_tables)
                continue
            done = rehearsed(dry_run, partial(transactional.reinit, each))
            done = (each.subscriber or "",) if done is REHEARSED else done
            names += filter(None, done)
    return ReinitResult(tuple(names), Listing(articles), dry_run)


def repair(
    items: Sequence[Item],
    chosen: Collection[str] | None,
    *,
    publication: str | None,
    rows: ChosenRows,
    source: str,
    may_insert: bool,
    procedures: Sequence[str],
    dry_run: bool,
) -> RepairResult:
    """Make rows of the chosen subscriptions equal at both sides; a publisher stands for all its own.

    Raises: ConfigurationError if a chosen root has no subscription, or the words do not fit its type; the errors of
    `repair_subscription`; TransactionalError.
    """
    require_choice("source", source, (PUBLISHER, SUBSCRIBER))
    targets = [each for each in merge_targets(items, chosen) if publication in (None, each.publication)]
    one_way = [
        replace(each, publication=each.publication or publication)
        for each in distributions(items, chosen)
        if publication in (None, each.publication) or each.publication is None
    ]
    if not targets and not one_way:
        known = merge_targets(items, chosen) or distributions(items, chosen)
        if known:
            raise ConfigurationError(f"There is no publication {publication!r} to repair here.")
        for folder in (item for item in items if isinstance(item, Location)):
            if types := types_at(folder):
                raise lacks("repair", (folder.name, types[0]))
        raise ConfigurationError(NO_SUBSCRIPTION)
    if one_way and source != PUBLISHER:
        raise ConfigurationError(f"{one_way[0].publisher.name} is transactional: leave out `source`.")
    found: list[Repair] = []
    if targets:
        from mergerepl.merge.repair.repair import RepairTerms
        from mergerepl.products import merge

        terms = RepairTerms(rows, source, may_insert, dry_run)
        found += (row for each in targets for row in merge.repair(each, terms))
    if one_way:
        from mergerepl.products import transactional

        words = {"table": rows.table, "key": rows.key, "where": rows.where, "procedures": procedures}
        found += (row for each in one_way for row in transactional.repair(each, dry_run=dry_run, **words))
    return RepairResult(Listing(found), dry_run)


def resume(root: Location, name: str, *, compare: bool, restart: bool) -> bool:
    """Continue with a paused table; False if it was not paused. Where it is captured, its instances are resumed."""
    types = types_at(root)
    if CDC in types:
        from mergerepl.products import cdc

        if cdc.is_known(root, name) or TRANSACTIONAL not in types:
            return cdc.resume(root, name, compare=compare, restart=restart)
    if TRANSACTIONAL in types and (compare or restart):
        raise ConfigurationError(f"{root.name} is transactional: leave out `compare` and `restart`.")
    (_, work), *_ = of_products("resume", [root])
    return bool(work(root, name))


def vacuum(root: Location, tables: Sequence[str]) -> Listing[Vacuumed]:
    """Remove old files of tables here, without names of all. A table of several products is vacuumed once."""
    types = types_at(root)
    # What publications and captures read is one list.
    chosen = [each for each in TYPES if each != TRANSACTIONAL] if CDC in types else TYPES
    if not (MERGE in types and {CDC, TRANSACTIONAL} & set(types)):
        return Listing(row for _, work in of_products("vacuum", [root], chosen) for row in work(root, tables))
    from mergerepl.products import cdc, merge

    articles = [name for name in tables if merge.is_known(root, name)]
    found: list[Vacuumed] = []
    if articles or not tables:
        found += merge.vacuum(root, articles)
    done = {each.source for each in found}
    others = [name for name in tables if name not in articles] if tables else cdc.sources(root)
    if others := [name for name in others if name not in done]:
        found += cdc.vacuum(root, others)
    return Listing(found)


def read_through(root: Location) -> dict[str, int | str]:
    """Return the tables below a merge replica that other products read: the version read, or why it is not vacuumed."""
    found: dict[str, int | str] = {}
    if TRACKING in types_at(root):
        from mergerepl.replica.control import ControlPlane
        from mergerepl.systables.tracking import FOLDER, TRACKED_OBJECTS

        reason = "Compact change tracking reads it, too; run `mergerepl tracking adopt` first, then Spark's own VACUUM"
        tracked = ControlPlane(root / FOLDER).rows_if_any(TRACKED_OBJECTS)
        found |= {row.table: reason for row in tracked}
    if {CDC, TRANSACTIONAL} & set(types_at(root)):
        from mergerepl.logreader.positions import control_of, has_log_reader, read_state

        if has_log_reader(control := control_of(root)):
            read = {row.source_path: row.position for row in read_state(control).sources.values()}
            found = {**read, **found}
        from mergerepl.cdc.sources import queue_positions
        from mergerepl.replica.replica import Replica

        for path in {article.table for article in Replica(root).articles}:
            known = found.get(path)
            if not isinstance(known, str) and (queued := queue_positions(root, root / path)):
                found[path] = min([*queued, *([known] if known is not None else [])])
    return found
