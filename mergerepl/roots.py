"""Replica roots as users write them: a path, a `file://` or an `s3://` URI, in a file or on the command line.

The absolute, symlink-free path, or the URI with the scheme `s3`, is a replica's identity here: locks and subscriptions
use it.
"""

import errno
import os
import re
import shlex
import sys
import unicodedata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mergerepl.errors import ConfigurationError
from mergerepl.settings import variable
from mergerepl.store.location import STORE_URI, Location

MERGE_FOLDER = "_mergerepl"
TRACKING_FOLDER = "_tracking"
LOG_READER_FOLDER = "_logreader"
CDC_FOLDER = "_cdc"
TRANSACTIONAL_FOLDER = "_transactional"
SYSTEM_FOLDERS = (MERGE_FOLDER, TRACKING_FOLDER, LOG_READER_FOLDER, CDC_FOLDER, TRANSACTIONAL_FOLDER)
"""The folders below a root that hold the products' tables."""
RESERVED_FOLDERS = (MERGE_FOLDER, "_delta_log", *SYSTEM_FOLDERS[1:])
"""The folders that hold no tables of users."""

LONGEST_SHOWN = 200

SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")
_CREDENTIALS = re.compile(r"(?<=:/)(?!(?<=abfss:/)/[a-z0-9-]+@\w+\.dfs\.)[^\s'\"]*@")
_QUERY = re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")
_UNOPENABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|{}\\*?]")
"""delta-rs takes paths for URLs and decodes percent escapes that are part of a name. Spark takes them for patterns."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NOT_IN_KEYS = re.compile(r"[\[\]^|{}\\*?%#]")
_ABFSS = re.compile(
    r"abfss://(?P<container>[a-z0-9-]+)@(?P<account>\w+)\.dfs\.core\.windows\.net(?P<key>/.*)?"
)
"""The name that Spark has for a place in a container of Azure's store."""
_FILE_URI = re.compile(r"^file:/", re.IGNORECASE)


def resolved(path: str | os.PathLike[str]) -> str:
    """Return where a stored path leads, without symbolic links; nothing need exist there."""
    location = Location.of(path)
    return os.path.realpath(path) if location.is_local else str(location)


def parse(text: str, *, base: str | os.PathLike[str] = ".", may_be_stored: bool = False) -> str:
    """Return the absolute, symlink-free path of a replica root, or its `s3://` URI; a relative one is relative to `base`.

    Nothing is expanded: no `~`, no variables. The folder need not exist. `may_be_stored`: the caller takes replicas in
    object stores, too.

    Raises:
        ConfigurationError: It is empty, not a path, the URI of a store that is not supported here, a file, a loop of
            symbolic links, or has characters that the engines cannot open; or this process encodes file names
            otherwise than they do.
    """
    require_utf8_names()
    shown = masked(text)
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}…"
    if not text.strip():
        raise ConfigurationError("A replica root is empty: give the folder that holds the replica's tables.")
    _require_plain(text, shown)
    if text.startswith("~"):
        raise ConfigurationError(f"Replica root {shown!r}: `~` is not expanded here; write the whole path.")
    if (azure := _ABFSS.fullmatch(text)) is not None:
        text = _of_account(azure, shown)
    if STORE_URI.match(text):
        uri = _store_uri(text, shown)
        if not may_be_stored:
            raise ConfigurationError(
                f"Replica root {shown!r} is in an object store, where only merge replication, Change Data "
                "Capture and Compact change tracking work. Use a local or mounted folder.",
                replica=uri,
            )
        return uri
    local = _local_path(text)
    # A URI may encode further such characters, as %00.
    _require_plain(local, shown)
    path = os.path.realpath(os.path.join(base, local))
    require_openable("Replica root", path)
    try:
        is_folder = Path(path).is_dir() if os.path.lexists(path) else None
        os.stat(path)
    except FileNotFoundError:
        is_folder = None
    except NotADirectoryError:
        is_folder = False
    except OSError as error:
        reason = (
            "is a loop of symbolic links"
            if error.errno == errno.ELOOP
            else f"cannot be read: {error.strerror}"
        )
        raise ConfigurationError(
            f"Replica root {shown!r} {reason}. Check the path.", replica=shown
        ) from error
    if is_folder is False:
        raise ConfigurationError(
            f"Replica root {shown!r} is a file, or lies inside one: give the folder that holds the tables.",
            replica=path,
        )
    return path


