"""Control files in an object store, read and written by obstore: the counterpart of folders.

A conditional PUT whose answer is an error, or "exists", may have been carried out. So the object is read back: our bytes
mean success, other bytes mean that another writer was first, and without a change the PUT is repeated. For this, no two
writes of one key may have equal bodies: an ETag of S3 is a hash of the body, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from mergerepl.errors import ConfigurationError, StoreError, StoreUnavailableError
from mergerepl.settings import store_variables
from mergerepl.store.location import AZ, S3, Location
from mergerepl.store.rehearsal import before_write, is_rehearsal

if TYPE_CHECKING:
    from obstore.store import AzureStore, S3Store

_TRIES = 5
"""How often a conditional PUT is sent whose outcome is "nothing was written"."""

_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d+ [\w ]+)")
_TIMES = re.compile(r"<(RequestTime|ServerTime)>([^<]*)<")
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_LONGEST_REASON = 200


class ChangedError(OSError):
    """An object or a file is no longer the one that was read: another writer replaced or removed it."""


@dataclass(frozen=True)
class FileFacts:
    """Size in bytes, time of the last change in nanoseconds since 1970, and a tag that a replaced file would not have."""

    size: int
    written_ns: int
    tag: str


_MOST_KEPT_BYTES, _LARGEST_KEPT = 64 << 20, 8 << 20
_kept: dict[Location, bytes] = {}
"""Contents of objects that are written once, such as data files; the last one read comes last."""
_listed: dict[Location, list[str]] = {}
"""Folder -> the names in it, of folders that only this process fills. Its own writes and removals forget the entry."""
_begun: dict[Location, set[Location]] = {}
"""Folder -> all objects below it, of folders with names of their own that this process began, and fills by PUTs alone."""
_kept_lock = Lock()


def storage_options(at: Location) -> dict[str, str]:
    """Return what delta-rs and obstore have to know about a place; {} for a folder of this machine.

    Credentials are not among it: both libraries take them from the environment (`AWS_ACCESS_KEY_ID` and others) or from
    the role of the machine, and renew them.

    Raises: ConfigurationError if the environment has a setting that mergerepl cannot follow.
    """
    if Location.of(at).is_local:
        return {}
    variables = store_variables()
    if Location.of(at).scheme == AZ:
        if not variables.get("AZURE_STORAGE_ACCOUNT_NAME"):
            raise ConfigurationError(
                "AZURE_STORAGE_ACCOUNT_NAME is not set: it names the account that has the container of an az:// place. "
                "Credentials come from the environment (AZURE_STORAGE_ACCOUNT_KEY and others) or the machine's identity."
            )
        return {"AZURE_STORAGE_ACCOUNT_NAME": variables["AZURE_STORAGE_ACCOUNT_NAME"]}
    if variables.get("AWS_PROFILE") and "AWS_ACCESS_KEY_ID" not in variables:
        raise ConfigurationError(
            "AWS_PROFILE is set, and profiles are not read. Export the keys of the profile: "
            '`eval "$(aws configure export-credentials --format env)"`.'
        )
    for name in ("AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER", "AWS_CONDITIONAL_PUT"):
        if variables.get(name):
            raise ConfigurationError(
                f"{name} is set: it changes how delta-rs commits, and commits of two writers could overwrite each other. "
                "Unset it; mergerepl needs a store that supports conditional writes (If-None-Match)."
            )
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL", "")
    style = variables.get("AWS_S3_ADDRESSING_STYLE", "path")
    return {
        "AWS_REGION": variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or "us-east-1",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true" if style == "virtual" else "false",
        **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {}),
        **({"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}),
    }


def options_in_use() -> dict[str, str] | None:
    """Return `storage_options` if this process has opened a bucket, None otherwise.

    Raises: ConfigurationError, as `storage_options`.
    """
    return storage_options(Location(S3, "", "")) if S3 in _opened else None


class ObjectStorage:
    """The objects of one bucket, by their `Location`. A folder is there as long as an object is below it.

    All methods raise StoreError if access is denied or the bucket is missing, and StoreUnavailableError if the store does
    not answer.
    """

    def __init__(self, bucket: Location) -> None:
        options = tuple(sorted(storage_options(bucket).items()))
        self._client = _client(bucket.scheme, bucket.bucket, options, _identity())
        _opened.add(bucket.scheme)

    def read(self, at: Location) -> tuple[bytes, str] | None:
        """Return the bytes and the tag of an object, or None if it is absent."""
        with _named("read", at):
            try:
                found = self._client.get(at.prefix)
                return bytes(found.bytes()), _tag(found.meta)
            except FileNotFoundError as error:
                _require_bucket(error, at)
                return None

    def read_once_written(self, at: Location) -> bytes | Any:
        """Return the content of an object that only this process replaces; a file to read from if it is large.

        Raises: FileNotFoundError.
        """
        with _kept_lock:
            if (data := _kept.pop(at, None)) is not None:
                _kept[at] = data
                return data
        with _named("read", at, absent=FileNotFoundError):
            found = self._client.get(at.prefix)
            if found.meta["size"] > _LARGEST_KEPT:
                from obstore import open_reader

                return open_reader(self._client, at.prefix)
            data = bytes(found.bytes())
        keep_content(at, data)
        return data

    def size_once_written(self, at: Location) -> int:
        """Return the size of an object that is about to be read by `read_once_written`, or was just written.

        Raises: FileNotFoundError.
        """
        data = self.read_once_written(at)
        return len(data) if isinstance(data, bytes) else int(data.size)

    def put(self, at: Location, data: bytes, *, is_durable: bool = True) -> None:
        """Write an object, replacing an earlier one."""
        if is_rehearsal() and not is_durable:
            return
        before_write()
        _forget(at)
        _note_begun(at)
        with _named("write", at):
            self._client.put(at.prefix, data)

    def put_once_written(self, at: Location, data: bytes) -> None:
        """Write an object under a name of its own; `read_once_written` then needs no request."""
        self.put(at, data)
        if len(data) <= _LARGEST_KEPT:
            keep_content(at, data)

    def put_if_absent(self, at: Location, data: bytes) -> str:
        """Create an object; return its tag. No other write of this key may have the same bytes.

        Raises: FileExistsError if another writer was first; StoreUnavailableError if the outcome is unknown.
        """
        return self._put_if(at, data, None)

    def put_if_unchanged(self, at: Location, data: bytes, tag: str) -> str:
        """Replace an object that has this tag; return its new one. No other write of this key may have the same bytes.

        Raises: ChangedError if it has another tag or is absent; StoreUnavailableError if the outcome is unknown.
        """
        return self._put_if(at, data, tag)

    def list_from(self, folder: Location, after: str = "") -> list[str]:
        """Return the names in a folder that sort after a name; [] if the folder is absent. Empty objects are left out."""
        above = f"{folder.prefix}/" if folder.prefix else ""
        with _named("list", folder):
            if not after:
                found = self._client.list_with_delimiter(folder.prefix or None)
                names = {
                    *found["common_prefixes"],
                    *(each["path"] for each in found["objects"] if each["size"]),
                }
            else:
                pages = self._client.list(folder.prefix or None, offset=above + after)
                names = {each["path"] for page in pages for each in page if each["size"]}
        here = {name.removeprefix(above).partition("/")[0] for name in names}
        return sorted(name for name in here if name > after)

    def list_facts(self, folder: Location, after: str = "") -> dict[str, FileFacts]:
        """Return the objects in a folder whose names sort after a name, by name. Empty objects are left out."""
        above = f"{folder.prefix}/"
        with _named("list", folder):
            if after:
                pages = self._client.list(folder.prefix, offset=above + after)
                found = [each for page in pages for each in page]
            else:
                found = [*self._client.list_with_delimiter(folder.prefix)["objects"]]
        named = {each["path"].removeprefix(above): each for each in found if each["size"]}
        return {name: _facts_of(each) for name, each in named.items() if "/" not in name}

    def list_facts_below(self, folder: Location, most: int) -> dict[str, FileFacts] | None:
        """Return the objects below a folder by their path from there; None if they are more than `most`."""
        above = f"{folder.prefix}/"
        found: dict[str, FileFacts] = {}
        with _named("list", folder):
            for page in self._client.list(folder.prefix, chunk_size=1000):
                found |= {each["path"].removeprefix(above): _facts_of(each) for each in page if each["size"]}
                if len(found) > most:
                    return None
        return found

    def list_once_written(self, folder: Location) -> list[str]:
        """Return the names in a folder that only this process fills. A folder with names is listed once."""
        with _kept_lock:
            known = _listed.get(folder)
        if known is not None:
            return known
        if (begun := _begun_below(folder)) is not None:
            return sorted({at.relative_to(folder).partition("/")[0] for at in begun})
        if names := self.list_from(folder):
            with _kept_lock:
                _listed[folder] = names
        return names

    def folders_in(self, folder: Location) -> list[str]:
        """Return the names of the folders in a folder; [] if it is absent."""
        with _named("list", folder):
            found = self._client.list_with_delimiter(folder.prefix or None)
        return sorted(each.rpartition("/")[2] for each in found["common_prefixes"])

    def facts(self, at: Location) -> FileFacts | None:
        """Return size, time and tag of an object, or None if it is absent."""
        with _named("look at", at):
            try:
                found = self._client.head(at.prefix)
            except FileNotFoundError:
                return None
        return _facts_of(found)

    def exists(self, at: Location) -> bool:
        """Whether an object is there; False for a folder."""
        return self.facts(at) is not None

    def is_folder(self, at: Location) -> bool:
        """Whether an object is below a place."""
        if (begun := _begun_below(at)) is not None:
            return bool(begun)
        with _named("list", at):
            return any(page for page in self._client.list(at.prefix or None, chunk_size=1))

    def delete(self, *files: Location) -> None:
        """Remove objects of this bucket; ignores absent ones."""
        if is_rehearsal():
            files = tuple(at for at in files if self.exists(at))
        if files:
            before_write()
            _forget(*files)
            with _named("remove", files[0]):
                self._client.delete([at.prefix for at in files])
            with _kept_lock:
                for known in _begun.values():
                    known.difference_update(files)

    def files_below(self, folder: Location) -> Iterator[Location]:
        """Yield all objects below a folder."""
        if (begun := _begun_below(folder)) is not None:
            yield from begun
            return
        with _named("list", folder):
            for page in self._client.list(folder.prefix or None):
                for each in page:
                    yield Location(folder.scheme, folder.bucket, each["path"])

    def delete_tree(self, folder: Location) -> None:
        """Remove all objects below a folder."""
        self.delete(*self.files_below(folder))
        with _kept_lock:
            _begun.pop(folder, None)

    def begin_folder(self, folder: Location) -> None:
        """Note that a folder is empty: only this process knows its name, and fills it by `put` until `end_folder`."""
        with _kept_lock:
            _begun[folder] = set()

    def end_folder(self, place: Location) -> None:
        """Note that a library fills a place: the folders above it that were begun are listed again."""
        with _kept_lock:
            for folder in [each for each in _begun if place.is_in(each)]:
                del _begun[folder]

    def make_folder(self, at: Location) -> None:
        """Do nothing: a folder is there with its first object."""
        before_write()

    def move(self, at: Location, to: Location) -> None:
        """Rename an object, or all objects below a folder, inside this bucket. It is not atomic: first all are copied."""
        before_write()
        files = [*self.files_below(at)] or [at]
        places = [to if each == at else to / each.relative_to(at) for each in files]
        _forget(to, *places)
        with _named("copy", at):
            for each, place in zip(files, places, strict=True):
                _note_begun(place)
                self._client.copy(each.prefix, place.prefix)
        self.delete(*files)

    def force_to_disk(self, at: Location) -> None:
        """Do nothing: an answered PUT is durable."""

    def force_tree_to_disk(self, folder: Location) -> None:
        """Do nothing: an answered PUT is durable."""

    def _put_if(self, at: Location, data: bytes, tag: str | None) -> str:
        """Write an object that has a tag, or is absent if the tag is None."""
        before_write()
        _note_begun(at)
        for _ in range(_TRIES):
            try:
                # obstore 0.12 does not take a version of None.
                return _tag(
                    self._client.put(at.prefix, data, mode="create" if tag is None else {"e_tag": tag})
                )
            except _failures() as error:
                failure = error
            _refuse(failure, "write", at)
            found = self.read(at)
            if found is not None and found[0] == data:
                return found[1]
            if (None if found is None else found[1]) != tag:
                if tag is None:
                    raise FileExistsError(f"'{at}' exists") from failure
                raise ChangedError(f"'{at}' was changed by another writer") from failure
        raise _unavailable("write", at, failure) from failure


_opened: set[str] = set()
"""The schemes of the stores that this process has opened."""


@lru_cache(maxsize=32)
def _client(
    scheme: str, bucket: str, options: tuple[tuple[str, str], ...], identity: tuple[str, ...]
) -> S3Store | AzureStore:
    """Return the client of a bucket; one for each of the credentials that this process had."""
    from obstore.store import AzureStore, S3Store

    config: Any = dict(options)
    return (AzureStore if scheme == AZ else S3Store)(bucket, config=config, retry_config=_RETRIES)


def _identity() -> tuple[str, ...]:
    variables = store_variables()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY")
    return tuple(variables.get(name, "") for name in names)


def _tag(found: Mapping[str, Any]) -> str:
    return str(found["e_tag"])


def _facts_of(found: Mapping[str, Any]) -> FileFacts:
    return FileFacts(found["size"], int(found["last_modified"].timestamp()) * 10**9, _tag(found))


def _failures() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return (OSError, BaseError)


def kept_content(at: Location) -> bytes | None:
    """Return the content of an object that is written once, if it is in memory."""
    with _kept_lock:
        return _kept.get(at)


def keep_content(at: Location, data: bytes) -> None:
    """Keep the content of an object that is written once in memory."""
    with _kept_lock:
        _kept[at] = data
        while sum(map(len, _kept.values())) > _MOST_KEPT_BYTES:
            del _kept[next(iter(_kept))]


def _forget(*files: Location) -> None:
    with _kept_lock:
        for at in files:
            _kept.pop(at, None)
            _listed.pop(at.parent, None)


def _note_begun(at: Location) -> None:
    with _kept_lock:
        for folder, known in _begun.items():
            if at.is_in(folder):
                known.add(at)


def _begun_below(place: Location) -> list[Location] | None:
    """Return the objects below a place in a folder that this process began, None for other places."""
    with _kept_lock:
        known = next((known for folder, known in _begun.items() if place.is_in(folder)), None)
        return None if known is None else sorted(at for at in known if at != place and at.is_in(place))


@contextmanager
def _named(verb: str, at: Location, *, absent: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Name the object in errors of obstore, except in those of an `absent` one."""
    try:
        yield
    except _failures() as error:
        _refuse(error, verb, at)
        if absent and isinstance(error, absent):
            raise
        raise _unavailable(verb, at, error) from error


