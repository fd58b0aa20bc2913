"""What a session has agreed on before any row is looked at: its directions, its start and its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SessionTerms:
    """What classification and resolution need to know of a session, for all articles alike.

    `publisher_generations` maps the subscriber's generation numbers to those the publisher receives them under,
    `subscriber_generations` the other way round. `unpublished` is the side whose change the publisher does not get in this
    session, if there is one: a row merged with it keeps its priority.
    """

    upload: bool
    download: bool
    resolver_nickname: int
    client_subscription: bool
    publisher_generations: Mapping[int, int]
    subscriber_generations: Mapping[int, int]
    upload_start: int = 0
    download_start: int = 0
    unpublished: str | None = None
