"""`catalog` of a publication or subscription: the names of a replica's tables lead to the places of its articles.

Only a caller's Spark session has a catalog. Where there is none, a replica is known by its place alone, as without names.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.replica.replica import Replica
from mergerepl.roots import resolved
from mergerepl.rows.sql import literal
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TOLD: set[str] = set()
"""Managed tables that this process has warned of: an agent would say it in every session."""
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Name:
    """A name that an article's table has in a catalog."""

    article: str
    schema: str
    place: Location
    is_publishers: bool

    @property
    def text(self) -> str:
        """The name with its schema."""
        return f"{self.schema}.{self.article}"

    @property
    def statement(self) -> str:
        """The statement that makes it an alias of the table's place."""
        return f"CREATE TABLE {self.text} USING delta LOCATION {literal(self.place.spark_uri)}"


def stated_names(definition: str | None) -> list[Name]:
    """Return the names that a publication states as it is stored."""
    stated: dict[str, Any] = json.loads(definition or "{}")
    ends = [
        (stated, stated.get("publisher")),
        *((s, s["subscriber"]) for s in stated.get("subscriptions", ())),
    ]
    return [
        Name(article["name"], end["catalog"], Location.of(root) / article["table"], end is stated)
        for end, root in ends
        if "catalog" in end
        for article in stated["articles"]
    ]


def missing_names(spark: SparkSession, names: Sequence[Name]) -> list[Name]:
    """Look the names up; return those that the catalog does not have.

    A table that a DROP of its name would remove is logged as a warning, once in a process.

    Raises: ConfigurationError, PublicationError: A name leads elsewhere, a place has two names, or the publisher's has
    none.
    """
    from mergerepl.spark.metastore import tables_of

    lacking = []
    for schema in dict.fromkeys(each.schema for each in names):
        found = tables_of(spark, schema)
        for name in (each for each in names if each.schema == schema):
            place = resolved(name.place)
            own = next((each for each in found if each.name.lower() == name.article.lower()), None)
            if own is not None and own.place != place:
                raise PublicationError(
                    f"Article '{name.article}': '{name.text}' in the catalog is another table: it lies at '{own.place}', "
                    f"and the article's at '{place}'. Nothing was changed. Correct the name in the catalog; or change "
                    "`catalog` or the folder in the file, and run `mergerepl apply`.",
                    article=name.article,
                    table=str(name.place),
                )
            if other := next((each.name for each in found if each.place == place and each is not own), None):
                other = f"{schema}.{other}"
                problem = f"has another name in the catalog, '{other}', beside '{name.text}'"
                way = "Drop one of the names (DROP TABLE of an external table leaves its files)"
                if own is None:
                    problem = f"is called '{other}' in the catalog, and '{name.text}' is missing there"
                    way = f"Run `ALTER TABLE {other} RENAME TO {name.text}`, or leave `catalog` out and apply"
                raise PublicationError(
                    f"Article '{name.article}': the table '{place}' {problem}. Nothing was changed. {way}.",
                    article=name.article,
                    table=str(name.place),
                )
            if own is not None and own.is_managed and place not in _TOLD:
                _TOLD.add(place)
                log.warning(
                    "Article '%s': the catalog manages the table '%s': DROP TABLE would remove its files.",
                    name.article,
                    name.text,
                )
            if own is None and not _PLAIN.fullmatch(name.article):
                raise ConfigurationError(
                    f"Article '{name.article}' cannot be the name of a table in the catalog, which has letters, digits and "
                    "_ only. Rename the article, or leave `catalog` out."
                )
            if own is None and name.is_publishers:
                raise PublicationError(
                    f"Article '{name.article}': the catalog has no table '{name.text}'. Nothing was changed. Run "
                    f"`{name.statement}`; or leave `catalog` out of the file and run "
                    "`mergerepl apply`.",
                    article=name.article,
                    table=str(name.place),
                )
            lacking += [name] if own is None else []
    return lacking


def require_names(publisher: Replica, subscriber: Location, publication: str) -> None:
    """Check at the start of a session that the names of both replicas' tables lead to their articles.

    Raises: as `missing_names`, also for a name that is missing at the subscriber.
    """
    row = next((each for each in publisher.published if each.name == publication), None)
    if row is None or '"catalog"' not in (row.definition or ""):
        return
    from mergerepl.spark.metastore import callers_catalog

    if (spark := callers_catalog()) is None:
        return
    ends = publisher.root, subscriber
    names = [each for each in stated_names(row.definition) if any(each.place.is_below(end) for end in ends)]
    if missing := missing_names(spark, names):
        raise PublicationError(
            f"Article '{missing[0].article}': the catalog has no table '{missing[0].text}'. Nothing was changed. Run "
            "`mergerepl.Project.load(FILE).apply()` in this Spark session, which registers it.",
            article=missing[0].article,
        )