def _refuse(error: Exception, verb: str, at: Location) -> None:
    """Raise StoreError for an answer that a repetition would not change."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    _require_bucket(error, at)
    if (code := _code(error)) in _EXPIRED:
        raise StoreUnavailableError(
            f"Cannot {verb} '{at}': the credentials have expired ({code}). Export new ones, then run again: a session that "
            "was staged is finished first.",
            location=str(at),
        ) from error
    if code == "RequestTimeTooSkewed":
        times = ", ".join(f"{name} {text}" for name, text in _TIMES.findall(str(error)))
        raise StoreError(
            f"Cannot {verb} '{at}': the clock of this machine is not that of the store ({times or code}). Set it, then run "
            "again.",
            location=str(at),
        ) from error
    # obstore has no class for a listing that is denied.
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _status(error).startswith("403"):
        raise StoreError(
            f"Cannot {verb} '{at}': access was denied ({_reason(error)}). Check the credentials and their rights to list, "
            "read, write and delete there.",
            location=str(at),
        ) from error
    if _code(error) in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        raise StoreError(
            f"Cannot {verb} '{at}': the bucket is in another region ({_reason(error)}). Set AWS_REGION.",
            location=str(at),
        ) from error


def _require_bucket(error: Exception, at: Location) -> None:
    if _code(error) in ("NoSuchBucket", "ContainerNotFound"):
        raise StoreError(
            f"Bucket '{at.bucket}' does not exist. Create it, or check the name and "
            f"{'AZURE_STORAGE_ACCOUNT_NAME' if at.scheme == AZ else 'AWS_ENDPOINT_URL'}.",
            location=str(at),
        ) from error


def _unavailable(verb: str, at: Location, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Cannot {verb} '{at}': the store does not answer as it should ({_reason(error)}). Run again later.",
        location=str(at),
    )


def _code(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _reason(error: Exception) -> str:
    """Return the store's own code, or the beginning of the error: never a request with its headers."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _code(error) or _status(error) or first[:_LONGEST_REASON]


def _status(error: Exception) -> str:
    found = _STATUS.search(str(error))
    return found[1] if found else ""
