"""The list of loaders, one line each in :data:`LOADERS`, and the location of their data.

Ranks open a loader through its module in train.loaders, which imports torch. Flags, checks, the doctor and
the docs use this list, which does not. A data set is a folder of classes with images (``class/image.jpg``),
or a folder of TFRecord files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from profiling.errors import UserError


@dataclass(frozen=True)
class LoaderKind:
    """A loader, to all but the rank that opens it."""

    module: str  # holds ``build_loader`` (:mod:`train.loaders`)
    on_cpu: str = ""  # the loader to take where there is no GPU; "" where this one needs none
    reads_data: bool = True  # whether it reads the run's ``data``
    by_dali: bool = False


DALI_PACKAGE = "nvidia-dali-cuda130"
INSTALL_DALI = f"pip install {DALI_PACKAGE}"
_DALI = "train.loaders.dali"

LOADERS: dict[str, LoaderKind] = {
    "dali-gpu": LoaderKind(_DALI, "dali-cpu", by_dali=True),
    "dali-cpu-to-gpu": LoaderKind(_DALI, "dali-cpu", by_dali=True),
    "dali-cpu": LoaderKind(_DALI, by_dali=True),
    "pytorch": LoaderKind("train.loaders.pytorch"),
    "synthetic": LoaderKind("train.loaders.synthetic", reads_data=False),
}

_DEMO = Path("data", "demo")
MAKE_DATA = f"make a small set with: python -m train.data make {_DEMO}"
_SAID = "--data (in a sweep file: `data`), or its path in the site file"
_LACKS = {
    "images": "no images: class/image.jpg (TFRecord files: data_format tfrecord)",
    "tfrecord": "no TFRecord files (image folders: data_format images)",
}
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}


def data_folder(data: str | Path, data_format: str) -> Path:
    """Where a run's data are: ``data``, or its part for the format as ``train.data make`` lays it out."""
    folder = Path(data)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"data {folder.absolute()} is a file; give the folder that holds the data set")
        do = MAKE_DATA if folder.parts[-2:] == _DEMO.parts else f"correct {_SAID}"
        raise UserError(f"there is no data folder {folder.absolute()}; {do}")
    part = folder / ("images" if data_format == "images" else "tfrecord")
    return part if part.is_dir() else folder


def no_data_in(folder: Path, data_format: str) -> UserError:
    """The error of a folder that holds no data of a format."""
    return UserError(f"{folder} holds {_LACKS[data_format]}")


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
def check_data(data: str | Path, data_format: str) -> None:
    """Refuse a folder without data of a format. One image is enough."""
    try:
        folder = data_folder(data, data_format)
        if data_format == "images":
            found = any(any(images_below(path)) for path in folder.iterdir() if path.is_dir())
        else:
            found = bool(record_files(folder))
    except OSError as error:
        raise UserError(f"data: {data} cannot be read: {error.strerror}") from None
    if not found:
        raise no_data_in(folder, data_format)
