"""The types of documents and products; help and completion load them without the rows of the tasks."""

MERGE, TRANSACTIONAL, CDC, TRACKING = TYPES = ("merge", "transactional", "cdc", "tracking")
"""In the order of lists."""
