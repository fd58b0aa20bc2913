"""The agent of `apply`: sessions, captures and changes of definitions at the replicas of a merge publication."""

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from mergerepl.delta.engine_choice import ARROW_FOR_FEW
from mergerepl.errors import PublicationError
from mergerepl.merge.reinit.reinit import reinitialise_held
from mergerepl.merge.reinit.unsent import ReinitTerms
from mergerepl.merge.schema.columns import check_columns, stops_at
from mergerepl.merge.session.capture_replica import capture_held
from mergerepl.merge.session.change_definition import change_definition
from mergerepl.merge.session.change_filters import planned_moves
from mergerepl.merge.session.merge_session import SessionRequest, held_session
from mergerepl.merge.session.recovery import finish_session
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Publication
from mergerepl.publish.agent import Agent, ColumnsChange, DefinitionChange
from mergerepl.publish.filters import FilterChange
from mergerepl.replica.replica import Replica
from mergerepl.sessions import session_request
from mergerepl.sessions.targets import Target
from mergerepl.store.location import Location
from mergerepl.tracking.sweep import sweep_root


def session_agent(publication: Publication, progress: Progress) -> Agent:
    """Return the agent's functions for one publication."""
    return _SessionAgent(publication, progress)


class _SessionAgent(Agent):
    def __init__(self, publication: Publication, progress: Progress) -> None:
        self._in_process = publication.engine == ARROW_FOR_FEW
        self._progress = progress

    def capture(self, root: Location, pubid: str) -> None:
        capture_held(Replica(root), pubid, progress=self._progress, in_process=self._in_process)

    def change(self, root: Location, pubid: str, change: DefinitionChange, *, is_subscribed: bool) -> None:
        change_definition(
            Replica(root),
            pubid,
            change,
            is_subscribed=is_subscribed,
            in_process=self._in_process,
            progress=self._progress,
        )

    def check_columns(self, root: Location, tablenick: int, columns: tuple[str, ...]) -> None:
        check_columns(Replica(root), tablenick, columns)

    def stops_at(self, publisher: Location, subscriber: Location, change: ColumnsChange) -> str | None:
        return stops_at(
            Replica(publisher),
            Replica(subscriber),
            change.tablenick,
            change.names,
            is_listed=change.is_listed,
        )

    def planned_moves(
        self, root: Location, pubid: str, change: FilterChange, partitions: Collection[int]
    ) -> Mapping[str, Mapping[int, tuple[int, int]]] | None:
        return planned_moves(Replica(root), pubid, change, partitions) if self._in_process else None

    def finish(self, publisher: Location, subscriber: Location | None, session: str) -> None:
        finish_session(Replica(publisher), Replica(subscriber) if subscriber else None, session)

    def reinitialise(
        self, publication: Publication, subscriber: Location, tables: Sequence[str], progress: Progress
    ) -> None:
        terms = ReinitTerms(upload_first=True, tables=tables, is_changing_resolver=True)
        reinitialise_held(_request(publication, subscriber, progress), terms)

    def synchronise(self, publication: Publication, subscriber: Location, progress: Progress) -> None:
        request = _request(publication, subscriber, progress)
        result, _ = held_session(request, datetime.now(UTC), time.monotonic())
        if result.error is not None:
            raise PublicationError(
                f"Not all changes of subscriber '{subscriber}' went up: {result.reason} `columns` was not changed. Run "
                "`mergerepl apply` again when `mergerepl sync` succeeds.",
                replica=str(subscriber),
            )

    def sweep(self, root: Location) -> None:
        sweep_root(root)


def _request(publication: Publication, subscriber: Location, progress: Progress) -> SessionRequest:
    publisher = Location.of(publication.publisher)
    target = Target(publisher, subscriber, publication.name, publication.engine)
    return session_request(target, progress)
