"""The keys of a file with `type: transactional`, and the rules of their values."""

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from mergerepl.config.schema import Columns, Keys, Name, Table
from mergerepl.config.wording import shown
from mergerepl.model.later import instead_of
from mergerepl.model.transactional import DEFAULT_MAX_RETENTION, DEFAULT_MIN_RETENTION, MOST_STREAMS
from mergerepl.transactional.call_syntax import CommandType, Operation

LONGEST_RETENTION_HOURS = 24 * 365

_HOURS = re.compile(r"(\d{1,6})\s*(hour|day)s?", re.IGNORECASE)


def _hours(stated: object) -> timedelta:
    found = _HOURS.fullmatch(stated.strip()) if isinstance(stated, str) else None
    if found is None:
        raise ValueError(f"is {shown(stated)}; write it as `72 hours` or `3 days`")
    hours = int(found[1]) * (24 if found[2].lower() == "day" else 1)
    if hours > LONGEST_RETENTION_HOURS:
        raise ValueError(f"is {shown(stated)}; the longest is {LONGEST_RETENTION_HOURS} hours")
    return timedelta(hours=hours)


def _command(operation: Operation) -> Any:
    def check(text: str) -> str:
        return CommandType.parse(text, operation).text

    return AfterValidator(check)


def _skip(numbers: list[int]) -> list[int]:
    wrong = [number for number in numbers if number not in (20598, 2627, 2601)]
    if wrong:
        instead = instead_of("transactional", "skip_errors", wrong[0])
        raise ValueError(
            f"holds {wrong[0]}; it may hold 20598, 2627 and 2601" + (f". {instead[:-1]}" if instead else "")
        )
    return numbers


class TransactionalArticleKeys(Keys):
    """One item of `articles`."""

    name: Name
    table: Table | None = None
    key: Columns
    columns: Columns | None = None
    filter: str | None = Field(default=None, min_length=1)
    ins_cmd: Annotated[str, _command(Operation.INSERT)] = "CALL"
    upd_cmd: Annotated[str, _command(Operation.UPDATE)] = "SCALL"
    del_cmd: Annotated[str, _command(Operation.DELETE)] = "CALL"
    text_columns: Columns | None = None
    singleton_key_updates: bool = True


class TransactionalSubscriptionKeys(Keys):
    """One item of `subscriptions`."""

    subscriber: str
    sync_type: Literal["automatic", "none"] = "automatic"
    verify: bool = True
    skip_errors: Annotated[list[int], AfterValidator(_skip)] = Field(default_factory=list)
    subscription_streams: int = Field(default=1, ge=1, le=MOST_STREAMS)
    destination: dict[str, Table] = Field(default_factory=dict)


class RetentionKeys(Keys):
    """`distribution_retention`."""

    min: Annotated[timedelta, BeforeValidator(_hours)] = DEFAULT_MIN_RETENTION
    max: Annotated[timedelta, BeforeValidator(_hours)] = DEFAULT_MAX_RETENTION


class TransactionalKeys(Keys):
    """The whole file."""

    publication: Name
    type: Literal["transactional"]
    publisher: str
    distribution_retention: RetentionKeys = RetentionKeys()
    articles: list[TransactionalArticleKeys]
    subscriptions: list[TransactionalSubscriptionKeys] = Field(default_factory=list)


MODELS: dict[str, type[BaseModel]] = {
    "": TransactionalKeys,
    "articles": TransactionalArticleKeys,
    "subscriptions": TransactionalSubscriptionKeys,
    "distribution_retention": RetentionKeys,
}
"""The model of each place of the file, for messages."""
