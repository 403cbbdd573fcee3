"""Create a small photo-like data set, or the indexes of TFRecord files.

python -m train.data make data/demo            images, and TFRecord files with the same images
python -m train.data index FILE.tfrecord ...   DALI's index of each file, next to it (FILE.idx)
"""

import colorsys
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from jobs.run_fields import make_parser
from jobs.store import remove
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from train.loaders import dataset
from train.models import CLASSES

WIDTH, HEIGHT, QUALITY = 500, 375, 93
RECORD_FILES = 2
_DESCRIPTION = "dataset.json"


def picture(index: int, label: int, classes: int, seed: int) -> bytes:
    """A photo-like JPEG of about 100 KB; its colour and its shape tell its class.

    Noise of several sizes has a photo's statistics, so that decoding costs as much.
    """
    from PIL import Image, ImageDraw

    generator = np.random.default_rng([seed, index])
    colour = [255 * value for value in colorsys.hsv_to_rgb(label / classes, 0.5, 0.6)]
    canvas = np.full((HEIGHT, WIDTH, 3), colour, np.float32)
    for cell, strength in ((100, 36), (25, 20), (6, 14), (1, 14)):
        size = (-(-WIDTH // cell), -(-HEIGHT // cell))
        noise = generator.normal(0, strength, (size[1], size[0], 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[:, :, channel]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            canvas[:, :, channel] += np.asarray(layer)
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = generator.integers(0, WIDTH), generator.integers(0, HEIGHT)
        radius = int(generator.integers(20, 70))
        corners = 3 + label % 6
        fill = tuple(int(value) for value in generator.integers(0, 255, 3))
        draw.regular_polygon((int(x), int(y), radius), corners, int(generator.integers(0, 360)), fill)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def make(folder: Path, images: int, classes: int, seed: int) -> str:
    """Make the set in ``folder``, whole or not at all, if it holds nothing else; what to tell the user."""
    description = json.dumps({"images": images, "classes": classes, "seed": seed})
    existing = folder / _DESCRIPTION
    if existing.is_file() and existing.read_text(errors="replace") == description:
        return f"{folder} already exists"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} contains something else; choose another folder, or remove it")
    partly = folder.with_name(folder.name + ".partial")
    if partly.exists():
        remove(partly)
    partly.mkdir(parents=True)  # a place where nothing can be written is found before the pictures are drawn
    labels = [index % classes for index in range(images)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy and Pillow work side by side
        drawn = pool.map(partial(picture, classes=classes, seed=seed), range(images), labels)
        encoded = list(track(drawn, "pictures", images, console=Console(stderr=True)))
    for index, (content, label) in enumerate(zip(encoded, labels, strict=True)):
        place = partly / "images" / f"class{label:03d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index:06d}.jpg").write_bytes(content)
    _write_records(partly / "tfrecord", encoded, labels)
    (partly / _DESCRIPTION).write_text(description)
    if folder.exists():
        folder.rmdir()
    partly.rename(folder)
    return f"made {folder}: images: {images}, classes: {classes}"


def _write_records(folder: Path, encoded: list[bytes], labels: list[int]) -> None:
    folder.mkdir(parents=True)
    pairs = list(zip(encoded, labels, strict=True))
    for number in range(RECORD_FILES):
        path = folder / f"part-{number:05d}-of-{RECORD_FILES:05d}.tfrecord"
        # ImageNet's labels start at 1 in TFRecord files.
        examples = (
            dataset.encode_example({dataset.IMAGE: image, dataset.LABEL: label + 1})
            for image, label in pairs[number::RECORD_FILES]
        )
        dataset.write_records(path, examples)
        dataset.write_index(path)


def index(files: list[Path]) -> int:
    """Write an index beside each file; returns how many could not be indexed (each is said)."""
    failed = 0
    for path in files:
        try:
            if not path.is_file():
                raise UserError(f"there is no file {path}")
            count = dataset.write_index(path)
            print(f"{path}: {count} records")
        except UserError as error:
            failed += 1
            print(f"scaleprof: error: {error}", file=sys.stderr)
    return failed


def main() -> int:
    parser = make_parser("python -m train.data", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="make a small data set")
    maker.add_argument("folder", type=Path)
    maker.add_argument("--images", type=int, default=256, help="number of images [256]")
    maker.add_argument("--classes", type=int, default=4, help="number of classes [4]")
    maker.add_argument("--seed", type=int, default=0, help="seed of the pictures [0]")
    indexer = commands.add_parser("index", help="write DALI's index of TFRecord files")
    indexer.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "index":
        return EXIT_FAILED if index(arguments.files) else EXIT_DONE
    if not 1 <= arguments.classes <= min(arguments.images, CLASSES):
        raise UserError(
            f"{arguments.images} images of {arguments.classes} classes: each class needs one, and a "
            f"model has {CLASSES} at most"
        )
    print(make(arguments.folder, arguments.images, arguments.classes, arguments.seed))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
