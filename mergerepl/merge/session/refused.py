"""Articles that a session leaves out, so that the others can go on."""

from collections.abc import Mapping

from mergerepl.errors import (
    ApplyError,
    CaptureError,
    ConflictError,
    MergeReplError,
    RefusedArticlesError,
    SchemaMismatchError,
    StoreError,
    Transient,
)

Refused = dict[int, MergeReplError]
"""Tablenick -> why the article cannot go on."""

ARTICLE_ERRORS = (ApplyError, CaptureError, ConflictError, SchemaMismatchError, StoreError)
"""Errors about one article; any other error is about the session."""


def raised_if_transient(error: MergeReplError) -> MergeReplError:
    """Return an error about the article; raise a transient one, which a second run may not meet."""
    if isinstance(error, Transient):
        raise error
    return error


def refuse(refused: Refused, nickname: int, error: MergeReplError) -> None:
    """Note why an article cannot go on; the first reason counts.

    Raises: the error itself if it is transient.
    """
    refused.setdefault(nickname, raised_if_transient(error))


def refusal(refused: Mapping[int, MergeReplError], names: Mapping[int, str]) -> MergeReplError:
    """Return one error that says why these articles cannot go on; `names` are the articles' by tablenick."""
    if len(refused) == 1:
        return next(iter(refused.values()))
    return RefusedArticlesError([names[nickname] for nickname in refused], list(refused.values()))
