"""Transactional replication: one-way publication of Delta tables, by commands, with the original's propagation methods.

Public names are loaded on first use: calls without Spark start none. No module of the package has a public name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergerepl.model.transactional import (
        DistributionResult,
        LogReaderResult,
        SkippedTransaction,
        TransactionalArticle,
        TransactionalPublication,
        TransactionalSubscription,
    )
    from mergerepl.transactional.agents import distribute
    from mergerepl.transactional.checks import warnings_of
    from mergerepl.transactional.cleaning import cleanup
    from mergerepl.transactional.log_reader import logreader, resume
    from mergerepl.transactional.monitoring import errors, history, pending, status
    from mergerepl.transactional.operations import browse, read, reinit, script, shown
    from mergerepl.transactional.procedures import Call, net, procedure
    from mergerepl.transactional.publish import apply_transactional
    from mergerepl.transactional.refusals import (
        LogReaderBusyError,
        TransactionalError,
        TransactionalUsageError,
    )
    from mergerepl.transactional.repairing import repair
    from mergerepl.transactional.skipping import skip
    from mergerepl.transactional.validation import validate

_MODEL = (
    "DistributionResult",
    "LogReaderResult",
    "SkippedTransaction",
    "TransactionalArticle",
    "TransactionalPublication",
    "TransactionalSubscription",
)
_ERRORS = ("LogReaderBusyError", "TransactionalError", "TransactionalUsageError")

__all__ = [
    "Call",
    "DistributionResult",
    "LogReaderBusyError",
    "LogReaderResult",
    "SkippedTransaction",
    "TransactionalArticle",
    "TransactionalError",
    "TransactionalPublication",
    "TransactionalSubscription",
    "TransactionalUsageError",
    "apply_transactional",
    "browse",
    "cleanup",
    "distribute",
    "errors",
    "history",
    "logreader",
    "net",
    "pending",
    "procedure",
    "read",
    "reinit",
    "repair",
    "resume",
    "script",
    "shown",
    "skip",
    "status",
    "validate",
    "warnings_of",
]

_HOMES = {
    **dict.fromkeys(_MODEL, "mergerepl.model.transactional"),
    **dict.fromkeys(_ERRORS, "mergerepl.transactional.refusals"),
    **dict.fromkeys(("logreader", "resume"), "mergerepl.transactional.log_reader"),
    "cleanup": "mergerepl.transactional.cleaning",
    "warnings_of": "mergerepl.transactional.checks",
    "distribute": "mergerepl.transactional.agents",
    "skip": "mergerepl.transactional.skipping",
    **dict.fromkeys(("errors", "history", "pending", "status"), "mergerepl.transactional.monitoring"),
    "repair": "mergerepl.transactional.repairing",
    "validate": "mergerepl.transactional.validation",
    **dict.fromkeys(("Call", "net", "procedure"), "mergerepl.transactional.procedures"),
    "apply_transactional": "mergerepl.transactional.publish",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module. No function changes the caller's active session."""
    if name not in __all__:
        raise AttributeError(f"module 'mergerepl.transactional' has no attribute '{name}'")
    from mergerepl.spark.callers import public

    return public(_HOMES.get(name, "mergerepl.transactional.operations"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
