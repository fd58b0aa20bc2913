"""Options that exclude each other, with the message of `apply` or `sync`. docs/keys.md shows the same table.

Only pairs of options belong here, not a pair of values such as a column that does not exist.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RefusedPair:
    """Two options that are refused together.

    `one`, `other` and `instead` (the remedy) are for readers, in Markdown. `message` is a template of `str.format`: a
    sentence, or the text after the key of a file.
    """

    one: str
    other: str
    instead: str
    message: str

    def says(self, **values: object) -> str:
        """Return the message with these values."""
        return self.message.format(**values)


_FILTERS: Final = "`filter`, `joins`"
_ONE_WAY: Final = "`resolver: upload_only`, `download_only`"

RESOLVER_BY_ROW: Final = RefusedPair(
    "`tracking: row`",
    "a resolver that makes values, `most_changes_win`",
    "`tracking: column`",
    "is {resolver}, which needs `tracking: column` in the same article",
)
COLUMNS_BY_ROW: Final = RefusedPair(
    "`tracking: row`",
    "`resolution: columns`",
    "`tracking: column`",
    "is `columns`, which needs `tracking: column` in the same article",
)
COLUMNS_OF_ONE_WAY: Final = RefusedPair(
    "`resolution: columns`",
    _ONE_WAY,
    "no `resolution`: whole rows are decided",
    "is `columns`, and {resolver} takes whole rows of one side: remove it",
)
COMPENSATED_ONE_WAY: Final = RefusedPair(
    "`compensate_for_errors: upload`",
    _ONE_WAY,
    "another resolver",
    "is not for {resolver}, which takes changes of one side only: remove it",
)
OPTIONS_UNFILTERED: Final = RefusedPair(
    "`partition_options: 1` to `3`",
    "neither a `filter` nor a join",
    "no `partition_options`",
    "is {options}, and the article has no filter and no join: remove the key",
)
OPTIONS_OF_PARENT: Final = RefusedPair(
    "`partition_options: 2`, `3`",
    "a parent with `0` or `1`",
    "`2` or `3` at the parent, too",
    "is {options}, and its parent '{parent}' has {of_parent}: give the parent 2 or 3, too",
)
OPTIONS_OF_PATHS: Final = RefusedPair(
    "`partition_options: 2`, `3`",
    "a static filter, an OR, several joins, or a join without `unique: true`",
    "`partition_options: 0` or `1`",
    "Article '{article}': partition_options {options} needs one filter path: {problem}. Change the filter, or take "
    "partition_options 0 or 1.",
)
OPTIONS_SHARED: Final = RefusedPair(
    "`partition_options: 3`",
    "two subscriptions of one partition",
    "`partition_options: 2`",
    "is in partition '{values}', which has a subscription already ({other}), and partition_options 3 allows one",
)
FILTERED_ONE_WAY: Final = RefusedPair(
    _FILTERS,
    _ONE_WAY + ", in any article",
    "another resolver, or a publication of its own",
    "is '{resolver}', which this version does not support together with row filters: name another one, or publish the "
    "article without filters",
)
FILTERED_CUSTOM: Final = RefusedPair(
    _FILTERS,
    "`resolver: custom`, in any article",
    "another resolver, or a publication of its own",
    "is one of your own, which this version does not support together with row filters: name another one, or publish the "
    "article without filters",
)
FILTERED_LOGGING: Final = RefusedPair(
    _FILTERS,
    "`conflict_logging: subscriber`, `both`",
    "`conflict_logging: publisher`",
    "is {logging}, and the publication has row filters: the losing row of a conflict may lie outside of its subscriber's "
    "partition. Keep conflicts at the publisher",
)
FILTERED_SYNC_TYPE: Final = RefusedPair(
    _FILTERS,
    "`sync_type: none`",
    "`sync_type: automatic`",
    "is none, which this version does not support together with row filters: let `apply` copy the rows "
    "(`sync_type: automatic`)",
)
FILTERED_PARENT: Final = RefusedPair(
    "`joins`",
    "a parent with neither a `filter` nor a join",
    "a filter of the parent, or no join",
    "is '{parent}', which has neither a filter nor a join: all of its rows belong to every subscriber. Give it a filter, "
    "or take the join out",
)
FILTERED_DIRECTION: Final = RefusedPair(
    _FILTERS,
    "`sync --direction`",
    "`sync`",
    "Publication '{publication}' has row filters, and one direction alone is not supported together with them: a row that "
    "a subscriber writes outside of its partition has to leave it in the same session. Leave --direction out.",
)
FILTERED_DRY_RUN: Final = RefusedPair(
    _FILTERS,
    "`sync --dry-run`",
    "`mergerepl pending`",
    "Publication '{publication}' has row filters, and what a session would do with them cannot be shown without doing it. "
    "Run `mergerepl sync` without --dry-run.",
)
FILTERED_STAYING: Final = RefusedPair(
    _FILTERS,
    "`allow_partition_realignment: false`",
    "no `allow_partition_realignment`",
    "is false, which this version does not support: remove it (a row that leaves a partition is removed at its "
    "subscribers)",
)
CLIENT_PRIORITY: Final = RefusedPair(
    "`type: client`",
    "`priority`",
    "`type: server`, or no `priority`",
    "is {priority:g}; a client subscription has none of its own (its changes take the publisher's): remove it, or say "
    "`type: server`",
)

REFUSED: Final = tuple(value for value in globals().copy().values() if isinstance(value, RefusedPair))
"""All pairs, in the order in which they are shown."""
