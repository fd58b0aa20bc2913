"""Functions that the specification names and this version lacks: each is refused with the way out."""

from typing import Any, NoReturn

from mergerepl.cdc.refusals import CdcUsageError


def register_functions(*_: Any, **__: Any) -> NoReturn:
    """Refuse: SQL table functions are not supported yet."""
    raise CdcUsageError.later(
        "register_functions", "Call get_all_changes or get_net_changes, and make a view of the result."
    )


def register_source(*_: Any, **__: Any) -> NoReturn:
    """Refuse: the streaming source is not supported yet."""
    raise CdcUsageError.later(
        "register_source", "Read windows with get_all_changes, or keep a table with apply_changes."
    )


def generate_wrapper_function(*_: Any, **__: Any) -> NoReturn:
    """Refuse: wrapper functions are not supported yet."""
    raise CdcUsageError.later(
        "generate_wrapper_function", "Call map_time_to_lsn for both times, then get_all_changes."
    )
