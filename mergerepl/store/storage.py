"""Control files and folders: the one module that reads, writes, lists and removes them.

A file exists whole or not at all, even after a power loss. A failure of the file system is an OSError: the caller names
the file's owner. `delta.tables` reads and writes users' tables.
"""

import contextlib
import errno
import os
import shutil

from mergerepl.store.location import Location

HALF_WRITTEN = ".tmp"
"""The end of the names of files that are being written; a killed process leaves one."""


class FolderStorage:
    """The files below a folder of this machine."""

    def read(self, at: Location) -> bytes | None:
        """Return the bytes of a file, or None if it is absent."""
        try:
            with open(at, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def put(self, at: Location, data: bytes, *, is_durable: bool = True) -> None:
        """Write a file, replacing an earlier one, and create the folders above it.

        A file that only saves time need not be durable: it skips the wait for the disk.
        """
        os.makedirs(at.parent, exist_ok=True)
        temporary = _written_beside(at, data, is_durable=is_durable)
        os.replace(temporary, at)
        if is_durable:
            self.force_to_disk(at.parent)

    def put_if_absent(self, at: Location, data: bytes) -> None:
        """Create a file in an existing folder.

        Raises: FileExistsError if another writer was first.
        """
        temporary = _written_beside(at, data, is_durable=True)
        try:
            os.link(temporary, at)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # Without hard links: a rename cannot refuse, so two writers in the same instant are not told apart.
            if os.path.lexists(at):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(at)) from error
            os.rename(temporary, at)
        finally:
            self.delete(temporary)
        self.force_to_disk(at.parent)

    def list_from(self, folder: Location, after: str = "") -> list[str]:
        """Return the names in a folder that sort after a name; [] if the folder is absent."""
        try:
            return sorted(name for name in os.listdir(folder) if name > after)
        except FileNotFoundError:
            return []

    def exists(self, at: Location) -> bool:
        """Whether a file or folder is there."""
        return mode_of(at) is not None

    def delete(self, *files: Location) -> None:
        """Remove files; ignores absent ones."""
        for at in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at)

    def delete_tree(self, folder: Location) -> None:
        """Remove a folder with its contents, as far as possible; ignores an absent one."""
        shutil.rmtree(folder, ignore_errors=True)

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


_FOLDERS = FolderStorage()


def storage(at: Location) -> FolderStorage:
    """Return the storage of a location: folders of this machine; object stores are not supported yet."""
    # It raises for a store.
    os.fspath(at)
    return _FOLDERS


def read_text(at: Location) -> str | None:
    """Return the text of a control file, or None if it is absent."""
    found = storage(at).read(at)
    return None if found is None else found.decode("utf-8")


def put_text(at: Location, text: str) -> None:
    """Write a control file durably, replacing an earlier one."""
    storage(at).put(at, text.encode("utf-8"))


def _written_beside(at: Location, data: bytes, *, is_durable: bool) -> Location:
    temporary = at.with_name(f"{at.name}.{os.getpid()}{HALF_WRITTEN}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    return temporary
