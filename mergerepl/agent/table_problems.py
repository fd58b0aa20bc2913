"""What is wrong with an article's table as it is now, for `status`: what the next session refuses or must bridge."""

from mergerepl.agent.feed_window import schema_problem
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.publish.check_article import write_problem
from mergerepl.store.captured_table import metadata_when_captured
from mergerepl.store.replica import Replica


def table_problems(replica: Replica, article: PublishedArticle) -> list[str]:
    """Return sentences on changed columns, a feed that is off and what keeps rows out of the table, told from its log."""
    table = replica.table(article)
    try:
        facts = open_table(table)
    except StoreError as error:
        return [error.message]
    found = []
    info = replica.info()
    # To look back opens the whole log once more; a table that nobody wrote to is as it was.
    is_as_captured = info.captured.get(article.nickname) == facts.version
    before = None if is_as_captured else metadata_when_captured(replica, article, info)
    problem = schema_problem(article, facts.metadata, before)
    if problem is not None:
        found.append(
            f"Article '{article.name}': {problem} in '{table}'. Schema changes do not travel in this version; "
            "until it is undone, no session captures this table."
        )
    if not facts.metadata.change_data_feed:
        found.append(
            f"Article '{article.name}': Change Data Feed is switched off in '{table}'. Run `mergerepl apply` to "
            "switch it on again; what changes until then is found by comparing whole versions."
        )
    refused = write_problem(facts, takes_away=True)
    if refused is not None:
        what, remedy = refused
        found.append(f"Article '{article.name}': {what}. As it is, no session brings it changes. {remedy}")
    return found
