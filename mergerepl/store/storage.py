"""Control files and folders: the one module that reads, writes, lists and removes them, with `objects` for stores.

A control file exists whole or not at all, even after a power loss; rows and commits of tables (`is_durable=False`) are not
forced to disk. A failure of the file system is an OSError: the caller names
the file's owner. `delta.tables` reads and writes users' tables.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from mergerepl.roots import resolved
from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError, FileFacts, ObjectStorage
from mergerepl.store.rehearsal import before_write, is_rehearsal
from mergerepl.systables.table import FOLDER

HALF_WRITTEN = ".tmp"
"""The end of the names of files that are being written; a killed process leaves one."""


class FolderStorage:
    """The files below a folder of this machine."""

    def read(self, at: Location) -> tuple[bytes, str] | None:
        """Return the bytes and the tag of a file, or None if it is absent."""
        try:
            with open(at, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        return data, _tag_of(data)

    def put(self, at: Location, data: bytes, *, is_durable: bool = True) -> None:
        """Write a file, replacing an earlier one, and create the folders above it.

        A file that only saves time need not be durable: it skips the wait for the disk.
        """
        if is_rehearsal() and not is_durable:
            return
        before_write()
        os.makedirs(at.parent, exist_ok=True)
        with _written_beside(at, data, is_durable=is_durable) as temporary:
            os.replace(temporary, at)
        if is_durable:
            self.force_to_disk(at.parent)

    def put_if_absent(self, at: Location, data: bytes, *, is_durable: bool = True) -> str:
        """Create a file in an existing folder; return its tag.

        Raises: FileExistsError if another writer was first.
        """
        before_write()
        with _written_beside(at, data, is_durable=is_durable) as temporary:
            try:
                os.link(temporary, at)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                # Without hard links: a rename cannot refuse, so two writers in the same instant are not told apart.
                if os.path.lexists(at):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(at)) from error
                os.rename(temporary, at)
        if is_durable:
            self.force_to_disk(at.parent)
        return _tag_of(data)

    def put_if_unchanged(self, at: Location, data: bytes, tag: str) -> str:
        """Replace a file that has this tag; return its new one. No two writes of a file may have the same bytes.

        Raises: ChangedError if it has another tag or is absent.
        """
        before_write()
        # The lock of the folder: other files of it are changed so, too.
        descriptor = os.open(at.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = self.read(at)
            if found is None or found[1] != tag:
                raise ChangedError(f"'{at}' was changed by another writer")
            self.put(at, data)
        finally:
            os.close(descriptor)
        return _tag_of(data)

    def list_from(self, folder: Location, after: str = "") -> list[str]:
        """Return the names in a folder that sort after a name; [] if the folder is absent."""
        try:
            return sorted(name for name in os.listdir(folder) if name > after)
        except FileNotFoundError:
            return []

    def facts(self, at: Location) -> FileFacts | None:
        """Return size, time and inode of a file, or None if it is absent."""
        try:
            found = os.stat(at)
        except FileNotFoundError:
            return None
        return FileFacts(found.st_size, found.st_mtime_ns, str(found.st_ino))

    def exists(self, at: Location) -> bool:
        """Whether a file or folder is there."""
        return mode_of(at) is not None

    def is_folder(self, at: Location) -> bool:
        """Whether a folder is there."""
        mode = mode_of(at)
        return mode is not None and stat.S_ISDIR(mode)

    def delete(self, *files: Location) -> None:
        """Remove files; ignores absent ones."""
        for at in files:
            if is_rehearsal() and os.path.lexists(at):
                before_write()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)

    def delete_tree(self, folder: Location) -> None:
        """Remove a folder with its contents, as far as possible; ignores an absent one."""
        if is_rehearsal() and os.path.lexists(folder):
            before_write()
        shutil.rmtree(folder, ignore_errors=True)

    def make_folder(self, at: Location) -> None:
        """Create a folder, and those above it, if it is absent."""
        if not self.exists(at):
            before_write()
        os.makedirs(at, exist_ok=True)

    def move(self, at: Location, to: Location) -> None:
        """Rename a file or a folder atomically."""
        before_write()
        os.rename(at, to)

    def folders_in(self, folder: Location) -> list[str]:
        """Return the names of the folders in a folder; [] if it is absent."""
        try:
            return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        except FileNotFoundError:
            return []

    def files_below(self, folder: Location) -> Iterator[Location]:
        """Yield all files below a folder, links included; yields the folder itself if it is a file."""
        if os.path.islink(folder):
            yield folder
            return
        for above, folders, files in os.walk(folder):
            here = Location.of(above)
            yield from (here / name for name in folders if os.path.islink(here / name))
            yield from (here / name for name in files)

    def force_to_disk(self, at: Location) -> None:
        """Wait until a file, or the names in a folder, are on the disk."""
        descriptor = os.open(at, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def force_tree_to_disk(self, folder: Location) -> None:
        """Wait until all files of a folder, and their names, are on the disk."""
        for above, folders, files in os.walk(folder):
            for name in (*folders, *files):
                self.force_to_disk(Location.of(above) / name)


def mode_of(at: Location) -> int | None:
    """Return the mode of a file or folder, None if it is absent. A link leads on.

    Raises: OSError if it cannot be looked at, such as PermissionError: it may be there.
    """
    try:
        return os.stat(at).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            return None
        raise


def is_local(at: Location) -> bool:
    """True for a place on this machine; a path is one."""
    return Location.of(at).is_local


_FOLDERS = FolderStorage()


def storage(at: Location) -> "FolderStorage | ObjectStorage":
    """Return the storage of a location: the folders of this machine, or the bucket of a store.

    Raises: ConfigurationError if the environment has a setting that a store cannot be used with.
    """
    return _FOLDERS if is_local(at) else ObjectStorage(Location.of(at))


def read_text(at: Location) -> str | None:
    """Return the text of a control file, or None if it is absent."""
    found = storage(at).read(at)
    return None if found is None else found[0].decode("utf-8")


def put_once_written(at: Location, data: bytes, *, is_durable: bool = True) -> None:
    """Write a file under a name of its own."""
    found = storage(at)
    if isinstance(found, FolderStorage):
        found.put(at, data, is_durable=is_durable)
    else:
        found.put_once_written(at, data)


def put_commit(at: Location, data: bytes) -> str:
    """Create a log file of a table; return its tag. In a folder it is not forced to disk: delta-rs and Spark do not either.

    Raises: FileExistsError if another writer was first.
    """
    found = storage(at)
    if isinstance(found, FolderStorage):
        return found.put_if_absent(at, data, is_durable=False)
    return found.put_if_absent(at, data)


def put_text(at: Location, text: str) -> None:
    """Write a control file durably, replacing an earlier one."""
    storage(at).put(at, text.encode("utf-8"))


def _tag_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@contextmanager
def _written_beside(at: Location, data: bytes, *, is_durable: bool) -> Iterator[Location]:
    """Give a file of the data beside its place; nothing of it stays if it cannot be written or moved there."""
    temporary = at.with_name(f"{at.name}.{os.getpid()}.{threading.get_ident()}{HALF_WRITTEN}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary)


MISSING = "does not exist"


def folder_problem(path: Location) -> str | None:
    """Return why a path is no folder, as a clause: `MISSING`, or that it is a file; None if it is a folder."""
    if is_folder(path):
        return None
    return "is a file" if exists(path) else MISSING


def file_system_now_ns(folder: Location) -> int:
    """Return the time of a folder's file system, or of a store, in whole seconds: its clock dates the files there."""
    if is_rehearsal():
        return time.time_ns()
    path = folder / "clock"
    if not is_local(folder):
        storage(path).put(path, b"clock")
        return facts_of(path).written_ns
    with open(path, "ab"):
        os.utime(path)
    return os.stat(path).st_mtime_ns


