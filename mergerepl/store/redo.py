"""The redo log of an engine: a plan is durable before its first step, and is always carried out.

    stage(plan)    written whole or not at all: from here on the plan is carried out, by this process or a later one
    the steps      each once: its Delta transaction or commit mark, in the table's own log, proves that it was taken
    finish()       the plan is removed; `pending` returns None

Plans are dataclasses of decisions and facts of logs, without rows: rows are staged next to the plan. pydantic writes and
reads them. It is loaded only for a plan: commands that only read `is_pending` start without it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mergerepl.errors import StoreError
from mergerepl.failpoints import failpoint
from mergerepl.store.location import Location
from mergerepl.store.register import Register, held_register, state_of
from mergerepl.store.register_state import RegisterState, StagedSession, read_register
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import files_in, put_once_written, storage

if TYPE_CHECKING:
    from pydantic import TypeAdapter

P = TypeVar("P")
T = TypeVar("T")

FORMAT = 1
"""The format of stored plans. One of another format is refused, never guessed at."""


@dataclass(frozen=True)
class RedoLog(Generic[P]):
    """The plan of one piece of work, in the file `<name>.json` of a folder.

    Staging passes the failpoints `<engine>.before_<name>` and `<engine>.after_<name>`, with the name up to its first
    dash. `what` begins the error about a damaged plan, and `otherwise` ends it: the way on without a copy of the file.
    If it `owns_folder`, rows are staged there: the folder reaches the disk before the plan, and is removed after it.
    """

    folder: Location
    plan_type: type[P]
    engine: str
    name: str = "plan"
    what: str = "What was decided"
    otherwise: str = ""
    owns_folder: bool = False

    @property
    def file(self) -> Location:
        """The file of the plan."""
        return Location.of(self.folder) / f"{self.name}.json"

    @property
    def is_pending(self) -> bool:
        """True if a plan has to be carried out."""
        return storage(self.file).exists(self.file)

    def stage(self, plan: P, *, under: AbstractContextManager[object] | None = None) -> None:
        """Store a plan durably, replacing an earlier one. `under` is a lock to hold while it is written."""
        noun = self.name.partition("-")[0]
        failpoint(f"{self.engine}.before_{noun}")
        with under or nullcontext():
            if self.owns_folder:
                # A plan that outlived its rows in a power loss could not be carried out.
                storage(self.file).force_tree_to_disk(self.file.parent)
            self._put(self.file, plan)
            if self.owns_folder:
                storage(self.file).force_to_disk(self.file.parent.parent)
            self._enter(plan)
        failpoint(f"{self.engine}.after_{noun}")

    def pending(self) -> P | None:
        """Return the plan that has to be carried out, or None.

        Raises: StoreError if it is damaged or has another format.
        """
        plan: P | None = self._read(self.file, self.plan_type)
        return plan

    def mark_done(self, step: str, outcome: object) -> None:
        """Record that a step was taken, with its outcome: after the step's last commit, never before."""
        self._put(self._done_file(step), outcome)

    def is_done(self, step: str) -> bool:
        """True if a step is recorded as taken."""
        return storage(at := self._done_file(step)).exists(at)

    def outcome(self, step: str, kind: type[T]) -> T | None:
        """Return the outcome of a step; None if it is not recorded as taken."""
        found: T | None = self._read(self._done_file(step), kind)
        return found

    def finish(self) -> None:
        """Remove the plan: all its steps were taken, or it is given up.

        The plan is removed before the staged rows: half a folder must not count as staged.
        """
        storage(self.file).delete(self.file)
        if self.owns_folder:
            storage(self.file).delete_tree(self.file.parent)

    def is_named(self, plan: P) -> bool:
        """Whether a plan counts that was stored with an error; in a folder one that is there does."""
        return self.is_pending

    def remove_left(self) -> None:
        """Remove plans that nobody can carry out any more; in a folder there is only the one that counts."""

    def _enter(self, plan: P) -> None:
        """Make a stored plan count."""

    def _done_file(self, step: str) -> Location:
        return self.file.with_name(f"{step}.done")

    def _put(self, at: Location, value: object) -> None:
        storage(at).put(at, _text_of(value))

    def _read(self, at: Location, kind: Any) -> Any:
        found = storage(at).read(at)
        return None if found is None else self._plan_in(found[0], at, kind)

    def _plan_in(self, text: bytes, at: Location, kind: Any) -> Any:
        if (format_ := _format_of(text)) not in (None, FORMAT):
            raise StoreError(
                f"{self.what} cannot be read: '{at}' has the format {format_}; this mergerepl reads {FORMAT}. Nothing was "
                "changed. Finish its work with the mergerepl that wrote it.",
                path=str(at),
            )
        try:
            return _adapter_of(kind).validate_json(text).plan
        except ValueError as error:
            advice = f"Nothing was changed. Restore the file from a copy. {self.otherwise}".strip()
            why = _first_problem(error)
            raise StoreError(
                f"{self.what} cannot be read: '{at}' is damaged ({why}). {advice}", path=str(at)
            ) from error


