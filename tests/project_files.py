"""Project files of one document."""

import os

from mergerepl.config.project_file import load_documents
from mergerepl.model import transactional
from mergerepl.model.publication import Publication


def load(path: str | os.PathLike[str]) -> Publication:
    """Return the merge publication of a file."""
    (publication,) = load_documents(path)
    assert isinstance(publication, Publication)
    return publication


def load_feed(path: str | os.PathLike[str]) -> transactional.Publication:
    """Return the transactional publication of a file."""
    (publication,) = load_documents(path)
    assert isinstance(publication, transactional.Publication)
    return publication
