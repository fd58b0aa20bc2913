"""Change tracking in the rows of Delta tables, as SQL Server Compact has it. `__init__.pyi` lists the public names."""

from mergerepl.spark.callers import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