@dataclass(frozen=True, kw_only=True)
class _RedoLogInStore(RedoLog[P]):
    """A redo log of a root in a store, whose register says which plan counts. `lock` is the register's place."""

    lock: Location

    def _register(self) -> Register:
        # It is asked for to write; a rehearsal holds none.
        before_write()
        held = held_register(self.lock)
        assert held is not None, f"'{self.lock}' is not held"
        return held

    def _counted(self, at: Location, hash_: str) -> P:
        """Return the plan in an object that the register names.

        Raises: StoreError if it is missing or damaged, or has another format.
        """
        found = storage(at).read(at)
        if found is None or _hash_of(found[0]) != hash_:
            raise StoreError(
                f"{self.what} cannot be read: '{at}' is missing or is not what was staged. Nothing was changed. Restore "
                f"the object from an earlier version. {self.otherwise}".strip(),
                path=str(at),
            )
        plan: P = self._plan_in(found[0], at, self.plan_type)
        return plan


@dataclass(frozen=True, kw_only=True)
class RegisteredRedoLog(_RedoLogInStore[P]):
    """The redo log of a root in a store: the root's register names what is staged, with the hash of its plan.

    Rows and plan are plain objects in the folder; without their entry in the register they mean nothing. Only the agent
    that holds the register stages and finishes: `LeaseError` is raised in an agent that was displaced.
    """

    key: str
    subscriber_of: Callable[[P], str]

    @property
    def is_pending(self) -> bool:
        """True if a plan has to be carried out."""
        return self._entry() is not None

    def pending(self) -> P | None:
        """Return the plan that has to be carried out, or None.

        Raises: StoreError if it is missing or damaged, or has another format.
        """
        entry = self._entry()
        return None if entry is None else self._counted(self.file, entry.manifest)

    def mark_done(self, step: str, outcome: object) -> None:
        """Record that a step was taken, with its outcome: after the step's last commit, never before."""
        self._register().done(self.key, step, _text_of(outcome).decode("utf-8"))

    def is_done(self, step: str) -> bool:
        """True if a step is recorded as taken."""
        return (entry := self._entry()) is not None and step in entry.done

    def outcome(self, step: str, kind: type[T]) -> T | None:
        """Return the outcome of a step; None if it is not recorded as taken."""
        if (entry := self._entry()) is None or step not in entry.done:
            return None
        found: T = self._plan_in(str(entry.done[step]).encode("utf-8"), self.lock, kind)
        return found

    def finish(self) -> None:
        """Forget the plan, then remove its objects.

        Raises: LeaseError if another agent has taken the register over: the objects may be its own.
        """
        folder = self.file.parent
        if self.is_pending:
            self._register().unstage(self.key)
        elif storage(folder).is_folder(folder):
            self._register().settle()
        else:
            return
        storage(folder).delete_tree(folder)

    def _enter(self, plan: P) -> None:
        # It is not read back: an agent that has taken over may have removed it, and the register says so.
        self._register().stage(self.key, _hash_of(_text_of(plan)), self.subscriber_of(plan))

    def _entry(self) -> StagedSession | None:
        return state_of(self.lock.parent).sessions.get(self.key)


