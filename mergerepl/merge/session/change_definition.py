"""Another tracking, other columns, or other row filters of a publication whose publisher the caller holds.

What the users wrote before is captured under the old definition. The new one counts from the commit that enters it.
"""

from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.schema.columns import change_columns
from mergerepl.merge.schema.follow import change_tracking
from mergerepl.merge.session.capture_replica import capture_held
from mergerepl.merge.session.change_filters import change_filters
from mergerepl.model.progress import Progress
from mergerepl.publish.agent import ColumnsChange, DefinitionChange, TrackingChange
from mergerepl.publish.filters import FilterChange
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import own_priorities


def change_definition(
    replica: Replica,
    pubid: str,
    change: DefinitionChange,
    *,
    is_subscribed: bool,
    in_process: bool,
    progress: Progress,
) -> None:
    """Change what a publication states, after a capture if it has subscribers.

    Raises: as `capture_held`; nothing was changed.
    """
    if is_subscribed:
        capture_held(replica, pubid, progress=progress, in_process=in_process)
        replica = replica.reread()
    source = recording_jvm(embedded_spark, (replica,))
    if isinstance(change, FilterChange):
        change_filters(replica, pubid, change, spark_of=source, in_process=in_process, progress=progress)
        return
    recorder = Recorder(replica, own_priorities(replica), source, progress, in_process)
    match change:
        case TrackingChange(tablenick, by_column):
            change_tracking(recorder, tablenick, by_column=by_column, is_captured=is_subscribed)
        case ColumnsChange(tablenick, names, is_listed):
            change_columns(recorder, tablenick, names, is_listed=is_listed, is_captured=is_subscribed)