def existing(text: str, *, base: str | os.PathLike[str] = ".", may_be_stored: bool = False) -> str:
    """Return `parse(text)` of an existing folder. A place in a store is not looked for.

    Raises:
        ConfigurationError: As `parse`, or the folder does not exist.
    """
    path = parse(text, base=base, may_be_stored=may_be_stored)
    if Location.of(path).is_local and not os.path.isdir(path):
        raise ConfigurationError(
            f"Folder {masked(text)!r} does not exist (looked at {path}): check the path.", replica=path
        )
    return path


_USES = {
    MERGE_FOLDER: "It is a merge replica: `mergerepl status -f {0}`, `sync`, `history`, `pending` and `conflicts` take it.",
    f"{TRANSACTIONAL_FOLDER}/MSpublications": "It publishes transactionally: `mergerepl status -f {0}`, `sync`, "
    "`validate`, `history` and `pending` take it, `mergerepl capture -f {0}` reads its log, `mergerepl history -f {0} "
    "--failed` lists refused commands.",
    f"{TRANSACTIONAL_FOLDER}/MSreplication_subscriptions": "It receives transactional publications: name their "
    "publisher, as in `mergerepl status -f PUBLISHER` and `mergerepl sync -f PUBLISHER`.",
    CDC_FOLDER: "Its tables are captured: see `mergerepl status -f {0}`.",
    TRACKING_FOLDER: "Its tables are tracked: see `mergerepl status -f {0}`.",
}
"""Folder of a product -> a description of its roots, and the commands that take them."""


def uses(root: str | os.PathLike[str], *, but: str) -> str:
    """Return sentences on the products that use a folder, each after a blank, except the product whose folder is `but`.

    Of a place in a store nothing is looked for.
    """
    if not Location.of(root).is_local:
        return ""
    found = [
        text
        for folder, text in _USES.items()
        if not folder.startswith(but) and (Path(root) / folder).is_dir()
    ]
    return "".join(f" {text.format(shlex.quote(os.fspath(root)))}" for text in found)


def names_file(text: str) -> bool:
    """Whether a text names a project file rather than a replica."""
    path = Path(text)
    try:
        return path.is_file() or (text.lower().endswith((".yml", ".yaml")) and not path.is_dir())
    except OSError:
        # For example a name that is too long; `parse` reports it.
        return False


def require_openable(what: str, path: str) -> None:
    """Refuse a path that delta-rs or Spark would take for another one.

    Raises:
        ConfigurationError: Naming `what` the path is of, and the characters.
    """
    found = _UNOPENABLE.search(path)
    if found:
        raise ConfigurationError(
            f"{what} '{path}' has {found[0]} in its path, which the Delta libraries cannot open. Rename the "
            "folder."
        )


def require_utf8_names() -> None:
    """Check that Python gives files the names that Spark and delta-rs give them.

    Raises:
        ConfigurationError: It encodes them otherwise; the message names the setting.
    """
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise ConfigurationError(
            f"This process encodes names of files in {encoding}; the Delta libraries need UTF-8. Run it with the "
            "environment variable PYTHONUTF8=1, or in a UTF-8 locale, such as LC_ALL=C.UTF-8."
        )


def overlap(one: str, other: str) -> str | None:
    """Return how two parsed roots collide: "same", "inside" (one in the other), "around", or None."""
    if one == other or _is_same_file(one, other):
        return "same"
    first, second = Location.of(one), Location.of(other)
    if first.is_below(second):
        return "inside"
    return "around" if second.is_below(first) else None


