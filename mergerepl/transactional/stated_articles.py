"""The articles that a file states, checked against their tables at the publisher and at subscribers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from mergerepl.delta.contract.problems import Code, TableContract
from mergerepl.delta.contract.rules import bad_keys_of
from mergerepl.delta.tables import TableState, head_version, is_delta_table, open_table
from mergerepl.delta.types import ddl_of
from mergerepl.filters.chosen_rows import static_clause
from mergerepl.filters.clause import ClauseError, text
from mergerepl.model.transactional import Article, Publication, Subscription
from mergerepl.store.location import Location
from mergerepl.systables.transactional import SubscriptionRow
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import KEYS, Method
from mergerepl.transactional.position import require_fenceable
from mergerepl.transactional.refusals import NO_KEY, TransactionalError, TransactionalUsageError
from mergerepl.transactional.row_rules import COMPUTED, misfits
from mergerepl.transactional.snapshot import is_ours

_NAMED_KEYS = 3


@dataclass(frozen=True)
class CheckedArticle:
    """An article of the file, checked against its table."""

    stated: Article
    state: TableState
    columns: tuple[str, ...]
    types: tuple[str, ...]
    filter_clause: str | None

    def row(self, publication_id: int, article_id: int, source_object_id: int, seqno: bytes) -> Shape:
        """Return the article's row."""
        return Shape(
            publication_id=publication_id,
            article_id=article_id,
            article=self.stated.name,
            source_object=self.stated.table,
            destination_object=self.stated.table,
            ins_cmd=self.stated.ins_cmd,
            upd_cmd=self.stated.upd_cmd,
            del_cmd=self.stated.del_cmd,
            filter_clause=self.filter_clause,
            key_columns=self.stated.key,
            columns=self.columns,
            types=self.types,
            text_columns=self.stated.text_columns,
            source_object_id=source_object_id,
            first_seqno=seqno,
            has_all_columns=self.stated.columns is None,
            singleton_key_updates=self.stated.singleton_key_updates,
        )


def checked_article(root: Location, stated: Article) -> CheckedArticle:
    """Check an article against its table.

    Raises: TransactionalError 14088.
    """
    folder = root / stated.table
    if not is_delta_table(folder):
        raise _unfit(stated, f"'{folder}' is no Delta table", "Check `table`.")
    state = open_table(folder)
    require_fenceable(state)
    types = {each["name"]: ddl_of(each["type"]) for each in state.fields}
    for name in (*stated.key, *(stated.columns or ()), *stated.text_columns):
        if name not in types:
            raise _unfit(stated, f"'{folder}' has no column '{name}'", "Check its name.")
    columns = stated.columns or tuple(
        name for name in types if name not in state.generated_columns and not name.lower().startswith("__sys")
    )
    for name in stated.key:
        if name not in columns:
            raise _unfit(stated, f"key column '{name}' is generated", "Name it in `columns`.")
    contract = TableContract(state, columns, stated.key)
    if bad := contract.find(Code.KEY_TYPE):
        raise _no_key(stated, f"column '{bad.column}' is {bad.detail.upper()}, which identifies no row")
    for name in stated.text_columns:
        if name in stated.key:
            why = f"`text_columns` names the key column '{name}', whose old value says which row is meant"
            raise _unfit(stated, why, "Leave it out of `text_columns`.")
        if name not in columns:
            why = f"`text_columns` names column '{name}', which is not sent"
            raise _unfit(stated, why, "Name it in `columns`, or leave it out of `text_columns`.")
    for name in columns:
        if name.lower().startswith("__sys"):
            raise _unfit(stated, f"column '{name}' belongs to change tracking", "Leave it out.")
    if bad := contract.find(Code.BACKTICK_PART, Code.COLLATED, Code.TYPE):
        raise TransactionalUsageError.later(
            f"Column '{bad.column}' of type {types[bad.column]} in article '{stated.name}'",
            "Leave it out: state `columns:`.",
        )
    return CheckedArticle(
        stated, state, tuple(columns), tuple(types[name] for name in columns), _clause(stated, types)
    )


_DEFAULTS = Article("", "", ())


def as_sent(publication: Publication, stated: Article) -> Article:
    """Return an article with the methods that it is sent by: VCALL for all operations where a subscriber writes.

    Raises: TransactionalUsageError if the file states another one.
    """
    if not publication.has_writers:
        return stated
    for name in KEYS.values():
        if getattr(stated, name) != getattr(_DEFAULTS, name):
            raise _no_writers(stated.name, f"`{name}: {getattr(stated, name)}`", f"Leave `{name}` out")
    method = str(Method.VCALL)
    return replace(stated, ins_cmd=method, upd_cmd=method, del_cmd=method)


def check_writers(publication: Publication, articles: Sequence[CheckedArticle]) -> None:
    """Check that subscribers may write: whole rows travel up, and come back as they are.

    Raises: TransactionalUsageError.
    """
    if not publication.has_writers:
        return
    for each in articles:
        name, stated = each.stated.name, each.stated
        if stated.filter is not None:
            raise _no_writers(name, "a `filter`", "Leave it out")
        if stated.columns is not None or stated.text_columns:
            key = "columns" if stated.columns is not None else "text_columns"
            raise _no_writers(name, f"`{key}`", "Leave it out")
        plain = {column.lower() for column in each.state.written_columns}
        for field in each.state.fields:
            if field["name"].lower() not in plain or any("identity" in key for key in field["metadata"]):
                raise _no_writers(
                    name, f"the column '{field['name']}', which Delta computes", "Make it a plain column"
                )
    for row in publication.subscriptions:
        if row.procedures:
            raise _no_writers(articles[0].stated.name, "procedures of your own", "Leave `procedures` out")
        if row.updatable == "queued" and not row.verify:
            raise TransactionalUsageError.later(
                f"`updatable: queued` with `verify: false` (subscriber '{row.subscriber}')",
                "Leave `verify` out: a row that differs would lose every edit.",
            )


