"""What a distribution agent asks of a subscriber's file system beside Delta tables: `batch-<guid>.json`.

This module loads no library.
"""

from pathlib import Path

from mergerepl.systables.transactional import FOLDER


def read_batch(root: Path, guid: str) -> str | None:
    """Return the text of the batch that is to be carried out, None if there is none."""
    try:
        return _file(root, guid).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def write_batch(root: Path, guid: str, text: str) -> None:
    """Decide: make the batch durable."""
    from mergerepl.store.changeset import write_durably

    write_durably(_file(root, guid), text)


def remove_batch(root: Path, guid: str) -> None:
    """Note that the batch is carried out, or given up."""
    _file(root, guid).unlink(missing_ok=True)


def _file(root: Path, guid: str) -> Path:
    return root / FOLDER / f"batch-{guid}.json"
