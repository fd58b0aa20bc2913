"""Both sides of a reinitialisation, captured in memory: nothing is written until all is decided."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.tables import create_table, head_version, is_delta_table, is_vacant, open_table
from mergerepl.errors import CaptureError, MergeReplError, PublicationError, RefusedArticlesError
from mergerepl.merge.session.choice import require_in_process
from mergerepl.merge.session.sides import Refused, SideState, captured_sides, planned, with_windows
from mergerepl.publish.snapshot import copied_table
from mergerepl.replica.application_ids import application_ids
from mergerepl.replica.fence import fence_new_table
from mergerepl.systables.replinfo import ReplicaInfo


@dataclass(frozen=True)
class CapturedEnds:
    """Both sides with their new changes in memory, and as they will be once these are committed.

    `taken` is the subscriber's bookkeeping if tables of it count as captured though they were not.
    """

    sides: dict[str, SideState]
    taken: ReplicaInfo | None

    @property
    def planned(self) -> dict[str, SideState]:
        """The sides after the commit."""
        return {name: planned(side) for name, side in self.sides.items()}


def capture_ends(
    sides: dict[str, SideState],
    choice: EngineChoice,
    stack: ExitStack,
    *,
    takes_as_it_is: bool,
    is_dry: bool = False,
) -> CapturedEnds:
    """Capture both sides in memory. `takes_as_it_is`: also a table of the subscriber that cannot be captured.

    One that is gone is made, empty.

    Raises: the error of a table that cannot be captured; NeedsSparkError in process.
    """
    found: dict[str, SideState] = {}
    taken = None
    for name, side in sides.items():
        captured, refused = _side_captured(name, side, choice, stack)
        if refused and name == SUBSCRIBER and takes_as_it_is:
            if not is_dry:
                _make_missing(side, refused, sides[PUBLISHER], choice)
            as_it_is = _as_it_is(side, refused)
            taken = as_it_is.info
            captured, refused = _side_captured(name, as_it_is, choice, stack)
        if refused:
            raise _refusal(name, side, refused)
        found[name] = captured
    return CapturedEnds(found, taken)


def _side_captured(
    name: str, side: SideState, choice: EngineChoice, stack: ExitStack
) -> tuple[SideState, Refused]:
    sides, refused = with_windows({name: side})
    if not refused:
        if choice.in_process:
            require_in_process(sides[name].windows)
        sides, refused = captured_sides(sides, choice)
        for item in sides[name].captured:
            stack.callback(item.release)
    return sides[name], refused


def _refusal(name: str, side: SideState, refused: Refused) -> MergeReplError:
    errors = [*refused.values()]
    names = [side.articles[nickname].name for nickname in refused]
    error = errors[0] if len(errors) == 1 else RefusedArticlesError(names, errors)
    if name == PUBLISHER or not all(isinstance(each, CaptureError) for each in errors):
        return error
    return CaptureError(
        f"{error.message} With `mergerepl reinit --discard-local` the table is taken as it is: its rows that differ are "
        "exported, then replaced.",
        **error.facts,
    )


def _make_missing(side: SideState, refused: Refused, publisher: SideState, choice: EngineChoice) -> None:
    for nickname in refused:
        article = side.articles[nickname]
        table = side.replica.table(article)
        if not is_delta_table(table) and is_vacant(table):
            if article.rejects == PUBLISHER:
                raise PublicationError(
                    f"Article '{article.name}' is upload_only, and its table '{table}' is gone: its rows were the "
                    "subscriber's, the publisher has none to give. Nothing was changed. Restore the table, or create an "
                    "empty one of these columns with the change feed on.",
                    article=article.name,
                )
            source = open_table(publisher.replica.table(publisher.articles[nickname]))
            keeps = side.replica.publication(pubid=article.pubid).keeps or timedelta(0)
            mark = CommitMark(side.other.subid, f"{SETUP}:reinit", side.info.replid)
            create_table(
                table, copied_table(lambda: choice.spark, source, table, article.columns, keeps), mark
            )
            fence_new_table(table, application_ids(each.subid for each in side.replica.subscriptions()))


def _as_it_is(side: SideState, refused: Refused) -> SideState:
    """Return a subscriber whose tables that cannot be captured count as captured at their heads.

    Raises: the error of a table that is gone, in a dry run or where other files are in its place.
    """
    info, last = side.info, side.info.last_generation + 1
    for nickname, error in refused.items():
        table = side.replica.table(side.articles[nickname])
        if not is_delta_table(table):
            raise error
        head = head_version(table)
        info = replace(
            info,
            captured={**info.captured, nickname: head},
            table_ids={**info.table_ids, nickname: open_table(table, head).metadata.table_id},
            cleaned={**info.cleaned, nickname: last},
            last_generation=last,
        )
    return replace(side, info=info)
