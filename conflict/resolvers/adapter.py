"""Built-in rules as one resolver: their Columns become the answer to all conflicts of a session, in its one plan."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark.sql.types import DataType

from conflict.detect import NAME, PUBLISHER_CHANGED, SIDES, SUBSCRIBER_CHANGED, is_conflict
from conflict.resolvers import custom, priority
from conflict.resolvers.base import Decide, Made, Rule, Rules, Values
from mergerepl.changes import (
    ARTICLE,
    DELETED,
    MADE,
    NOTE,
    PUBLISHER,
    PUBLISHER_WINS,
    RESOLVER,
    SUBSCRIBER,
    TABLENICK,
    UPDATE_DELETE,
    ancestor_column,
    made_column,
    values_column,
)
from mergerepl.frames import Column, DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, resolver_info
from mergerepl.model.session_terms import ArticleTerms
from mergerepl.rows.images import image_type, same_value

IS_MADE, VALUE = "made", "value"
"""Fields of a made column's struct."""


def one_deleted() -> Column:
    """True if exactly one side deleted the row."""
    return F.col(f"{PUBLISHER}.{DELETED}") != F.col(f"{SUBSCRIBER}.{DELETED}")


@dataclass(frozen=True)
class _Article:
    """An article whose rule reads values, with its columns in a frame of all articles."""

    article: PublishedArticle
    terms: ArticleTerms
    rule: Rule
    detected: DataFrame

    @property
    def is_of_it(self) -> Column:
        return F.col(TABLENICK) == self.terms.tablenick

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns that the rule is given: name -> image field."""
        field_of = dict(zip(self.article.columns, self.article.fields, strict=True))
        return {name: field_of[name] for name in resolver_info(self.article.resolver_info).columns}

    def values(self, column: str) -> Values:
        """Return both sides' values of a column."""
        name, field = values_column(self.terms.tablenick), self.columns[column]
        publisher, subscriber = (F.col(f"{side}.{name}.{field}") for side in (PUBLISHER, SUBSCRIBER))
        data_type = image_type(self.detected, f"{PUBLISHER}.{name}")[field].dataType
        base, is_base_known = F.lit(None).cast(data_type), F.lit(False)
        if (ancestor := ancestor_column(self.terms.tablenick)) in image_type(self.detected, SUBSCRIBER).names:
            found = F.col(f"{SUBSCRIBER}.{ancestor}")
            base, is_base_known = found[field], F.coalesce(~found[DELETED], F.lit(False))
        return Values(
            publisher,
            subscriber,
            base=base,
            is_base_known=is_base_known,
            data_type=data_type,
            info=resolver_info(self.article.resolver_info),
        )

    def made(self, column: str) -> Made:
        """Return the rule's value of a column: only if both sides changed it, in rows that are live at both."""
        assert self.rule.make is not None
        made = self.rule.make(self.values(column))

        def by_both(side: Column) -> Column:
            return (side[NAME] == column) & side[PUBLISHER_CHANGED] & side[SUBSCRIBER_CHANGED]

        is_asked = self.is_of_it & is_conflict() & ~one_deleted() & F.exists(SIDES, by_both)
        is_made = F.coalesce(is_asked & made.is_made, F.lit(False))
        note = F.concat(F.lit(f"{column}: "), made.note)
        return Made(F.when(is_made, made.value), is_made, F.when(is_asked, note))


