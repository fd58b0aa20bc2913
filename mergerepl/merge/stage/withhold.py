"""Withhold the rows of a staged article that a table refuses.

They wait at their source, or are undone; the rest goes on.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from conflict.failed_changes import REFUSED_AT, withheld
from mergerepl.changes import OF_TWO, OTHER_SIDE, PUBLISHER, RESOLVED_COLUMNS, ROWGUID, SUBSCRIBER, VERDICT
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.tables import row_constraints
from mergerepl.frames import DataFrame, F
from mergerepl.merge.stage.article import StagedArticle, stage_article
from mergerepl.merge.stage.constraints import destinations, refused_rows, require_takers, takes_any_row
from mergerepl.merge.stage.decision import Changed
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.replica.staged_rows import read_staged, require_rows
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import replace_rows
from mergerepl.store.location import Location
from mergerepl.systables.genhistory import Generation


@dataclass(frozen=True)
class Withholding:
    """The inputs of withholding rows of one article; mappings are by side.

    Attributes:
        at: The article.
        replicas: The replicas.
        changed: The changes of both sides.
        numbers: The generation in which a side's refused changes wait; absent for a side without changes.
        sent: The generations that a side sends.
        as_wholes: Decides rows (rowguid) again as whole rows; None if the result is the same.
        undo: Undoes the subscriber's changes in rows of RESOLVED that the publisher's table refuses (REFUSED); None if
            these wait.
        versions: The captured versions of the tables.
        choice: The engine of the session.
    """

    at: Mapping[str, PublishedArticle]
    replicas: Mapping[str, Replica]
    changed: Changed
    numbers: Mapping[str, int]
    sent: Mapping[str, Collection[Generation]]
    as_wholes: Callable[[DataFrame], DataFrame] | None
    undo: Callable[[DataFrame, DataFrame], DataFrame] | None
    versions: Mapping[str, int]
    choice: EngineChoice


def withhold_refused(
    rows_folder: Location, staged: StagedArticle, of: Withholding, kept: Kept
) -> StagedArticle:
    """Rewrite a staged article's folder without the rows that a table refuses; return its new counts.

    Halves of two changes that no table takes together are decided as whole rows first.

    Raises: ApplyError, EngineError, as `require_takers`.
    """
    both = destinations(rows_folder, staged, of.at, of.replicas)
    require_takers(of.choice, both)
    tables = {side: at.table for side, at in both.items()}
    written = {side: at.table for side, at in both.items() if at.work.touches_rows}
    require_rows(rows_folder)
    if all(takes_any_row(facts, of.at[side]) for side, facts in written.items()):
        return staged
    spark = of.choice.for_rules
    rows = read_staged(spark, rows_folder).select(*RESOLVED_COLUMNS)
    refused = kept.keep_if_any(refused_rows(spark, rows, of.at, written))
    if refused is None:
        return staged
    parts = [rows.join(refused, on=ROWGUID, how="left_anti")]
    is_of_two = F.col(VERDICT).isin(*OF_TWO)
    if of.as_wholes is not None:
        wholes = kept.keep(of.as_wholes(refused.where(is_of_two).select(ROWGUID)))
        broken = refused_rows(spark, wholes, of.at, tables)
        assert broken is not None
        broken = kept.keep(broken)
        parts.append(wholes.join(broken, on=ROWGUID, how="left_anti"))
        refused = refused.where(~is_of_two).unionByName(broken)
    if of.undo is not None:
        is_upload = F.col(REFUSED_AT[PUBLISHER]).isNotNull()
        uploads = rows.join(refused.where(is_upload).select(ROWGUID), on=ROWGUID, how="left_semi")
        back = of.undo(uploads, refused)
        broken = refused_rows(spark, back, of.at, {SUBSCRIBER: tables[SUBSCRIBER]})
        # Rows that the subscriber's own table does not take back wait.
        back = kept.keep(back if broken is None else back.join(broken, on=ROWGUID, how="left_anti"))
        parts.append(back)
        refused = refused.join(back.select(ROWGUID), on=ROWGUID, how="left_anti")
    asked = {side: row_constraints(facts, of.at[side]) for side, facts in tables.items()}
    for side, sent in ((PUBLISHER, of.changed.at_publisher), (SUBSCRIBER, of.changed.at_subscriber)):
        if sent is not None and side in of.numbers:
            rules = asked[OTHER_SIDE[side]]
            again = [g.generation for g in of.sent[side] if g.waits_for and g.was_refused_by == rules]
            parts.append(withheld(sent, refused, side=side, generation=of.numbers[side], logged=again))
    rest = rows_folder.with_name(f"{rows_folder.name}.rest")
    outcome = reduce(DataFrame.unionByName, parts)
    found = stage_article(outcome, rest, of.at[PUBLISHER], from_versions=of.versions)
    replace_rows(rows_folder, rest)
    if found.works[SUBSCRIBER].touches_rows and SUBSCRIBER not in written:
        require_takers(of.choice, destinations(rows_folder, found, of.at, of.replicas))
    return replace(found, refused_by=asked)