def source_of(at: Location) -> Any:
    """Return what a library reads a file from that is written once: its path, its bytes, or a file if they are many.

    Raises: FileNotFoundError if an object is absent.
    """
    found = storage(at)
    return os.fspath(at) if isinstance(found, FolderStorage) else found.read_once_written(at)


def facts_of(at: Location) -> FileFacts:
    """Return size and time of a file, and a tag that a replaced file would not have.

    Raises: FileNotFoundError.
    """
    found = storage(at).facts(at)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(at))
    return found


def size_to_read(at: Location) -> int:
    """Return the size of a file that is written once and read next; an object is read here, for both.

    Raises: FileNotFoundError.
    """
    found = storage(at)
    return facts_of(at).size if isinstance(found, FolderStorage) else found.size_once_written(at)


def are_at_most(files: Iterable[Location], most_bytes: int) -> bool:
    """Whether files that are read next have at most a number of bytes together.

    Raises: FileNotFoundError.
    """
    left = most_bytes
    return all((left := left - size_to_read(file)) >= 0 for file in files)


def files_in(folder: Location, ending: str = "") -> list[Location]:
    """Return the files and folders of a folder whose names have an ending, by name; [] if the folder is absent."""
    return [folder / name for name in storage(folder).list_from(folder) if name.endswith(ending)]