def by_rules(articles: Sequence[tuple[PublishedArticle, ArticleTerms]], rules: Rules) -> Decide:
    """Return the resolver that decides each conflict by the rule that its article's terms name."""

    def decide(detected: DataFrame) -> DataFrame:
        reading = [
            _Article(article, terms, rules[terms.resolver], detected)
            for article, terms in articles
            if rules[terms.resolver].resolver.reads is not None
        ]
        answered = [article for article, terms in articles if terms.resolver == CUSTOM]
        making = [each for each in reading if each.terms.made_columns]
        by_value = [each for each in reading if not each.terms.made_columns]
        names = {terms.resolver for _, terms in articles}, {terms.update_delete for _, terms in articles}
        of_updates = _by_role(names[0], RESOLVER, rules)
        of_updates += [
            (each.is_of_it, each.rule.publisher_wins(each.values(column)))
            for each in by_value
            for column in each.columns
        ]
        of_deletes = _by_role(names[1], UPDATE_DELETE, rules)
        wins = _first_of(of_updates)
        decided_by = F.col(f"{ARTICLE}.{RESOLVER}")
        if names[0] != names[1] or of_deletes:
            wins = F.when(one_deleted(), _first_of(of_deletes)).otherwise(wins)
            decided_by = F.when(one_deleted(), F.col(f"{ARTICLE}.{UPDATE_DELETE}")).otherwise(decided_by)
        if answered:
            decided_by = F.coalesce(F.col(f"{custom.ANSWER}.{custom.NAME_OF}"), decided_by)
        answer = {
            PUBLISHER_WINS: F.when(is_conflict(), wins),
            RESOLVER: F.when(is_conflict(), decided_by),
            NOTE: F.lit(None).cast("string"),
        }
        if making or answered:
            answer |= _made(making, answered, detected)
        return detected.withColumns(answer)

    return decide


def _by_role(names: Collection[str], field: str, rules: Rules) -> list[tuple[Column, Column]]:
    """Return the winners by rules without values. The default rule decides all other rows."""
    wins = {
        name: rules[name].publisher_wins(None) if name in rules else priority.OF_DELETES[name]()
        for name in sorted(names)
        if name not in rules or _is_by_role(rules[name])
    }
    return [(F.col(f"{ARTICLE}.{field}") == name, each) for name, each in wins.items()]


def _is_by_role(rule: Rule) -> bool:
    return rule.resolver.reads is None and rule.publisher_wins is not priority.by_default


def _first_of(cases: Iterable[tuple[Column, Column]]) -> Column:
    nobody = F.lit(None).cast("boolean")
    chosen = reduce(lambda others, case: F.when(case[0], case[1]).otherwise(others), cases, nobody)
    return F.coalesce(chosen, priority.publisher_wins())


def _made(
    making: Sequence[_Article], answered: Sequence[PublishedArticle], detected: DataFrame
) -> dict[str, Column]:
    """Return the values that rules make: the made column of each article, `made` and `note`.

    For `answered` articles, the made columns already have the rows that are answers.
    """
    columns: dict[str, Column] = {}
    entries, notes = [], []
    for article in answered:
        made_name, given = made_column(article.nickname), values_column(article.nickname)
        image = image_type(detected, f"{PUBLISHER}.{given}")
        is_row = (F.col(TABLENICK) == article.nickname) & custom.is_row()
        for column, field in zip(article.columns, article.fields, strict=True):
            if column in article.value_columns:
                had = [F.col(f"{side}.{given}.{field}") for side in (PUBLISHER, SUBSCRIBER)]
                value = F.col(f"{made_name}.{field}.{VALUE}")
                entries.append((is_row, _entry(column, value, had, image[field].dataType)))
    if answered:
        notes.append(custom.note())
    for each in making:
        fields = []
        for name in each.terms.made_columns:
            made, values = each.made(name), each.values(name)
            fields.append(
                F.struct(made.is_made.alias(IS_MADE), made.value.alias(VALUE)).alias(each.columns[name])
            )
            entry = _entry(name, made.value, [values.publisher, values.subscriber], values.data_type)
            entries.append((each.is_of_it & made.is_made, entry))
            notes.append(made.note)
        columns[made_column(each.terms.tablenick)] = F.struct(*fields)
    present = F.array_compact(F.array(*(F.when(is_made, entry) for is_made, entry in entries)))
    note = F.concat_ws("; ", *notes)
    return columns | {MADE: F.map_from_entries(present), NOTE: F.when(note != "", note)}


def _entry(column: str, made: Column, had: Sequence[Column], data_type: DataType) -> Column:
    """Return an entry of `made`: whether a column's made value differs from the publisher's and the subscriber's."""
    differs = (
        (~same_value(made, value, data_type)).alias(side)
        for side, value in zip((PUBLISHER, SUBSCRIBER), had, strict=True)
    )
    return F.struct(F.lit(column).alias("key"), F.struct(*differs).alias("value"))
