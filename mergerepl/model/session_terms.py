"""The terms of a session, agreed before any row is read: its directions, its start, its numbers, its articles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import Resolution
from mergerepl.model.resolvers import CUSTOM, PRIORITY, RESOLVERS, resolver_info

NEVER: Final = 1 << 62
"""No generation has a higher number."""


@dataclass(frozen=True)
class ArticleTerms:
    """The terms of one article for the decision.

    `by_columns`: a conflict is lost by columns, not by the row. `whole_rows`: rows that differ are never merged.
    `resolver` decides two updates, `update_delete` an update against a delete. `made_columns`: the resolver makes
    their values; `clashing_columns`: two changes of them to one value are two changes. `floor`: versions up to it
    count as known to both sides, except to a side whose row was born after its generation `…_fresh_after`: that is a new
    row, and one of that key outside of its partition is unknown to it. `clock`: a resolution's version is higher.
    `names`: by field of `fields` the name of a value column, None for a key's; `named_fields`: its image field, the key
    of colv1. `resolved_at_…`: the generations that merged and resolved rows join at each side. `rejects`: the side whose
    changes are not taken, or None.
    """

    tablenick: int
    column_tracking: bool
    by_columns: bool
    whole_rows: bool
    resolver: str
    update_delete: str
    made_columns: tuple[str, ...]
    clashing_columns: tuple[str, ...]
    floor: int
    clock: int
    names: tuple[str | None, ...]
    named_fields: tuple[str, ...]
    resolved_at_publisher: int = 0
    resolved_at_subscriber: int = 0
    publisher_fresh_after: int = NEVER
    subscriber_fresh_after: int = NEVER
    rejects: str | None = None


def terms_of(
    article: PublishedArticle,
    *,
    resolved_at_publisher: int = 0,
    resolved_at_subscriber: int = 0,
    whole_rows: bool = False,
    floor: int = 0,
    clock: int = 0,
    publisher_fresh_after: int = NEVER,
    subscriber_fresh_after: int = NEVER,
) -> ArticleTerms:
    """Return the terms of a published article.

    Rows that may not be merged (`whole_rows`) are decided by priority where the resolver would make a value.
    """
    resolver, info = RESOLVERS[article.resolver], resolver_info(article.resolver_info)
    if whole_rows and (resolver.makes_value or resolver.name == CUSTOM):
        resolver = RESOLVERS[PRIORITY]
    whole_rows = whole_rows or resolver.rejects is not None
    made = info.columns if resolver.makes_value else ()
    update_delete = resolver.name if resolver.decides_deletes else info.update_delete
    name_of = dict(zip(article.fields, article.columns, strict=True))
    names = (name_of[field] for field in article.written_fields)
    is_by_columns = article.column_tracking and article.resolution == Resolution.COLUMNS.value
    return ArticleTerms(
        tablenick=article.nickname,
        column_tracking=article.column_tracking,
        by_columns=is_by_columns and not whole_rows,
        whole_rows=whole_rows,
        resolver=resolver.name,
        update_delete=update_delete,
        made_columns=made,
        clashing_columns=made if resolver.clashes_if_equal else (),
        floor=floor,
        clock=clock,
        names=tuple(name if name in article.value_columns else None for name in names),
        named_fields=article.written_fields,
        resolved_at_publisher=resolved_at_publisher,
        resolved_at_subscriber=resolved_at_subscriber,
        publisher_fresh_after=publisher_fresh_after,
        subscriber_fresh_after=subscriber_fresh_after,
        rejects=resolver.rejects,
    )


@dataclass(frozen=True)
class SessionTerms:
    """The terms of a session for classification and resolution.

    `publisher_generations` maps the subscriber's generation numbers to those at the publisher, `subscriber_generations`
    the other way round. `unpublished` is the side, if any, whose change the publisher does not get in this session: a
    row merged with it keeps its priority.
    """

    upload: bool
    download: bool
    resolver_nickname: int
    client_subscription: bool
    publisher_generations: Mapping[int, int]
    subscriber_generations: Mapping[int, int]
    upload_start: int = 0
    download_start: int = 0
    unpublished: str | None = None