def files_once_written(folder: Location) -> list[Location]:
    """Return the Parquet files in a folder that only this process fills, by name."""
    found = storage(folder)
    if isinstance(found, FolderStorage):
        names = found.list_from(folder)
    else:
        names = found.list_once_written(folder)
    return [folder / name for name in names if name.endswith(".parquet")]


def names_in(folder: Location) -> list[str]:
    """Return the names in a folder, in any order.

    Raises: OSError if it is absent or cannot be read.
    """
    if is_local(folder):
        return os.listdir(folder)
    if names := storage(folder).list_from(folder):
        return names
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def facts_in(folder: Location, after: str = "") -> dict[str, FileFacts]:
    """Return the objects in a folder of a store whose names sort after a name, by name; {} for a folder of this machine."""
    found = storage(folder)
    return {} if isinstance(found, FolderStorage) else found.list_facts(folder, after)


def facts_below(folder: Location, *, most: int) -> dict[str, FileFacts] | None:
    """Return the objects below a folder of a store by their path from there; None if they are more than `most`."""
    found = storage(folder)
    return None if isinstance(found, FolderStorage) else found.list_facts_below(folder, most)


def files_below(folder: Location) -> Iterator[Location]:
    """Yield all files below a folder, links included; yields the folder itself if it is a file."""
    return storage(folder).files_below(folder)


def copy_file(at: Location, to: Location) -> None:
    """Copy the bytes of a file, between any two places.

    Raises: FileNotFoundError.
    """
    if is_local(at) and is_local(to):
        before_write()
        shutil.copyfile(at, to)
        return
    if (found := storage(at).read(at)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(at))
    storage(to).put(to, found[0])


def link_file(at: Location, name: Location) -> None:
    """Give a file a second name, by a symbolic link."""
    before_write()
    os.symlink(at, name)


def rename(at: Location, to: Location) -> Location:
    """Rename a file or a folder; return its new place. In a store it is not atomic: objects are copied, then removed."""
    storage(at).move(at, to)
    return to


def is_folder(path: Location) -> bool:
    """Whether a folder is there.

    Raises: OSError if it cannot be looked at.
    """
    return storage(path).is_folder(path)


def exists(path: Location) -> bool:
    """Whether a file or folder is there; a link leads on.

    Raises: OSError if it cannot be looked at.
    """
    return storage(path).exists(path)


def is_there(path: str | Location) -> bool:
    """True if the path exists, even as a dangling link; in a store, as a folder or an object."""
    at = Location.of(path)
    if at.is_local:
        return os.path.lexists(path)
    return storage(at).is_folder(at) or storage(at).exists(at)


