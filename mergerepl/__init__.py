"""Merge replication for Delta Lake tables.

Public names are loaded on first use, so that `import mergerepl` and the CLI's `--help` load neither Spark nor Delta.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergerepl.api import (
        Project,
        capture,
        conflict_count,
        conflict_records,
        conflict_report,
        conflict_summary,
        conflicts,
        export_conflicts,
        history,
        load,
        lock,
        pending,
        purge_conflicts,
        resolve_conflicts,
        retry_failed,
        row,
        status,
        sync,
        tune,
        validate,
    )
    from mergerepl.compact.change_tracking import ChangeTracking
    from mergerepl.errors import MergeReplError
    from mergerepl.merge.resolvers.functions import ResolverContext, register_resolver
    from mergerepl.model.conflicts import ConflictFilter
    from mergerepl.model.publication import Article, Join, Publication, Subscription
    from mergerepl.model.results import ApplyResult, SessionResult, SyncResult

__all__ = [
    "ApplyResult",
    "Article",
    "ChangeTracking",
    "ConflictFilter",
    "Join",
    "MergeReplError",
    "Project",
    "Publication",
    "ResolverContext",
    "SessionResult",
    "Subscription",
    "SyncResult",
    "capture",
    "conflict_count",
    "conflict_records",
    "conflict_report",
    "conflict_summary",
    "conflicts",
    "export_conflicts",
    "history",
    "load",
    "lock",
    "pending",
    "purge_conflicts",
    "register_resolver",
    "resolve_conflicts",
    "retry_failed",
    "row",
    "status",
    "sync",
    "tune",
    "validate",
]

_HOMES = {
    "ChangeTracking": "mergerepl.compact.change_tracking",
    "ConflictFilter": "mergerepl.model.conflicts",
    "MergeReplError": "mergerepl.errors",
    **dict.fromkeys(("ResolverContext", "register_resolver"), "mergerepl.merge.resolvers.functions"),
    **dict.fromkeys(("Article", "Join", "Publication", "Subscription"), "mergerepl.model.publication"),
    **dict.fromkeys(("ApplyResult", "SessionResult", "SyncResult"), "mergerepl.model.results"),
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module. No function changes the caller's active session."""
    if name not in __all__:
        raise AttributeError(f"module 'mergerepl' has no attribute '{name}'")
    from mergerepl.spark.callers import public

    return public(_HOMES.get(name, "mergerepl.api"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
