"""What a page says of files: a report is sent to others, to whom this machine's folders mean nothing."""

import re
from collections.abc import Iterable
from pathlib import Path


def portable(text: str, folders: Iterable[Path]) -> str:
    """The text with the absolute paths of these folders, and in them, from the folder's name on."""
    for folder in folders:
        for path in dict.fromkeys((folder, folder.resolve())):
            if path.is_absolute() and path.name:
                # Not of a folder whose name only begins like this one's.
                text = path.name.join(re.split(rf"{re.escape(str(path))}(?!\w)", text))
    return text
