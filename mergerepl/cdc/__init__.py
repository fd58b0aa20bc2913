"""Change Data Capture over a folder of Delta tables. `__init__.pyi` lists the public names; `tsql` has SQL Server's.

Modules must not be named like them. They are loaded on first use: calls without Spark do not start it.
"""

from mergerepl.spark.callers import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
