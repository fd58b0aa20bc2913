"""Let Delta analyse a session's MERGEs before anything is staged: a session that cannot merge would never finish."""

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mergerepl.delta.tables import TableState, analyse_merge
from mergerepl.errors import ApplyError
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.staged_rows import read_staged
from mergerepl.spark.errors import cause_of, engine_answers
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.location import Location


def refuse_unmergeable(
    spark: SparkSession,
    staged_rows: Location,
    work: ArticleWork,
    article: PublishedArticle,
    facts: TableState,
    *,
    action: str,
) -> None:
    """Analyse the MERGE of one article at one side.

    `staged_rows` is the folder of the article's RESOLVED rows (Parquet), `work` the side's work, which touches rows,
    and `facts` the table at this side. `action` names the side's action column.

    Raises: ApplyError with Delta's reason.
    """
    try:
        analyse_merge(
            spark,
            lambda session: read_staged(session, staged_rows),
            facts.path,
            article,
            action=action,
            actions=work.actions,
            bounds=work.bounds,
            generated_columns=facts.generated_columns,
        )
    except (PySparkException, Py4JJavaError) as error:
        if not engine_answers():
            raise
        raise ApplyError(
            f"Article '{article.name}': Delta cannot merge its changed rows into '{facts.path}': {cause_of(error)}. "
            "Nothing of this article was applied. Mend that table, or leave the column that this names out with "
            "`columns:`, then run again.",
            article=article.name,
            table=str(facts.path),
        ) from error
