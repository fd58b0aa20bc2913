"""`sync --dry-run`: the counts of a session, and the winner and loser of each conflict, both rows as text."""

import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from enumeration.plan import number_generations
from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.store_proof import require_shared_folders
from mergerepl.errors import PublicationError, SchemaMismatchError
from mergerepl.frames import DataFrame, F
from mergerepl.merge.session.merge_session import OpenSession, SessionRequest, open_session
from mergerepl.merge.session.recovery import refuse_interrupted
from mergerepl.merge.session.schema_step import changed_articles
from mergerepl.merge.session.session_plan import session_plan
from mergerepl.merge.session.sides import captured_sides, open_sides, planned
from mergerepl.merge.session.stage_session import PlannedSession, resolving_alone, stage_articles
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model import refused_pairs
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleCounts, ConflictPreview, PhaseCounts, SessionResult
from mergerepl.model.words import text_of
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.arrow_values import python_values
from mergerepl.rows.images import no_names
from mergerepl.spark.in_memory import collected
from mergerepl.store.changeset import drop_rows
from mergerepl.store.location import Location
from triggers.schema_checks import FOLLOWED

SHOWN = 100
"""Conflicts shown per article; the counts are of all."""


def preview_session(request: SessionRequest) -> SessionResult:
    """Return the result that a session would have, with its conflicts, and change nothing.

    Raises: As `merge_session`; EnumerationError if the next session will first finish a staged one.
    """
    started = time.monotonic()
    doing = f"previewing '{request.publisher.root}' with '{request.subscriber.root}'"
    with request.held(doing) as held:
        held.refuse_unfit_replicas()
        refuse_interrupted(*held.ends)
        sides = open_sides(*held.ends, held.subscription)
        if sides[PUBLISHER].filtered is not None:
            raise PublicationError(
                refused_pairs.FILTERED_DRY_RUN.says(publication=held.publication),
                publication=held.publication,
            )
        session = open_session(held, sides, started)
        if changed := changed_articles(session.sides, sides, session.refused):
            _refuse_changed(session, changed)
        if not session.has_work:
            return session.finish(session.nothing_to_do)
        try:
            return _preview(session)
        except NeedsSparkError as error:
            if held.refused is not None:
                raise
            return _preview(replace(session, request=replace(held, refused=error)))


def _refuse_changed(session: OpenSession, tablenicks: Collection[int]) -> None:
    """Refuse articles whose columns, or replaced tables, a session follows first.

    Raises: SchemaMismatchError.
    """
    request = session.request
    for nickname in tablenicks:
        error = session.refused.get(nickname)
        name = session.names[nickname]
        if error is None or any(each in error.message for each in FOLLOWED):
            raise SchemaMismatchError(
                f"The columns of article '{name}', or its whole table, were changed. `mergerepl sync` follows that before "
                "rows, or says why it does not travel; what it will send is not known yet. Nothing was changed. Run "
                "`mergerepl sync`.",
                replica=str(request.publisher.root),
                article=name,
            )


def _preview(session: OpenSession) -> SessionResult:
    request = session.request
    choice = session.engine()
    with choice.rules():
        sides, not_captured = captured_sides(session.sides, choice)
    folder = Location.of(tempfile.mkdtemp(prefix="mergerepl-preview-"))
    try:
        if not choice.in_process:
            # Executors may write to a folder of their own, which is not seen here.
            require_shared_folders(choice.spark, folder)
        sides = {name: planned(side) for name, side in sides.items()}
        plan = session_plan(sides, upload=request.upload, download=request.download)
        numbers = number_generations(
            plan,
            {n: side.info.last_generation for n, side in sides.items()},
            resolving_alone=resolving_alone(sides[PUBLISHER]),
        )
        staging = PlannedSession(sides, plan, numbers, folder, request.progress, choice)
        with choice.rules():
            staged, not_staged = stage_articles(staging)
            articles = sides[PUBLISHER].articles
            previews: list[ConflictPreview] = []
            for nickname, each in staged.items():
                if each.conflicts:
                    rows = read_staged(choice.for_rules, folder / str(nickname))
                    conflicts = rows.where(F.col(changes.CONFLICT_TYPE).isNotNull())
                    previews += _of_article(conflicts, articles[nickname])
    finally:
        drop_rows(folder)
        with choice.rules():
            for side in sides.values():
                for item in side.captured:
                    item.release()
    counts = tuple(
        _planned_counts(articles[nickname].name, each, upload=request.upload)
        for nickname, each in staged.items()
    )
    result = replace(
        session.nothing_to_do,
        status="planned",
        upload=sum((article.upload for article in counts), PhaseCounts()),
        download=sum((article.download for article in counts), PhaseCounts()),
        articles=counts,
        conflicts=tuple(previews),
        waiting=sum(sum(article.waiting.values()) for article in staged.values()),
        fallbacks=tuple(choice.fallbacks.values()),
    )
    return session.finish(result, not_captured | not_staged)


def _planned_counts(article: str, staged: StagedArticle, *, upload: bool) -> ArticleCounts:
    def counts(actions: dict[str, int], conflicts: int) -> PhaseCounts:
        return PhaseCounts(
            actions.get("insert", 0), actions.get("update", 0), actions.get("delete", 0), conflicts
        )

    return ArticleCounts(
        article,
        counts(staged.works[PUBLISHER].actions, staged.conflicts if upload else 0),
        counts(staged.works[SUBSCRIBER].actions, 0 if upload else staged.conflicts),
    )


def _of_article(conflicts: DataFrame, article: PublishedArticle) -> list[ConflictPreview]:
    row, loser = F.col(changes.ROW), F.col(changes.LOSER)
    by_key = conflicts.orderBy(*(row.getField(field) for field in article.identity_fields))
    has_winner = F.col(changes.WINNER).isNotNull() & ~F.col(changes.DELETED)
    shown = collected(
        by_key.limit(SHOWN).select(
            row,
            F.col(changes.CONFLICT_TYPE),
            F.when(F.col(changes.PUBLISHER_WINS), F.lit(PUBLISHER)).otherwise(F.lit(SUBSCRIBER)),
            has_winner,
            F.when(~loser.getField(changes.DELETED), loser.getField(changes.ROW)),
            F.col(changes.RESOLVER),
            F.col(changes.NOTE),
            F.coalesce(F.col(changes.CONFLICT_COLUMNS), no_names()),
            F.coalesce(F.col(changes.MADE_COLUMNS), no_names()),
        )
    )
    return [
        ConflictPreview(
            article.name,
            {
                name: str(text_of(row[field]))
                for name, field in zip(article.identity, article.identity_fields, strict=True)
            },
            conflict_type,
            winner,
            _texts(row, article) if has_winner else None,
            _texts(losing, article),
            resolver,
            note,
            tuple(conflict_columns),
            tuple(made_columns),
        )
        for row, conflict_type, winner, has_winner, losing, resolver, note, conflict_columns, made_columns in zip(
            *map(python_values, shown), strict=True
        )
    ]


def _texts(row: Mapping[str, object] | None, article: PublishedArticle) -> dict[str, str | None] | None:
    if row is None:
        return None
    return {name: text_of(row[field]) for name, field in zip(article.columns, article.fields, strict=True)}
