"""Change Data Capture over a folder of Delta tables, with the names of SQL Server's procedures and functions.

`__init__.pyi` lists the public names; modules must not be named like them. They are loaded on first use: calls without
Spark do not start it.
"""

from typing import Any

from mergerepl.spark.callers import public_names

__all__, _load, __dir__ = public_names(__name__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from mergerepl.model.later import instead_of

        if (instead := instead_of("cdc", name)) is not None:
            from mergerepl.cdc.refusals import CdcUsageError

            raise CdcUsageError.later(name, instead)
    return _load(name)
