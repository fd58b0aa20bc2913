"""What a reinitialisation compares, and the changes of the subscriber that it would give up: refused, unless meant."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from enumeration.plan import enumeration
from mergerepl.changes import OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.merge.reinit.captured_ends import CapturedEnds
from mergerepl.merge.reinit.decisions import deletes_outside, unsent_rows
from mergerepl.merge.reinit.differences import ReinitArticle, decided_rows
from mergerepl.merge.repair.differing import SHOWN, examples
from mergerepl.merge.session.merge_session import SessionRequest
from mergerepl.merge.session.sides import SideState
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import KeyDifference
from mergerepl.model.words import counted, key_text
from mergerepl.replica.partition_generations import is_moving
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.systables.genhistory import Generation, GenStatus

NOTHING = "Nothing was changed."


@dataclass(frozen=True)
class ReinitTerms:
    """What happens to changes that the subscriber has not sent; neither: there must be none. `tables`: empty for all.

    `is_changing_resolver`: `apply` gives these articles, upload_only until now, another resolver once they are equal.
    """

    upload_first: bool = False
    discard_local: bool = False
    tables: Collection[str] = ()
    is_dry: bool = False
    is_changing_resolver: bool = False


@dataclass(frozen=True)
class DecidedArticle:
    """An article with its decided rows; `unsent` are those among them with a change that was not sent, `count` many."""

    of: ReinitArticle
    rows: DataFrame
    unsent: DataFrame | None
    count: int
    examples: tuple[KeyDifference, ...]

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.of.article


def compared_articles(
    captured: CapturedEnds, *, is_changing_resolver: bool, uses_arrow: bool
) -> list[ReinitArticle]:
    """Return the articles with the numbers of their new generations; the old ones do not count."""
    sides = captured.planned
    publisher, subscriber = sides[PUBLISHER], sides[SUBSCRIBER]
    void = subscriber.info.last_generation + 1
    start = min(subscriber.other.sentgen, publisher.other.recgen)
    unsent = _unsent_generations(captured, subscriber, start)
    return [
        ReinitArticle(
            sides,
            nickname,
            {PUBLISHER: publisher.info.last_generation + i, SUBSCRIBER: void + i},
            void,
            max(publisher.info.clock, subscriber.info.clock),
            start,
            frozenset(row.generation for row in unsent if row.art_nick == nickname),
            keeps_rows=publisher.articles[nickname].rejects == PUBLISHER and not is_changing_resolver,
            uses_arrow=uses_arrow,
        )
        for i, nickname in enumerate(sorted(publisher.articles), 1)
    ]


def _unsent_generations(captured: CapturedEnds, subscriber: SideState, start: int) -> list[Generation]:
    """Return the subscriber's generations after the start that the publisher lacks.

    Also what a publisher that was restored from an older copy had sent since. A replica that was restored goes on with
    the generation that was open then: another one with its guid was sent meanwhile.
    """
    publisher = captured.sides[PUBLISHER]
    known = {row.guidsrc: row for row in publisher.replica.genhistory()}
    left_open = {row.guidsrc for side in captured.sides.values() for row in side.genhistory if row.is_open}

    def is_there(row: Generation) -> bool:
        other = known.get(row.guidsrc)
        if other is None:
            # The publisher forgets its generations that all replicas know.
            is_old = row.maxversion is not None and row.maxversion <= publisher.settled
            return row.genstatus == GenStatus.CLOSED_ELSEWHERE and is_old
        is_same = (row.changecount, row.maxversion) == (other.changecount, other.maxversion)
        return is_same and row.guidsrc not in left_open

    later = (row for row in subscriber.genhistory if row.generation > start and row.changecount)
    return [row for row in later if not is_there(row)]


def decided_article(spark: SparkSession, of: ReinitArticle, kept: Kept) -> DecidedArticle:
    """Compare an article's tables.

    Raises: as `differences.decided_rows`.
    """
    with plain_errors(f"comparing article '{of.article.name}'"):
        rows = decided_rows(spark, of, kept)
        unsent = unsent_rows(spark, of, rows, kept)
        outside = deletes_outside(spark, of, rows, kept)
        counts = [0 if each is None else each.count() for each in (unsent, outside)]
        shown = [examples(each, of.article) for each in (unsent, outside) if each is not None]
        return DecidedArticle(of, rows, unsent if counts[0] else None, sum(counts), sum(shown, ()))


def refuse_waiting(sides: Mapping[str, SideState]) -> None:
    """Check that the articles left out have nothing to send: the watermarks will pass it.

    Raises: PublicationError.
    """
    for name, side in sides.items():
        source = replace(side.source, tablenicks=side.left_out)
        waiting = enumeration(source, sides[OTHER_SIDE[name]].destination).generations
        if any(row.changecount for row in waiting):
            raise PublicationError(
                f"Other articles of '{side.replica.root}' have changes that wait for a sync. {NOTHING} Run "
                "`mergerepl sync`; if it leaves them out, reinitialise all articles: leave out --table.",
                replica=str(side.replica.root),
            )


def refuse_unsent(held: SessionRequest, terms: ReinitTerms, found: Sequence[DecidedArticle]) -> None:
    """Check that no change is given up that the caller did not mean.

    Raises: ConfigurationError naming up to 20 keys.
    """
    count = sum(each.count for each in found)
    if not count or terms.upload_first or terms.discard_local:
        return
    raise ConfigurationError(
        f"'{held.subscriber.root}' has {counted(count, 'change')} that the publisher lacks: {_shown(found)}. It "
        "was not filled again. Say --upload-first, which compares them with the publisher's rows and logs what loses, or "
        "--discard-local, which exports them first.",
        subscriber=str(held.subscriber.root),
    )


def refuse_moves(
    held: SessionRequest, terms: ReinitTerms, publisher: SideState, found: Sequence[DecidedArticle]
) -> None:
    """Check that no row of the publisher changes, and that the partition stays, where there are row filters.

    A row that goes up may move others between partitions, which only a session does.

    Raises: PublicationError.
    """
    if publisher.filtered is None:
        return
    subscriber, about = str(held.subscriber.root), publisher.other
    number, start = publisher.filtered.number, about.sentgen
    if is_moving(publisher.replica, number, about, from_generation_exclusive=start):
        raise PublicationError(
            f"'{subscriber}' has yet to move to another partition: its host_name or suser_sname changed. {NOTHING} State "
            "the former value, run `mergerepl apply`, reinitialise, and change it again.",
            subscriber=subscriber,
        )
    count = sum(each.count for each in found)
    if count and terms.upload_first:
        raise PublicationError(
            f"'{subscriber}' has {counted(count, 'change')} that the publisher lacks: {_shown(found)}. With row filters "
            f"they go up by sessions alone, as they may move other rows between partitions. It was not filled again. "
            "Say --discard-local, which exports them first, and write them again.",
            subscriber=subscriber,
        )


def _shown(found: Sequence[DecidedArticle]) -> str:
    """Return the keys of the first changes that were not sent."""
    keys = [f"{each.article.name} {key_text(one.key)}" for each in found for one in each.examples]
    return "; ".join(keys[:SHOWN])
