"""The redo log of an engine: a plan is durable before its first step, and is always carried out.

    stage(plan)    written whole or not at all: from here on the plan is carried out, by this process or a later one
    the steps      each once: its Delta transaction or commit mark, in the table's own log, proves that it was taken
    finish()       the plan goes; `pending` finds nothing any more

Plans are dataclasses. They hold decisions and facts of logs, never rows: those are staged beside the plan. pydantic writes
and reads them. It is loaded only when there is a plan: commands that only look at `is_pending` start without it.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mergerepl.errors import StoreError
from mergerepl.failpoints import failpoint
from mergerepl.store.location import Location
from mergerepl.store.storage import storage

if TYPE_CHECKING:
    from pydantic import TypeAdapter

P = TypeVar("P")

FORMAT = 1
"""The format of stored plans. One of another format is refused, never guessed at."""


@dataclass(frozen=True)
class RedoLog(Generic[P]):
    """The plan of one piece of work, in the file `<name>.json` of a folder.

    Staging passes the failpoints `<engine>.before_<name>` and `<engine>.after_<name>`, with the name up to its first dash.
    `otherwise` ends the error about a damaged plan: the way on without a copy of the file.
    """

    folder: Path
    plan_type: type[P]
    engine: str
    name: str = "plan"
    otherwise: str = ""

    @property
    def file(self) -> Location:
        """The file of the plan."""
        return Location.of(self.folder) / f"{self.name}.json"

    @property
    def is_pending(self) -> bool:
        """True if there is a plan that has to be carried out."""
        return storage(self.file).exists(self.file)

    def stage(self, plan: P, *, under: AbstractContextManager[object] | None = None) -> None:
        """Make a plan durable, in place of an earlier one. `under` is a lock to hold while it is written."""
        noun = self.name.partition("-")[0]
        failpoint(f"{self.engine}.before_{noun}")
        with under or nullcontext():
            storage(self.file).put(self.file, self._adapter.dump_json(_Stored(FORMAT, plan), indent=1))
        failpoint(f"{self.engine}.after_{noun}")

    def pending(self) -> P | None:
        """Return the plan that has to be carried out, None if there is none.

        Raises: StoreError if it is damaged or has another format.
        """
        text = storage(self.file).read(self.file)
        if text is None:
            return None
        try:
            return self._adapter.validate_json(text).plan
        except ValueError as error:
            if (found := _format_of(text)) not in (None, FORMAT):
                raise StoreError(
                    f"'{self.file}' has the format {found}; this mergerepl reads {FORMAT}. Nothing was changed. Finish "
                    "its work with the mergerepl that wrote it.",
                    path=str(self.file),
                ) from error
            raise self._damaged(_first_problem(error)) from error

    def finish(self) -> None:
        """Remove the plan: all its steps were taken, or it is given up."""
        storage(self.file).delete(self.file)

    def drop_folder(self) -> None:
        """Remove the folder with all that is staged. The plan goes first: half a folder is not taken for a staged one."""
        self.finish()
        storage(self.file).delete_tree(self.file.parent)

    @property
    def _adapter(self) -> "TypeAdapter[_Stored[P]]":
        plan_type: Any = self.plan_type
        return _adapter_of(plan_type)

    def _damaged(self, why: str) -> StoreError:
        advice = f"Nothing was changed. Restore the file from a copy. {self.otherwise}".strip()
        return StoreError(f"'{self.file}' is damaged ({why}). {advice}", path=str(self.file))


@dataclass(frozen=True)
class _Stored(Generic[P]):
    format: int
    plan: P

    # It holds for the dataclasses inside as well.
    __pydantic_config__: ClassVar = {"extra": "forbid", "ser_json_bytes": "hex", "val_json_bytes": "hex"}


@cache
def _adapter_of(plan_type: Any) -> "TypeAdapter[_Stored[Any]]":
    from pydantic import TypeAdapter

    return TypeAdapter(_Stored[plan_type])


def _format_of(text: bytes) -> Any:
    from pydantic_core import from_json

    try:
        stored = from_json(text)
    except ValueError:
        return None
    return stored.get("format") if isinstance(stored, dict) else None


def _first_problem(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
