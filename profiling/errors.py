"""Errors for users: one line that says what is wrong, where, and what to do; never a traceback."""

import difflib
import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What is wrong with the place to write to, not with the program.
_USERS_PLACE = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ENAMETOOLONG,
)  # fmt: skip

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free some space or choose another place"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; change its permissions or choose another place"),
}

EXIT_DONE = 0
EXIT_FAILED = 1  # done, but points failed or a comparison regressed
EXIT_WRONG_USE = 2  # wrong use or input
EXIT_INTERRUPTED = 130  # Ctrl-C, as shells have it
RANK_0_FIRST_S = 5.0


class UserError(Exception):
    """Something the user can put right. The message is one line: what is wrong, where, what to do."""

    exit_code = EXIT_WRONG_USE


class Unsuccessful(UserError):
    """Nothing was wrong with the command, and it did not succeed."""

    exit_code = EXIT_FAILED


class Mistakes(UserError):
    """Several things that the user can put right, all found at once: a line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(dict.fromkeys(lines))


class Interrupted(UserError):
    """The user has stopped what can be resumed: the message says how."""

    exit_code = EXIT_INTERRUPTED


# A step trains on one batch: options count batches, answers are of steps.
_SYNONYMS = {
    **{"steps": "batches", "batches": "steps", "batch": "step", "batch_index": "step"},
    "batchsize": "batch",  # and not what it is spelled like: --batches counts steps
    "ranks": "world_size",
    "pass": "direction",  # the heading of that column
    **dict.fromkeys(("job", "id"), "run"),  # a heading of that column; what is in it
}


def did_you_mean(word: str, options: Iterable[str], see: str = "") -> str:
    """``"; did you mean 'nodes'?"`` for the nearest option, else a list of them, or, if long, ``see``."""
    names = [str(option) for option in options]
    longer = [name for name in names if name.startswith((f"{word}-", f"{word}_"))]
    if 1 < len(longer) <= _SEVERAL and word not in _SYNONYMS:
        return f"; did you mean {', '.join(map(repr, longer[:-1]))} or {longer[-1]!r}?"
    if near := nearest(str(word), names):
        return f"; did you mean {near!r}?"
    return f"; see {see}" if see and len(names) > _LONG_LIST else f"; one of: {', '.join(names)}"


def did_you_mean_file(path: Path, files: Sequence[Path]) -> str:
    """As :func:`did_you_mean`, of files in one folder by their names; of many, only how many they are."""
    if near := nearest_file(path, files):
        return f"; did you mean {str(near)!r}?"
    if len(files) > _LONG_LIST:
        return f"; {files[0].parent} has {len(files)} others: ls {shlex.quote(str(files[0].parent))}"
    return f"; one of: {', '.join(map(str, files))}"


def nearest_file(path: Path, files: Iterable[Path]) -> Path | None:
    """The file or folder whose name is nearest; of several of that name the first."""
    by_name = {file.name.removesuffix(".yaml"): file for file in reversed(list(files))}
    near = nearest(path.name.removesuffix(".yaml"), list(by_name))
    return by_name[near] if near else None


def nearest(word: str, names: Sequence[str]) -> str | None:
    """The option that ``word`` is, cut short or misspelled; else one of the same words; else one like it."""
    word = word.lstrip("-")
    bare = {name.lstrip("-"): name for name in names}
    if word not in bare and (synonym := _SYNONYMS.get(word)) in bare:
        return bare[synonym]

    def parts(name: str) -> set[str]:
        return set(filter(None, re.split(r"[-_]+", name.lower())))

    related = [
        name for name in bare if parts(name) and (parts(name) <= parts(word) or parts(word) <= parts(name))
    ]
    longer = [name for name in bare if word and name.startswith(word)]
    for candidates, cutoff in ((longer, 0.0), (list(bare), _TYPO), (related, 0.0), (list(bare), _SIMILAR)):
        if near := difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff):
            return bare[near[0]]
    return None


def typo_of(word: str, options: Iterable[str]) -> str | None:
    """The option that ``word`` is but for a typing error."""
    near = difflib.get_close_matches(word, list(options), n=1, cutoff=_TYPO)
    return near[0] if near and near[0] != word else None


_SEVERAL = 3
_LONG_LIST = 10  # a reader does not look through more names for the right one
# Similarity of words (difflib): one is the other with a typing error; one may be meant by the other.
_TYPO, _SIMILAR = 0.85, 0.6


@contextmanager
def reported_by_rank_0(rank: int) -> Iterator[None]:
    """An error that every rank finds is printed once, by rank 0; the others end with its exit code."""
    try:
        yield
    except UserError as error:
        if rank == 0:
            raise
        # A launcher ends all ranks when the first has failed: that should be the one that says why.
        time.sleep(RANK_0_FIRST_S)
        sys.exit(error.exit_code)


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's ``main`` and leave with its exit code; known errors become one line on stderr."""
    try:
        code = main() or EXIT_DONE
        sys.stdout.flush()
    except UserError as error:
        for line in error.lines if isinstance(error, Mistakes) else [str(error)]:
            _complain(line)
        code = error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) went away: nothing to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_DONE
    except OSError as error:
        if error.errno not in _USERS_PLACE:
            raise
        place = str(error.filename or "the output").removesuffix(".partial")
        _complain(f"{error.strerror}: {place}" + _REMEDIES.get(error.errno or 0, "; choose another place"))
        code = EXIT_WRONG_USE
    sys.exit(code)


def printable(text: str, instead: str = "?") -> str:
    """Text without line breaks and control characters: names of files and kernels are anybody's."""
    return "".join(sign if sign.isprintable() else instead for sign in text)


def _complain(message: str) -> None:
    print(f"scaleprof: error: {printable(' '.join(message.split()))}", file=sys.stderr)