def folders_in(path: Location) -> list[str]:
    """Return the names of the folders in a folder; [] if it is absent."""
    return storage(path).folders_in(path)


def same_place(one: Location, other: Location) -> bool:
    """True if two paths lead to one folder: through links, or a folder that is mounted twice."""
    if not (is_local(one) and is_local(other)):
        return one == other
    if resolved(one) == resolved(other):
        return True
    return is_folder(one) and is_folder(other) and os.path.samefile(one, other)


def has_system_tables(root: Location) -> bool:
    """Return whether a folder is a replica: its system tables have a folder there."""
    return is_folder(root / FOLDER)


def replica_above(path: Location, own: Location | None = None) -> Location | None:
    """Return the replica below `own` whose folder holds a path, as it is named or where its links lead."""
    if not is_local(path):
        above = itertools.takewhile(lambda folder: folder != own, path.parents)
        return next((folder for folder in above if has_system_tables(folder)), None)

    def is_outside_own(folder: Location) -> bool:
        return own is None or not os.path.exists(own) or not os.path.samefile(folder, own)

    for text in (resolved(path), os.path.normpath(path)):
        folders = (folder for folder in Location.of(text).parents if os.path.isdir(folder))
        for folder in itertools.takewhile(is_outside_own, folders):
            if os.path.isdir(folder / FOLDER):
                return folder
    return None


def is_writable(folder: Location) -> bool:
    """True if this process may write to a folder; for a store, only writing shows it."""
    return not is_local(folder) or os.access(folder, os.W_OK)


@contextmanager
def provide_folder(root: Location) -> Iterator[None]:
    """Make a folder and those above it. At the end, folders that were made and stayed empty are removed again."""
    if not is_local(root):
        yield
        return
    made = [folder for folder in (root, *root.parents) if not exists(folder)]
    make_folder(root)
    try:
        yield
    finally:
        for folder in made:
            # It is in use.
            with suppress(OSError):
                os.rmdir(folder)


@contextmanager
def scratch_files(contents: Mapping[str, bytes]) -> Iterator[Location]:
    """Give a folder of this machine that has these files until the block ends; only this user can read it."""
    with tempfile.TemporaryDirectory(prefix="mergerepl-") as made:
        folder = Location.of(made)
        for name, data in contents.items():
            at = folder.join(name)
            os.makedirs(at.parent, exist_ok=True)
            with open(at, "wb") as file:
                file.write(data)
        yield folder


def make_folder(path: Location) -> None:
    """Create a folder, and those above it, if it is absent."""
    storage(path).make_folder(path)


def begin_folder(path: Location) -> None:
    """Create a folder under a name that no other process knows. What is in it is then known without listing it."""
    found = storage(path)
    found.make_folder(path)
    if isinstance(found, ObjectStorage):
        found.begin_folder(path)


def end_begun_folder(place: Location) -> None:
    """Note that a library writes files at a place: folders above it that were begun are listed from now on."""
    if isinstance(found := storage(place), ObjectStorage):
        found.end_folder(place)


def keep_former(folder: Location) -> None:
    """Rename a folder to the first free name of `<name>.kept1`, `<name>.kept2` and so on."""
    numbered = (folder.with_name(f"{folder.name}.kept{number}") for number in itertools.count(1))
    rename(folder, next(candidate for candidate in numbered if not is_there(candidate)))


def remove_folder(folder: Location) -> None:
    """Remove a folder with its contents."""
    if not is_local(folder):
        storage(folder).delete_tree(folder)
        return
    before_write()
    shutil.rmtree(folder)


def remove_leftover(folder: Location) -> None:
    """Remove a folder that a former run may have left; ignores failures."""
    storage(folder).delete_tree(folder)


def remove_table(path: Location) -> None:
    """Remove a table's folder, its log first: without the log, the rest is not a table. As `remove_leftover`."""
    remove_leftover(path / "_delta_log")
    remove_leftover(path)
