"""The choice of a session's engine: once, by the logs and the plan, before a row is read or Java starts."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from enumeration.plan import SessionPlan
from mergerepl.changes import PUBLISHER
from mergerepl.delta.commit_files import MOST_ROWS
from mergerepl.delta.engine_choice import (
    ARROW_FOR_FEW,
    MOST_IN_PROCESS,
    EngineChoice,
    NeedsSparkError,
    TooLargeForArrowError,
    too_many,
)
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import open_table, recent_head
from mergerepl.filters.columns import spark_operation
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.session.sides import SideState
from mergerepl.merge.stage.decision import read_fields
from mergerepl.model.article import PublishedArticle
from mergerepl.model.session_terms import terms_of
from triggers.window import CaptureWindow


def choose_engine(
    engine: str, sides: dict[str, SideState], plan: SessionPlan, refused: NeedsSparkError | None = None
) -> EngineChoice:
    """Choose where the rules of a session run.

    `refused` is why this session could not run in process; nothing was staged then.
    """
    if engine != ARROW_FOR_FEW:
        return EngineChoice(uses_arrow=False)
    choice, in_process = EngineChoice(uses_arrow=True), True
    for reason in [refused] if refused is not None else _reasons(sides, plan):
        choice.fall_back(reason.table, reason)
        in_process = False
    return replace(choice, in_process=in_process)


def _reasons(sides: dict[str, SideState], plan: SessionPlan) -> Iterator[NeedsSparkError]:
    """Yield why Spark runs the rules of a session."""
    windows = [window for side in sides.values() for window in side.windows]
    changed = {window.article.nickname for window in windows if window.has_changes}
    counts = Counter[int]()
    for row in (row for each in (plan.up, plan.down) for row in (*each.generations, *each.known)):
        counts[row.art_nick] += row.changecount
    for window in windows:
        counts[window.article.nickname] += window.counted_rows or 0
    width = {window.article.nickname: len(window.article.columns) for window in windows}
    values = sum(count * width.get(nickname, 0) for nickname, count in counts.items())
    if (many := too_many(counts.total(), values)) is not None:
        yield many
    filtered = sides[PUBLISHER].filtered
    if filtered is not None:
        yield from _of_filters(filtered)
    for window in windows:
        if window.article.nickname in changed | {*plan.tablenicks}:
            reason = _of_article(window.article) or _of_table(window)
            if reason is not None:
                yield NeedsSparkError(reason, window.table)
        if (window.changed_rows or 0) > MOST_ROWS:
            yield TooLargeForArrowError("too many rows", window.table)


def captures_in_process(windows: Collection[CaptureWindow], filtered: Iterable[FilteredPublication]) -> bool:
    """Whether this process may capture these windows, of publications with these row filters, without a session."""
    counts = [(each.counted_rows or 0, len(each.article.columns)) for each in windows]
    if too_many(sum(rows for rows, _ in counts), sum(rows * width for rows, width in counts)) is not None:
        return False
    try:
        require_in_process(windows)
    except NeedsSparkError:
        return False
    return not any(reason for each in filtered for reason in _of_filters(each))


def require_in_process(windows: Collection[CaptureWindow]) -> None:
    """Check that this process may capture these windows and compare their tables.

    Raises: NeedsSparkError.
    """
    for window in windows:
        if (reason := _of_table(window)) is not None:
            raise NeedsSparkError(reason, window.table)
        if window.has_changes and not (window.counted_rows or 0) <= MOST_IN_PROCESS:
            raise TooLargeForArrowError("many rows changed", window.table)


def _of_filters(filtered: FilteredPublication) -> Iterator[NeedsSparkError]:
    from mergerepl.merge.partitions.join_bounds import equal_columns

    if (operation := spark_operation(filtered.filters)) is not None:
        yield NeedsSparkError(f"a row filter uses {operation}")
    if not all(equal_columns(each, each.article, filtered.articles) for each in filtered.filters.joins):
        yield NeedsSparkError("a join filter has no equality of two columns of one type")


def _of_article(article: PublishedArticle) -> str | None:
    if article.generated:
        return "it has generated columns"
    if article.rejects is not None:
        return "its resolver takes no change of one side"
    if terms_of(article).made_columns or read_fields(article) or article.needs_base:
        return "its resolver reads or makes values"
    return None


def _of_table(window: CaptureWindow) -> str | None:
    if window.gap is not None:
        return f"its feed has a gap: {window.gap}"
    if window.has_changes and (len(window.segments) != 1 or not window.segments[0].is_one_metadata):
        return "its metadata changed"
    if window.has_changes and window.state is None:
        return "it was written while its log was read"
    return article_problem(
        window.state or open_table(window.table, recent_head(window.table)), window.article
    )
