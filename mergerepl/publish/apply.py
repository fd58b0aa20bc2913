"""`mergerepl apply`: make the replicas match the file.

The plan is made without a lock and without a change: reading is safe beside a running agent, a refused file
leaves nothing behind, and a file that changes nothing costs a few reads of small tables. If there is
something to do, the replicas are locked and looked at again before the first step.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from mergerepl.compact.sweep import sweep_root
from mergerepl.errors import EngineLostError, LeaseError, PublicationError, StoreError
from mergerepl.failpoints import failpoint
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.publication import Publication
from mergerepl.model.results import ApplyResult
from mergerepl.publish.plan import Plan, make_plan
from mergerepl.publish.situation import look
from mergerepl.publish.work import Agent
from mergerepl.roots import resolved
from mergerepl.store.folders import made_folder
from mergerepl.store.lease import lease

PURPOSE = "mergerepl apply"

_LIBRARIES = frozenset({"pyspark", "py4j", "delta", "deltalake", "_internal"})


def apply_publication(
    publication: Publication,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    capture: Callable[[Path, str], None] | None = None,
    finish: Callable[[Path, Path | None, str], None] | None = None,
) -> ApplyResult:
    """Make the replicas match the publication and return what was done (or, dry, would be done).

    Args:
        publication: As the file states it.
        dry_run: Check everything and change nothing.
        progress: Receives each step as it begins.
        capture: Captures the changes of the publisher at a root, whose lease is held, in the publication of a pubid
            (the agent's part). Without it, a publication that is in use already can get no new subscribers.
        finish: Finishes a session that was interrupted (the agent's part): root of the publisher, root of the
            subscriber (None: out of reach), name of the session. Both are leased. Without it, a subscription
            with such a session cannot end.

    Raises: ConfigurationError, PublicationError, CaptureError, EnumerationError: refused, nothing was changed. LeaseError:
        one of the replicas is in use. EngineLostError; StoreError: a table cannot be read or written; run again, finished
        steps stay done.
    """
    started = time.monotonic()
    publication = _resolved(publication)
    progress = progress or NoProgress()
    agent = Agent(capture or _refuse_capture, finish or _refuse_finish)
    with _engine_errors("Checking the publication"):
        plan = make_plan(publication, agent, progress)
    if plan.steps and not dry_run:
        plan = _carry_out(publication, plan, progress, agent)
    steps = tuple(step.plan for step in plan.steps)
    return ApplyResult(publication.name, steps, dry_run=dry_run, duration_s=time.monotonic() - started)


def _resolved(publication: Publication) -> Publication:
    """Return the publication with roots free of symbolic links: replicas are identified by these."""
    subscriptions = tuple(
        replace(subscription, subscriber=_real(subscription.subscriber))
        for subscription in publication.subscriptions
    )
    return replace(publication, publisher=_real(publication.publisher), subscriptions=subscriptions)


def _real(root: str) -> str:
    return resolved(root) if os.path.isabs(root) else root


def _carry_out(publication: Publication, plan: Plan, progress: Progress, agent: Agent) -> Plan:
    with ExitStack() as leases:
        for root in plan.roots:
            leases.enter_context(_leased(root))
        if look(publication) != plan.seen:
            held = plan.roots
            with _engine_errors("Checking the publication"):
                plan = make_plan(publication, agent, progress)
            if other := next((root for root in plan.roots if root not in held), None):
                raise LeaseError(
                    f"Another `apply` changed the subscriptions meanwhile: '{other}' is one of them now. Nothing was "
                    "changed. Run `mergerepl apply` again.",
                    replica=str(other),
                )
        plan.work.hold(plan.roots)
        for step in plan.steps:
            action = step.plan.action
            progress.step(f"{action} {step.plan.object}")
            failpoint(f"apply.before_{action}")
            with _engine_errors(f"Step '{action} {step.plan.object}'"):
                step.run()
            failpoint(f"apply.after_{action}")
    return plan


@contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    """Turn what Spark, delta-rs or the file system raise into an error of ours."""
    try:
        yield
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if library not in _LIBRARIES and not isinstance(error, OSError):
            raise
        from mergerepl.spark.errors import cause_of, engine_answers

        if not engine_answers():
            raise EngineLostError(
                f"{doing} was cut short: the Spark engine ended, for lack of memory, perhaps ($MERGEREPL_MEMORY gives the "
                "embedded one more). What was done before stays done; run `mergerepl apply` again."
            ) from error
        raise StoreError(
            f"{doing} failed: {cause_of(error)}. What was done before stays done; see to the cause and run `mergerepl "
            "apply` again."
        ) from error


@contextmanager
def _leased(root: Path) -> Iterator[None]:
    """Hold a replica whose folder may be new; folders that are made for it and stay empty are removed again."""
    with ExitStack() as folder:
        try:
            folder.enter_context(made_folder(root))
        except OSError as error:
            raise PublicationError(
                f"Subscriber '{root}' cannot be created: {error.strerror}. Check the path and its permissions.",
                replica=str(root),
            ) from error
        folder.enter_context(lease(root, purpose=PURPOSE))
        sweep_root(root)
        yield


def _refuse_capture(root: Path, pubid: str) -> None:
    raise PublicationError(
        f"Publisher '{root}' has changes to capture first. Run `mergerepl sync`, then `mergerepl apply` "
        "again.",
        replica=str(root),
    )


def _refuse_finish(publisher: Path, subscriber: Path | None, session: str) -> None:
    raise PublicationError(
        f"Session {session} of publisher '{publisher}' was interrupted. Run `mergerepl sync` first, then "
        "`mergerepl apply` again.",
        replica=str(subscriber or publisher),
    )
