"""Parquet files of a folder or of a store, for Arrow: each is written once, under a name of its own."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mergerepl.store.location import Location
from mergerepl.store.storage import files_once_written, is_local, make_folder, put_once_written, source_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

Bounds = Mapping[str, tuple[int | None, int | None]]
"""Column -> the bound that its values must exceed, and their maximum (None: no bound)."""


def may_hold(file: dict[str, Any], bounds: Bounds) -> bool:
    """Whether a file may have rows within the bounds; it has min.<column> and max.<column>."""
    for name, (above, most) in bounds.items():
        lowest, highest = file.get(f"min.{name}"), file.get(f"max.{name}")
        if above is not None and highest is not None and highest <= above:
            return False
        if most is not None and lowest is not None and lowest > most:
            return False
    return True


def parquet_source(file: Location) -> Any:
    """Return what Arrow reads a file from: its path, or its bytes in memory.

    Raises: FileNotFoundError if an object is absent.
    """
    import pyarrow as pa

    found = source_of(file)
    return pa.BufferReader(found) if isinstance(found, bytes) else found


def parquet_dataset(files: Sequence[Location], format_: "ds.ParquetFileFormat | None" = None) -> "ds.Dataset":
    """Return the rows of files (at least one), to be read by batches."""
    import pyarrow.dataset as ds

    used = format_ or ds.ParquetFileFormat()
    if all(map(is_local, files)):
        return ds.dataset([str(file) for file in files], format=used)
    fragments = [used.make_fragment(parquet_source(file)) for file in files]
    return ds.FileSystemDataset(fragments, fragments[0].physical_schema, used)


def folder_dataset(folder: Location, format_: "ds.ParquetFileFormat | None" = None) -> "ds.Dataset":
    """Return the rows of the files of a folder.

    Raises: FileNotFoundError if the file is absent.
    """
    import pyarrow.dataset as ds

    if is_local(folder):
        return ds.dataset(folder, format=format_ or "parquet")
    files = files_once_written(folder)
    if not files:
        raise FileNotFoundError(f"'{folder}' holds no file")
    return parquet_dataset(files, format_)


def has_nan(file: Location, columns: Sequence[str]) -> bool:
    """Whether a file has NaN in one of some columns of floats. Reads these columns, a row group at a time."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if not columns:
        return False
    with pq.ParquetFile(parquet_source(file)) as opened:
        groups = (opened.read_row_group(i, columns=[*columns]) for i in range(opened.num_row_groups))
        return any(pc.any(pc.is_nan(column)).as_py() for group in groups for column in group.columns)


def write_parquet(rows: "pa.Table", at: Location) -> None:
    """Write rows to a file, and make its folder."""
    import pyarrow.parquet as pq

    if is_local(at):
        make_folder(at.parent)
        pq.write_table(rows, at)
        return
    written = BytesIO()
    pq.write_table(rows, written)
    put_once_written(at, written.getvalue())
