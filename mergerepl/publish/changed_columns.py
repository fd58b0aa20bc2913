"""`columns` of published articles that change in the file: what is left out, what is published, and what is refused."""

from dataclasses import dataclass

from mergerepl.errors import PublicationError
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.model.publication import Article
from mergerepl.model.resolvers import resolver_info
from mergerepl.publish.agent import ColumnsChange
from mergerepl.publish.check_article import check_article, published_fields
from mergerepl.publish.filters import stored_filters
from mergerepl.publish.stored import Stored
from mergerepl.systables.catalog import ArticleRow


@dataclass(frozen=True)
class ChangedColumns:
    """An article whose published columns are others in the file.

    `names` are all that the file publishes, in table order. `is_listed`: the file lists them.
    """

    row: ArticleRow
    names: tuple[str, ...]
    is_listed: bool
    left: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def change(self) -> ColumnsChange:
        """The change, as the agent makes it."""
        return ColumnsChange(self.row.nickname, self.names, self.is_listed)

    @property
    def detail(self) -> str:
        """The change in words."""
        parts = [f"leaves {', '.join(self.left)} out"] if self.left else []
        parts += [f"publishes {', '.join(self.added)}"] if self.added else []
        return " and ".join(parts) or ("lists the columns" if self.is_listed else "publishes all columns")


def changed_columns(article: Article, row: ArticleRow, stored: Stored) -> ChangedColumns | None:
    """Return how the columns of an article are others in the file; None if they are not.

    Raises: PublicationError for a change that cannot be made; CaptureError, StoreError if its table cannot be read.
    """
    definition = stored.definition(row)
    before = [field.name for field in definition.fields]
    is_listed, was_listed = article.columns is not None, row.is_vertical(definition)
    # An `apply` that died may have left other columns than those that count.
    if is_listed == was_listed and list(row.published_columns) == before:
        wanted = before if article.columns is None else {*article.columns, *article.identity}
        if {*wanted} == {*before}:
            return None
    table = stored.table(stored.publisher, row)
    names = tuple(field["name"] for field in published_fields(article, table))
    left = tuple(name for name in before if name not in names)
    added = tuple(name for name in names if name not in before)
    lost = next((name for name in before if table.field(name) is None), None)
    if lost is not None:
        raise PublicationError(
            f"Article '{article.name}': `columns` changes in the file, and column '{lost}' was dropped or renamed in table "
            f"'{table.path}'. Put `columns` back and run `mergerepl sync`, which follows the table; then change them.",
            article=article.name,
            table=str(table.path),
        )
    _refuse_named(article, row, left, stored_filters(stored.row) if stored.row is not None else NO_FILTERS)
    check_article(article, table)
    return ChangedColumns(row, names, is_listed, left, added)


def _refuse_named(
    article: Article, row: ArticleRow, left: tuple[str, ...], filters: PublicationFilters
) -> None:
    """Check that nothing that an article states needs a column that is left out.

    Raises: PublicationError.
    """
    resolvers = {*article.resolver_info.columns, *resolver_info(row.resolver_info).columns}
    reasons = {
        **dict.fromkeys(filters.columns_used(row.name), "a row filter or a join reads it"),
        **dict.fromkeys(resolvers, "its resolver reads it"),
        **dict.fromkeys(row.generated_columns, "Delta computes it at each replica"),
    }
    computing = "column '{}' is generated, and may be computed from it"
    if row.generated_columns:
        reasons = {**dict.fromkeys(left, computing.format(next(iter(row.generated_columns)))), **reasons}
    named = next((name for name in left if name in reasons), None)
    if named is not None:
        raise PublicationError(
            f"Article '{article.name}': `columns` leaves '{named}' out, which is published, and {reasons[named]}. Put it "
            "back.",
            article=article.name,
        )
