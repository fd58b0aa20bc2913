"""`mergerepl apply`: make the replicas match the file.

The plan is made without a lock and without a change: reading is safe while an agent runs, a refused file leaves nothing
behind, and a file without changes costs a few reads of small tables. If there are steps, the replicas are locked and
read again before the first one.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile

from mergerepl.config.stated import check_stated
from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.store_proof import require_proof
from mergerepl.delta.tables import open_table
from mergerepl.errors import ConfigurationError, LeaseError, PublicationError
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.publication import Publication, SyncType
from mergerepl.model.results import ApplyResult, PlannedSubscription
from mergerepl.publish.agent import Agent
from mergerepl.publish.carry_out import ApplyRun, MergeStep, register_name, start_engine_of_copies
from mergerepl.publish.check_subscriber import check_in_step, check_targets
from mergerepl.publish.difference import difference
from mergerepl.publish.outcomes import planned_subscriptions
from mergerepl.publish.rows import definition
from mergerepl.publish.stated import Stated, check_publisher, prepare
from mergerepl.publish.steps import AGAIN, PURPOSE, Step, carry_out, check_steps
from mergerepl.publish.stored import ReplicaState, Stored, SubscriberState, read_replicas, read_stored
from mergerepl.replica.named_tables import missing_names, stated_names
from mergerepl.replica.replica import Replica
from mergerepl.roots import resolved
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import MISSING, folder_problem, has_system_tables, provide_folder, replica_above
from mergerepl.systables.catalog import ArticleRow
from mergerepl.systables.table import FOLDER


def apply_publication(
    publication: Publication,
    agent: Agent | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ApplyResult:
    """Make the replicas match the publication and return the steps done (with `dry_run`, the steps to do).

    Raises: ConfigurationError, PublicationError, CaptureError, EnumerationError: refused, nothing was changed.
    LeaseError: one of the replicas is in use. EngineLostError; StoreError: a table cannot be read or written; run
    again, finished steps stay done.
    """
    started = time.monotonic()
    # Roots free of symbolic links identify replicas.
    subscriptions = (replace(each, subscriber=_real(each.subscriber)) for each in publication.subscriptions)
    publication = replace(
        publication, publisher=_real(publication.publisher), subscriptions=tuple(subscriptions)
    )
    plan = make_plan(publication, agent or Agent(), progress or NoProgress())
    if plan.steps and not dry_run:
        plan = _carry_out(publication, plan)
    steps = tuple(step.plan for step in plan.steps)
    outcomes = tuple(plan.outcomes()) if steps and dry_run else ()
    return ApplyResult(publication.name, steps, dry_run, time.monotonic() - started, outcomes)


def _real(root: str) -> str:
    return resolved(root) if os.path.isabs(root) or not Location.of(root).is_local else root


@dataclass(frozen=True)
class Plan:
    """The steps, the replicas to hold for them, their state when the plan was made, and the articles to be copied."""

    steps: Sequence[MergeStep]
    roots: Sequence[Location]
    replicas: Sequence[ReplicaState]
    copied: Sequence[ArticleRow]
    run: ApplyRun
    outcomes: Callable[[], Iterable[PlannedSubscription]]
    """The outcome for each subscription; what each never sent is read when it is called."""


def make_plan(publication: Publication, agent: Agent, progress: Progress) -> Plan:
    """Read the stored state, check everything and return the steps.

    Raises: ConfigurationError, PublicationError, CaptureError, StoreError: one message, nothing was changed.
    """
    with plain_errors("the publication was checked", again=AGAIN):
        return _plan(publication, agent, progress)


def _plan(publication: Publication, agent: Agent, progress: Progress) -> Plan:
    check_stated(publication)
    check_places(publication)
    replicas = read_replicas(publication)
    check_publisher(replicas[0])
    stored = read_stored(publication, replicas)
    stated = prepare(publication, stored)
    check_targets(stated, stored)
    check_in_step(stored)
    run = ApplyRun(publication, stored.pubid, stored.publisher.root, agent, progress)
    steps = difference(stated, replace(stored, unusable=_unusable_constraints(stated, stored, run)))
    steps += _named(publication, stored)
    check_steps(steps, run)
    named = {publication.publisher, *(each.subscriber for each in publication.subscriptions)}
    first, *others = [replica.root for replica in replicas if replica.info or str(replica.root) in named]
    lacking = (each.missing(stored.articles) for each in _copying(stored))
    copied = [*chain.from_iterable(lacking), *(stated.new_rows if _copying(stored) else ())]
    outcomes = partial(planned_subscriptions, stated, stored, agent)
    return Plan(steps, [first, *sorted(set(others))], replicas, copied, run, outcomes)


def _named(publication: Publication, stored: Stored) -> list[MergeStep]:
    """Return the steps that give tables of subscribers their names in a catalog.

    Raises: ConfigurationError without a session that has one, unless the names were looked up before; PublicationError
    as `missing_names`.
    """
    names = stated_names(definition(publication))
    if not names:
        return []
    from mergerepl.spark.metastore import callers_catalog

    if (spark := callers_catalog()) is not None:
        return [
            Step("register", each.text, f"a name of '{each.place}'", partial(register_name, each))
            for each in missing_names(spark, names)
        ]
    known = stated_names(stored.row.definition if stored.row is not None else None)
    if new := next((each for each in names if each not in known), None):
        raise ConfigurationError(
            f"`catalog`: the name '{new.text}' is looked up in the catalog of a Spark session, and this process has none. "
            "Run `mergerepl.Project.load(FILE).apply()` where there is one, as in a notebook or with spark-submit: later "
            "commands need it no more. Or leave `catalog` out.",
            publication=publication.name,
        )
    return []


def _copying(stored: Stored) -> list[SubscriberState]:
    """Return the subscribers that get their rows from the publisher."""
    return [each for each in stored.subscribers if each.subscription.sync_type is SyncType.AUTOMATIC]


def _unusable_constraints(stated: Stated, stored: Stored, run: ApplyRun) -> dict[str, list[str]]:
    """Return by article the CHECK constraints that a new copy cannot have because a vertical filter leaves columns out."""
    found = {}
    copying = _copying(stored)
    for row in [*stored.articles, *stated.new_rows]:
        if stored.is_vertical(row) and any(each.missing([row]) for each in copying):
            table = open_table(run.publisher / row.source_table)
            if checks := {n: text for n, text in table.properties.items() if n.startswith(CONSTRAINT_PREFIX)}:
                from mergerepl.publish.snapshot import is_computable

                found[row.name] = [
                    name.removeprefix(CONSTRAINT_PREFIX)
                    for name, text in checks.items()
                    if not is_computable(lambda: run.spark, table, row.published_columns, text)
                ]
    return found


def _carry_out(publication: Publication, plan: Plan) -> Plan:
    with ExitStack() as leases:
        for root in plan.roots:
            # Locks rely on it, too.
            require_proof(root)
            leases.enter_context(_leased(root))
            plan.run.agent.sweep(root)
        if read_replicas(publication) != plan.replicas:
            held = plan.roots
            plan = make_plan(publication, plan.run.agent, plan.run.progress)
            if other := next((root for root in plan.roots if root not in held), None):
                raise LeaseError(
                    f"Another `apply` changed the subscriptions meanwhile: '{other}' is one of them now. Nothing was "
                    "changed. Run `mergerepl apply` again.",
                    replica=str(other),
                )
        plan.run.hold(plan.roots)
        # A capture may refuse, and needs no Spark for that.
        captures = [*takewhile(lambda step: step.action == "capture", plan.steps)]
        carry_out(captures, plan.run, plan.run.progress)
        start_engine_of_copies(plan.copied, plan.run)
        carry_out(plan.steps[len(captures) :], plan.run, plan.run.progress)
        for root in plan.roots:
            Replica(root).keep_knowledge()
    return plan


@contextmanager
def _leased(root: Location) -> Iterator[None]:
    """Hold a replica whose folder may be new; created folders that stay empty are removed again."""
    with ExitStack() as folder:
        try:
            folder.enter_context(provide_folder(root))
        except OSError as error:
            raise PublicationError(
                f"Subscriber '{root}' cannot be created: {error.strerror}. Check the path and its permissions.",
                replica=str(root),
            ) from error
        folder.enter_context(lease(root, purpose=PURPOSE))
        yield


def check_places(publication: Publication) -> None:
    """Check the folders of the replicas, and that each table belongs to one article at one replica.

    Raises: PublicationError naming the folder, or the two replicas that share a table.
    """
    publisher = Location.of(publication.publisher)
    if problem := folder_problem(publisher):
        raise PublicationError(
            f"The publisher '{publisher}' {problem}. Give the folder that holds the tables to publish.",
            replica=str(publisher),
        )
    for subscription in publication.subscriptions:
        root = Location.of(subscription.subscriber)
        if (problem := folder_problem(root)) not in (None, MISSING):
            raise PublicationError(f"The subscriber '{root}' {problem}. Give a folder.", replica=str(root))
    roots = [("publisher", publisher)]
    roots += [("subscriber", Location.of(each.subscriber)) for each in publication.subscriptions]
    for who, root in roots:
        # Already a replica: a later replica around it shares no table with it (`_check_one_replica`).
        if not has_system_tables(root) and (around := replica_above(root)) is not None:
            raise PublicationError(
                f"The {who} '{root}' lies inside the replica '{around}'; replicas may not contain each other. "
                f"Give a folder outside of it; or, if that replica is not used any more, remove '{around / FOLDER}'.",
                replica=str(root),
            )
    _check_one_replica(publication, roots)


def _check_one_replica(publication: Publication, roots: Sequence[tuple[str, Location]]) -> None:
    """Check that no two replicas share a table.

    Each of them would take the other's session commits for its own, and neither would send these changes.
    """
    taken = {Location.of(resolved(root)): f"the {who} '{root}'" for who, root in roots}
    for who, root in roots:
        own = Location.of(resolved(root))
        for article in publication.articles:
            named = root / article.table
            table = Location.of(resolved(named))
            other = next((taken[f] for f in (table, *table.parents) if f in taken and f != own), None)
            if other is None and (around := replica_above(named, own)) is not None:
                other = f"the replica '{around}' (if it is not used any more, remove '{around / FOLDER}')"
            if other is not None:
                raise PublicationError(
                    f"Article '{article.name}': its table '{table}' at the {who} '{root}' belongs to {other}. Of two "
                    "replicas with one table neither learns of all changes. Give each replica tables of its own, "
                    "without links to another's.",
                    article=article.name,
                    table=str(table),
                )
            taken[table] = f"article '{article.name}' at the {who} '{root}'"
