"""Stage foreign commits as transactions."""

from pathlib import Path

from mergerepl.compact.intent import Intent, Write
from mergerepl.compact.session import Session


def adopt_between(session: Session, folder: Path, intent: Intent, write: Write, version: int) -> Intent:
    """Return the intent with the foreign commits that landed between the look at a table and our commit to it."""
    return intent
