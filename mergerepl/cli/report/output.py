"""What the command line says, in one of two forms: text for people, JSON for programs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from mergerepl.errors import MergeReplError
from mergerepl.model.results import (
    ApplyResult,
    ArticleValidation,
    CaptureResult,
    ConflictRecord,
    PendingSubscription,
    ReplicaStatus,
    RowInfo,
    SessionRecord,
    SyncResult,
)

if TYPE_CHECKING:
    from mergerepl.cli.report.table import Table
    from mergerepl.monitoring.doctor import Check


class Output(ABC):
    """One method for each thing a command reports. Results go to `out`; what failed, for people, to standard error."""

    is_for_programs: ClassVar[bool] = False
    """Whether a program reads it: no progress is drawn, and results contain the errors of their parts."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    @abstractmethod
    def applied(self, result: ApplyResult) -> None:
        """Report what `apply` did, or would do."""

    @abstractmethod
    def synced(self, result: SyncResult) -> None:
        """Report the sessions of one `sync`."""

    @abstractmethod
    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Report one round of `sync --interval` on one line; `time` is when it ended."""

    @abstractmethod
    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Report on one line a round that failed and is tried again; `time` is when it ended."""

    @abstractmethod
    def captured(self, result: CaptureResult) -> None:
        """Report what `capture` found."""

    @abstractmethod
    def status(self, status: ReplicaStatus) -> None:
        """Report a replica's state."""

    @abstractmethod
    def pending(self, replica: str, subscriptions: Sequence[PendingSubscription]) -> None:
        """Report the changes that wait to travel."""

    @abstractmethod
    def history(
        self, replica: str, sessions: Sequence[SessionRecord], *, subscriber: str | None = None
    ) -> None:
        """Report past sessions, newest first; of all subscribers or of one."""

    @abstractmethod
    def conflict_list(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Report conflicts, one line each: the newest of `total`."""

    @abstractmethod
    def conflict_rows(self, replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> None:
        """Report conflicts, the newest of `total`, with the losing row beside the winning row."""

    @abstractmethod
    def row(self, row: RowInfo) -> None:
        """Report one row's lineage and colv at every replica."""

    @abstractmethod
    def validated(self, validations: Mapping[str, Sequence[ArticleValidation]]) -> None:
        """Report how the articles of each subscriber compare with the publisher's."""

    @abstractmethod
    def checked(self, checks: Sequence["Check"]) -> None:
        """Report what `doctor` looked at."""

    @abstractmethod
    def reported(self, value: object, parts: Sequence["Table | str"]) -> None:
        """Report a value as JSON, or as the tables and sentences that show it."""

    @abstractmethod
    def noted(self, value: object, text: str) -> None:
        """Report something that a running agent did, on one line."""

    @abstractmethod
    def said(self, item: Any) -> None:
        """Pass on a line or a rich renderable of `demo`."""


def open_output(out: TextIO, *, as_json: bool) -> Output:
    """Return the output that writes to `out`; each form's libraries are loaded only if it is chosen."""
    if as_json:
        from mergerepl.cli.report.json import JsonOutput

        return JsonOutput(out)
    from mergerepl.cli.report.text import TextOutput

    return TextOutput(out)
