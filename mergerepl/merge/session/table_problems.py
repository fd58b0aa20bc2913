"""Problems of an article's table as it is now, for `status`: the next session refuses or must bridge them."""

from mergerepl.delta.contract.problems import write_problem
from mergerepl.delta.feed.window import FeedWindow
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from triggers.errors import another_column
from triggers.schema_checks import ADDED, LOST, TAKES_NULL, WIDER, replaced_column, schema_problem


def table_problems(article: PublishedArticle, window: FeedWindow) -> list[str]:
    """Return sentences on changed columns, a feed that is off, and why the table takes no rows."""
    try:
        table = window.table
    except StoreError as error:
        return [error.message]
    found = []
    # Reading an older version opens the whole log again; a table without new commits is unchanged.
    before = None if table.version == window.position.version else window.before
    problem = schema_problem(article, table.metadata, before)
    if problem is not None:
        what = "This schema change does not travel; until it is undone, no session captures this table."
        if problem.endswith(ADDED):
            what = "At the publisher it travels with the next sync. At a subscriber it stays there."
        if problem.endswith(TAKES_NULL):
            what = "At the publisher it travels with the next sync. At a subscriber, set NOT NULL again."
        if problem.endswith(WIDER):
            what = (
                "At the publisher it travels with the next sync, unless a key, a filter or the resolver names it. At a "
                "subscriber, no session captures this table until the publisher's column has that type, too, or it is "
                "taken back."
            )
        if problem.endswith(LOST):
            what = (
                "At the publisher it travels with the next sync, unless a key, a filter or the resolver names it. At a "
                "subscriber, no session captures this table until it is undone."
            )
        found.append(f"Article '{article.name}': {problem} in '{table.path}'. {what}")
    replaced = None if problem is not None else replaced_column(article, window)
    if replaced is not None:
        what = another_column(replaced[0], replaced[1].version, replaced[1].operation)
        found.append(
            f"Article '{article.name}': {what} Until table '{table.path}' is restored, no session captures it."
        )
    if not table.metadata.change_data_feed:
        found.append(
            f"Article '{article.name}': Change Data Feed is switched off in '{table.path}'. Run `mergerepl apply` to "
            "switch it on again; what changes until then is found by comparing whole versions."
        )
    refused = write_problem(table, takes_away=True)
    if refused is not None:
        what, remedy = refused
        found.append(
            f"Article '{article.name}': {what}. Until that is undone, no session brings it "
            f"{'updates and deletes' if table.is_append_only else 'changes'}. {remedy}"
        )
    return found