def _no_writers(article: str, what: str, remedy: str) -> TransactionalUsageError:
    return TransactionalUsageError.later(
        f"`updatable: queued` for article '{article}' with {what}",
        f"{remedy}, or use merge replication (`type: merge`).",
    )


def changed_methods(wanted: CheckedArticle, row: Shape) -> dict[str, str]:
    """Return the command types in which the file differs from the published article: `upd_cmd` -> `XCALL audit`."""
    new = wanted.row(row.publication_id, row.article_id, row.source_object_id, row.first_seqno)
    return {name: getattr(new, name) for name in KEYS.values() if getattr(new, name) != getattr(row, name)}


def changed_key(wanted: CheckedArticle, row: Shape) -> str | None:
    """Return the first key of the file that differs from the published article, or None; methods may differ."""
    new = wanted.row(row.publication_id, row.article_id, row.source_object_id, row.first_seqno)
    same = ("text_columns", "singleton_key_updates")
    keys = {
        "source_object": "table",
        "key_columns": "key",
        "filter_clause": "filter",
        **dict(zip(same, same, strict=True)),
        "has_all_columns": "columns",
    }
    if not row.has_all_columns:
        keys["columns"] = "columns"
    return next((key for name, key in keys.items() if getattr(new, name) != getattr(row, name)), None)


def check_destinations(
    stated: Subscription, row: SubscriptionRow | None, wanted: Sequence[CheckedArticle]
) -> None:
    """Check that a new subscription meets the tables that it expects.

    Raises: TransactionalUsageError.
    """
    root = Location.of(stated.subscriber)
    for each in wanted:
        table = root / stated.destination.get(each.stated.name, each.stated.table)
        is_there = is_delta_table(table)
        if (
            stated.sync_type == "automatic"
            and is_there
            and not (row and is_ours(table, row.subscription_guid))
        ):
            raise TransactionalUsageError(
                f"'{table}' is there already, and subscriber '{root}' would get its rows from the publisher. Nothing "
                "was changed. Move the table away, or state `sync_type: none` if it has the publisher's rows.",
                subscriber=str(root),
                article=each.stated.name,
            )
        if stated.sync_type == "none":
            _check_columns(table, each)


def _check_columns(table: Location, wanted: CheckedArticle) -> None:
    if not is_delta_table(table):
        raise TransactionalUsageError(
            f"'{table}' is no Delta table, and `sync_type: none` says that the rows are there. Nothing was changed. "
            "Leave sync_type out: the table is copied then.",
            article=wanted.stated.name,
        )
    state = open_table(table)
    known = {each["name"] for each in state.fields}
    found = misfits(state, wanted.row(0, 0, 0, bytes(10)))
    for name, type_ in zip(wanted.columns, wanted.types, strict=True):
        # delta-rs tells names of another case apart.
        has = found.get(name) if name in known else ""
        if has is not None:
            shown = {"": "none of that name", COMPUTED: "one that Delta computes"}.get(has, has.upper())
            raise TransactionalUsageError(
                f"'{table}' has no plain column '{name}' of type {type_.upper()}, but {shown}. Nothing was changed. Make "
                "it an ordinary column there, or name the article's columns (`columns:`) without it.",
                article=wanted.stated.name,
            )
    # Generated columns that are not sent: a plain column would stay unfilled, and its old values would look like new ones.
    sent, written = {*wanted.columns}, {each.lower() for each in state.written_columns}
    for name in wanted.state.generated_columns:
        if name not in sent and name.lower() in written:
            raise TransactionalUsageError(
                f"'{table}' has a plain column '{name}', which is a generated column at the publisher and is not sent. "
                "Nothing was changed. Declare it as generated there, drop it there, or name it in the article's"
                " `columns:`.",
                article=wanted.stated.name,
            )


def _clause(stated: Article, types: dict[str, str]) -> str | None:
    """Return the filter with the columns' exact names and explicit casts.

    Raises: TransactionalError.
    """
    if stated.filter is None:
        return None
    try:
        return text(static_clause(stated.filter, types))
    except ClauseError as error:
        raise _unfit(stated, f"its filter {error}", "Correct `filter`.") from error


def check_key(spark_of: Callable[[], SparkSession], wanted: CheckedArticle) -> None:
    """Check that the key has neither NULLs nor duplicates.

    Raises: TransactionalError 14088.
    """
    key, path = wanted.stated.key, wanted.state.path
    found = bad_keys_of(spark_of, open_table(path, head_version(path)), key, most=_NAMED_KEYS)
    if found:
        shown = "; ".join(", ".join(each.values) for each in found)
        why = f"rows of '{wanted.state.path}' share ({', '.join(key)}) or have NULL there: {shown}"
        raise _no_key(wanted.stated, why)


def _unfit(stated: Article, why: str, remedy: str) -> TransactionalError:
    """14088: a table cannot be published."""
    text = f"Article '{stated.name}' cannot be published: {why}. Nothing was changed. {remedy}"
    return TransactionalError(NO_KEY, text, article=stated.name)


def _no_key(stated: Article, why: str) -> TransactionalError:
    why = f"a transactional article must have a primary key, and {why}"
    return _unfit(stated, why, "Name the columns that identify a row: `key: [order_id]`.")