def masked(text: str) -> str:
    """Return the text with credentials and query strings (SAS tokens) of its URIs replaced by `***`."""
    return _QUERY.sub(r"\1?***", _CREDENTIALS.sub("/***@", text))


def is_absent(root: str | os.PathLike[str]) -> bool:
    """Whether a root does not exist or is an empty folder, as a store leaves it that is not mounted.

    A place in an object store counts as there: who reads it finds what is missing.
    """
    if not Location.of(root).is_local:
        return False
    try:
        return not os.listdir(root)
    except PermissionError:
        return False
    except OSError:
        # The root does not exist, or is a mount whose other end does not answer.
        return True


def _require_plain(path: str, shown: str) -> None:
    """Refuse characters that no replica path needs and that garble a message."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in path):
        raise ConfigurationError(f"Replica root {shown!r} holds a control character: give a plain path.")


def _local_path(text: str) -> str:
    """Undo a `file:` URI."""
    if _FILE_URI.match(text):
        try:
            uri = urlsplit(text)
        except ValueError as error:
            # For example a host in brackets that is not an address.
            raise ConfigurationError(
                f"Replica root {masked(text)!r} is no URI ({error}): a file URI has three slashes, as in "
                "file:///data/hq."
            ) from error
        if uri.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"Replica root {masked(text)!r} names the host {masked(uri.netloc.rpartition('@')[2])!r}: "
                "a file URI has three slashes, as in file:///data/hq."
            )
        # Not uri.path: `?` and `#` may stand unquoted in a folder's name.
        after_scheme = text[len("file:") :]
        return unquote(
            after_scheme.removeprefix("//localhost") if uri.netloc else "/" + after_scheme.lstrip("/")
        )
    if scheme := SCHEME.match(text):
        raise ConfigurationError(
            f"Replica root {masked(text)!r}: roots at {scheme.group(1)}:// are not supported. Use a bucket of S3 "
            "(s3://BUCKET/PREFIX) or a container of Azure (az://CONTAINER/PREFIX), or a local or mounted folder."
        )
    return text


def _of_account(azure: re.Match[str], shown: str) -> str:
    """Return the `az://` URI of an `abfss://` one, whose account is that of the environment.

    Raises: ConfigurationError for another account.
    """
    if azure["account"] != (name := variable("AZURE_STORAGE_ACCOUNT_NAME")):
        raise ConfigurationError(
            f"Replica root {shown!r} is in the account '{azure['account']}', and AZURE_STORAGE_ACCOUNT_NAME is "
            f"{repr(name) if name else 'not set'}: a command works with one account. Set it to that one."
        )
    return f"az://{azure['container']}{azure['key'] or ''}"


def _store_uri(text: str, shown: str) -> str:
    """Return the URI of a place in a store, without slashes at its end.

    Raises: ConfigurationError if it has credentials, a query, or what an engine would read otherwise.
    """
    location = Location.of(text)
    key = text.split("://", 1)[1].partition("/")[2].rstrip("/")
    if "@" in location.bucket or "?" in text:
        problem = (
            f"holds credentials or a query. Give only {location.scheme}://BUCKET/PREFIX; credentials come from the "
            "environment (AWS_ACCESS_KEY_ID and others) or a role"
        )
    elif not _BUCKET.fullmatch(location.bucket):
        problem = "names no bucket: a name has 3 to 63 lower-case letters, digits, dots and hyphens"
    elif any(part in ("", ".", "..") for part in key.split("/")) and key:
        problem = "has an empty segment, `.` or `..`, which mean nothing in a store"
    elif found := _NOT_IN_KEYS.search(key):
        problem = f"has {found[0]} in its key, which the Delta libraries read in different ways"
    else:
        return str(location)
    raise ConfigurationError(f"Replica root {shown!r} {problem}.")


def _is_same_file(one: str, other: str) -> bool:
    """Whether both exist and are one folder, as on a file system that ignores case."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