@dataclass(frozen=True, kw_only=True)
class NamedRedoLog(_RedoLogInStore[P]):
    """A redo log of a root in a store: a field of the root's register names the object of the plan.

    The object's name has the fence of its holder and the hash of its content. So a PUT of an agent that was displaced
    changes no other plan, and one that removes its plan removes no other's.
    """

    field: str = "scan"
    """The field of `RegisterState`."""

    @property
    def is_pending(self) -> bool:
        """True if a plan has to be carried out."""
        return self._counting() is not None

    def stage(self, plan: P, *, under: AbstractContextManager[object] | None = None) -> None:
        """Store a plan, then name it in the register, in place of an earlier one: from then on it is carried out.

        Raises: LeaseError if another agent has taken the register over.
        """
        failpoint(f"{self.engine}.before_{self.name}")
        register = self._register()
        text, before = _text_of(plan), self._counting()
        name = f"{register.fence}-{_hash_of(text)}"
        put_once_written(self._object(name), text)
        self._name(name)
        failpoint(f"{self.engine}.after_{self.name}")
        if before is not None and before != name:
            storage(self.lock).delete(self._object(before))

    def pending(self) -> P | None:
        """Return the plan that has to be carried out, or None.

        Raises: StoreError if it is missing or damaged, or has another format.
        """
        while (name := self._counting()) is not None:
            try:
                return self._counted(self._object(name), name.partition("-")[2])
            except StoreError:
                # Its holder may have finished it since the register was read here.
                if self._counting() == name:
                    raise
        return None

    def finish(self) -> None:
        """Forget the plan, then remove its object.

        Raises: LeaseError if another agent has taken the register over.
        """
        if (name := self._counting()) is not None:
            self._name(None)
            storage(self.lock).delete(self._object(name))

    def is_named(self, plan: P) -> bool:
        """Whether the register, read anew, names a plan: the answer of the PUT that named it may be lost."""
        found = read_register(storage(self.lock), self.lock)
        return found is not None and str(self._named_in(found)).endswith(_hash_of(_text_of(plan)))

    def remove_left(self) -> None:
        """Remove the plans of earlier holders that the register does not name: nobody can stage them any more."""
        register = self._register()
        for each in files_in(self._object("").parent):
            fence = each.name.partition("-")[0]
            is_earlier = fence.isdecimal() and int(fence) < register.fence
            if is_earlier and each != self._object(str(self._counting())):
                storage(each).delete(each)

    def _counting(self) -> str | None:
        return self._named_in(state_of(self.lock.parent))

    def _named_in(self, state: RegisterState) -> str | None:
        found: str | None = getattr(state, self.field)
        return found

    def _name(self, name: str | None) -> None:
        self._register().name_plan(self.field, name)

    def _object(self, name: str) -> Location:
        return Location.of(self.folder) / "plans" / f"{name}.json"


@dataclass(frozen=True, kw_only=True)
class BatchRedoLog(NamedRedoLog[P]):
    """The redo log of a subscription's batches, whose subscriber is in a store: the register there names each plan."""

    subscription: str

    def _named_in(self, state: RegisterState) -> str | None:
        return state.batches.get(self.subscription)

    def _name(self, name: str | None) -> None:
        self._register().plan_batch(self.subscription, name)


def _text_of(value: object) -> bytes:
    kind: Any = type(value)
    # A value of another type than its field could be written, but not read again.
    return _adapter_of(kind).dump_json(_Stored(FORMAT, value), indent=1, warnings="error")


def _hash_of(data: bytes) -> str:
    return sha256(data).hexdigest()


@dataclass(frozen=True)
class _Stored(Generic[P]):
    format: int
    plan: P

    # The same check covers the dataclasses inside.
    __pydantic_config__: ClassVar = {"extra": "forbid", "ser_json_bytes": "hex", "val_json_bytes": "hex"}


@cache
def _adapter_of(kind: Any) -> "TypeAdapter[_Stored[Any]]":
    from pydantic import TypeAdapter

    return TypeAdapter(_Stored[kind])


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
