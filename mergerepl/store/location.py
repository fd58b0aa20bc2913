"""The place of a table, a folder or a file of a replica: one type for folders of this machine and for object stores.

Code inside a replica handles places only as `Location`: it joins and compares them, and the functions of
`store.storage` and `delta.tables` read and write there. This module touches no disk and loads no library.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import quote

from mergerepl.errors import StoreError

FILE = "file"


@dataclass(frozen=True, order=True, slots=True)
class Location:
    """A place in a folder (`scheme` is `file`, `bucket` is empty, `prefix` is the path) or in a bucket of a store.

    `str()` is the text of messages: the plain path of a folder, the URI of a store.
    """

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Location:
        """Return the location of a path of this machine, or of the URI of a store, as `str()` writes both.

        `roots.parse` has checked what a user wrote, and resolved links.
        """
        if isinstance(path, cls):
            return path
        text = os.fspath(path)
        if not text:
            raise ValueError("a location needs a path")
        if (found := STORE_URI.match(text)) is not None:
            return cls(_SCHEMES[found[1]], found[2], _key(found[3] or ""))
        return cls(FILE, "", _plain(text))

    def __truediv__(self, name: str) -> Location:
        return self.join(name)

    def join(self, *names: str) -> Location:
        """Join names to this place."""
        joined = posixpath.join(self.prefix, *names)
        return Location(self.scheme, self.bucket, _plain(joined) if self.is_local else _key(joined))

    def with_name(self, name: str) -> Location:
        """Return the place of another name in the same folder."""
        return self.parent / name

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.prefix)

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def suffix(self) -> str:
        """The last suffix of the name with its dot, or an empty text."""
        return posixpath.splitext(self.name)[1]

    @property
    def parent(self) -> Location:
        """The parent folder; the top is its own parent."""
        return Location(
            self.scheme, self.bucket, posixpath.dirname(self.prefix) or ("." if self.is_local else "")
        )

    @property
    def parents(self) -> tuple[Location, ...]:
        """The folders above this place, the nearest one first."""
        above = self.parent
        return () if above == self else (above, *above.parents)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the path from its top."""
        return tuple(part for part in self.prefix.split("/") if part)

    @property
    def is_local(self) -> bool:
        """True for a place on this machine, False for one in an object store."""
        return self.scheme == FILE

    @property
    def is_absolute(self) -> bool:
        """True if the path of a folder begins at the root of its file system. Every place in a store does."""
        return self.scheme != FILE or self.prefix.startswith("/")

    def is_below(self, other: Location) -> bool:
        """True if this place is inside another one. Links are not followed."""
        # By text: to make each parent takes as long as opening a small table, where many places are compared.
        if (self.scheme, self.bucket) != (other.scheme, other.bucket) or self.prefix == other.prefix:
            return False
        if other.prefix in ("", "."):
            return self.scheme != FILE or not self.prefix.startswith("/")
        return self.prefix.startswith(other.prefix.rstrip("/") + "/")

    def is_in(self, other: Location) -> bool:
        """True if this place is another one, or inside it."""
        return self == other or self.is_below(other)

    def relative_to(self, other: Location) -> str:
        """Return the path to this place from another one at or above it.

        Raises: ValueError if it is outside.
        """
        if not self.is_in(other):
            raise ValueError(f"'{self}' is not below '{other}'")
        return posixpath.relpath(self.prefix, other.prefix)

    @property
    def uri(self) -> str:
        """The URI, for delta-rs and object stores."""
        if self.scheme == FILE:
            return f"file://{quote(self.prefix)}"
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def spark_uri(self) -> str:
        """The name that Spark reads and writes: a plain path for a folder.

        Raises: StoreError if Spark does not work there.
        """
        if self.scheme == FILE:
            return self.prefix
        self.require_spark()
        return f"{_OF_HADOOP[self.scheme]}://{self.bucket}/{self.prefix}".rstrip("/")

    def require_spark(self) -> None:
        """Check that Spark works at this place.

        Raises: StoreError.
        """
        if self.scheme == AZ:
            raise StoreError(
                f"'{self.uri}' is in Azure's store, where only small sets travel so far, and this step needs Spark, which "
                "does not work there. Use S3 or a folder for these tables.",
                location=self.uri,
            )

    def __fspath__(self) -> str:
        """Return the path of a place on this machine.

        Raises: StoreError if it is in an object store.
        """
        if self.scheme != FILE:
            raise StoreError(
                f"'{self.uri}' is in an object store, and this step works on folders of this machine only.",
                location=self.uri,
            )
        return self.prefix

    def __str__(self) -> str:
        return self.prefix if self.scheme == FILE else self.uri


S3, AZ = "s3", "az"
STORE_URI = re.compile(r"(s3a?|az)://([^/]+)(?:/(.*))?\Z", re.DOTALL)
"""Scheme, bucket (Azure: container) and key of a place in a store; `s3a` is Hadoop's name for the same places."""
_SCHEMES = {"s3": S3, "s3a": S3, "az": AZ}
_OF_HADOOP = {S3: "s3a"}


def _key(path: str) -> str:
    """Return a key without empty segments; `.` and `..` mean nothing in a store (`roots.parse` refuses them)."""
    return "/".join(part for part in path.split("/") if part)


def _plain(path: str) -> str:
    """Return a path without empty and `.` segments, as `pathlib` writes it. `..` stays: a link may lead elsewhere."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."
