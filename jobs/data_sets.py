"""Are there data where a run looks for them? What is known of a data set without reading its images.

A data set is a folder of classes with images (``class/image.jpg``), or a folder of TFRecord files.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from profiling.errors import UserError

_DEMO = Path("data", "demo")
MAKE_DATA = f"make a small set with: python -m train.data make {_DEMO}"
_OF_A_RANK = "--data (in a sweep file: `data`), or its path in the site file"  # a rank cannot know which
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}


def data_folder(data: str | Path, data_format: str, said: str = _OF_A_RANK) -> Path:
    """Where a run's data are: ``data``, or its part for the format as ``train.data make`` lays it out.

    Args:
        said: where the user says which, as it follows "correct".

    Raises:
        UserError: it is no folder.
    """
    folder = Path(data)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"data {folder.absolute()} is a file; give the folder that holds the data set")
        do = MAKE_DATA if folder.parts[-2:] == _DEMO.parts else f"correct {said}"
        raise UserError(f"there is no data folder {folder.absolute()}; {do}")
    part = folder / ("images" if data_format == "images" else "tfrecord")
    return part if part.is_dir() else folder


def no_data_in(folder: Path, data_format: str) -> UserError:
    """What is said of a folder that holds no data of a format."""
    if data_format == "images":
        return UserError(
            f"no images in {folder}: it should hold class/image.jpg (TFRecord files: data_format tfrecord)"
        )
    return UserError(f"no TFRecord files in {folder} (image folders: data_format images)")


def images_below(folder: Path) -> Iterator[Path]:
    """A class's images in name order."""
    for place, folders, files in os.walk(folder):
        folders.sort()  # in place: the order in which os.walk goes on
        images = (name for name in sorted(files) if Path(name).suffix.lower() in IMAGE_SUFFIXES)
        yield from (Path(place, name) for name in images)


def record_files(folder: Path) -> list[Path]:
    """The TFRecord files of a folder in name order: all but indexes and descriptions."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".idx", ".json") and not path.name.startswith(".")
    )


@cache
def why_no_data(data: str | Path, data_format: str, said: str = _OF_A_RANK) -> str:
    """Why there are no data of a format, as a rank would say it; "" if there are. One image is enough."""
    try:
        folder = data_folder(data, data_format, said)
        if data_format == "images":
            found = any(any(images_below(path)) for path in folder.iterdir() if path.is_dir())
        else:
            found = bool(record_files(folder))
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"data: {data} cannot be read: {error.strerror}"
    return "" if found else str(no_data_in(folder, data_format))
