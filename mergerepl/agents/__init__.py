"""The agent: one process that runs the jobs of databases, as SQL Server Agent does (cdc.md 9)."""
