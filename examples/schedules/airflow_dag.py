"""Airflow: sync sales every five minutes; a transient failure (exit code 3) is tried again, any other one is not."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException


@dag(schedule="*/5 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def sync_sales() -> None:
    """Exchange changes with all subscribers."""

    @task(retries=3, retry_delay=timedelta(minutes=1), execution_timeout=timedelta(hours=1))
    def sync() -> None:
        """Run one round. The worker's process imports what it needs: a DAG file is read every few seconds."""
        import mergerepl
        from mergerepl.errors import MergeReplError, Transient

        try:
            result = mergerepl.Project.load("/srv/sales/mergerepl.yml").sync()
        except MergeReplError as error:
            raise error if isinstance(error, Transient) else AirflowFailException(str(error)) from error
        failed = [each for each in result.sessions if each.error is not None]
        if not result.ok:
            lasting = [each for each in failed if not each.error["transient"]]
            kind = AirflowFailException if lasting or not failed else RuntimeError
            raise kind("; ".join(f"{each.subscriber}: {each.error['message']}" for each in failed))

    sync()


sync_sales()
