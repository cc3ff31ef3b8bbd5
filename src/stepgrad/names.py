"""Names that came from data (classes, image ids, paths) as file names, as words of a line, and on a terminal.

A name may hold anything: slashes, line ends, escape sequences, letters that the file system does not know. Each way of
using it has one function here, so that no name leaves its folder, breaks its line or commands the terminal.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from stepgrad.errors import InputError

ImageId = str | int
"""By which a dataset and its files of detections know an image."""
LONGEST = 180
"""Bytes of a file name; file systems take 255, and writers put something before and behind."""
_UNSAFE = frozenset('%/\\:*?"<>|')
"""`%` begins a quoted character; the others mean something to some file system."""
_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³"})
"""Windows opens a device under these names, whatever suffix follows."""
_JOINERS = "\u200c\u200d"
"""Persian words and families of emoji need these two; the other invisible characters serve only to deceive."""
_EMPTY, _CUT = "%", "%~"  # neither is ever the beginning of a quoted character


def file_name(name: str, quoted: int = 0) -> str:
    r"""A safe file name, from which `name_in` gives the name back; ordinary names stay as they are.

    What is unsafe is percent-quoted. Names that are too long are cut and end in a digest: those do not come back, but
    still every name has a file name of its own.

    Args:
        name: any text.
        quoted: so many characters at the beginning are quoted even if they are safe.

    >>> file_name("dining table"), file_name("Käfer"), file_name("Cabinet/shelf"), file_name("../a\n"), file_name("NUL")
    ('dining table', 'Käfer', 'Cabinet%2Fshelf', '%2E.%2Fa%0A', '%4EUL')
    """
    if not name:
        return _EMPTY
    name = as_text(name)
    start = max(quoted, name[0] == "." or name.partition(".")[0].rstrip().lower() in _DEVICES)
    end = len(name.rstrip(". "))  # Windows drops dots and spaces at the end
    text = "".join(c if start <= i < end and _is_safe(c) else _percent(c) for i, c in enumerate(name))
    if len(text.encode()) <= LONGEST:
        return on_disk(text)
    digest = hashlib.sha256(to_utf8(name)).hexdigest()[:32]
    room = LONGEST - len(_CUT) - len(digest) - 4  # so that the cut name, quoted in its turn, is not cut again
    kept = text.encode()[:room].decode("utf-8", "ignore")
    return on_disk(f"{kept}{_CUT}{digest}")


def file_names(names: Sequence[str]) -> list[str]:
    """A file name for each, different even where the file system takes capital and small letters for the same.

    >>> file_names(["Dog", "dog", "cat"])
    ['Dog', '%64og', 'cat']
    """
    if len(set(names)) != len(names):
        raise InputError(f"Expected each name once but got {list(names)}.")
    taken: set[str] = set()
    chosen = []
    for name in names:
        tried = (file_name(name, quoted) for quoted in range(len(name) + 1))
        free = next(
            text for text in tried if _folded(text) not in taken
        )  # with all of it quoted, no other name is like it
        taken.add(_folded(free))
        chosen.append(free)
    return chosen


def name_in(text: str) -> str:
    """The name that `file_name` or `word` made this of; what is quoted more than necessary is understood too.

    >>> name_in("Cabinet%2Fshelf"), name_in("K%C3%A4fer"), name_in("50%")
    ('Cabinet/shelf', 'Käfer', '50%')
    """
    return "" if text == _EMPTY else _from_utf8(unquote_to_bytes(to_utf8(text)))


def key_of(name: str) -> str:
    """What `name_in` gives for the file of a name: the name itself unless it was cut."""
    return name_in(file_name(name))


def word(name: str) -> str:
    r"""A name as one word of a line; ordinary ones stay as they are, and `name_in` gives it back.

    >>> word("2008_000007"), word("50%"), word("IMG 7\n"), word("IMG%207")
    ('2008_000007', '50%', 'IMG%207%0A', 'IMG%25207')
    """
    if not name:
        raise InputError("Expected an image id but got an empty one, which cannot be written as a line of text.")
    is_word = not any(c.isspace() or _is_hidden(c) for c in name)
    if is_word and name_in(name) == name:
        return name
    return "".join(_percent(c) if c.isspace() or c == "%" or _is_hidden(c) else c for c in name)


def visible(text: object) -> str:
    r"""The text with every character shown that would command a terminal, end the line or hide.

    >>> print(visible("dog\x1b[31m\n"), visible("Köln 🐶"))
    dog\x1b[31m\n Köln 🐶
    """
    return "".join(c.encode("unicode_escape").decode() if _is_hidden(c) else c for c in as_text(str(text)))


def as_text(name: str) -> str:
    """A name as the system gives it, as text: in the C locale Python has two odd characters for an `ö` on disk.

    >>> as_text("K\\udcc3\\udcb6ln")
    'Köln'
    """
    return _from_utf8(to_utf8(name))


def on_disk(text: str) -> str:
    """Text as the file system of this locale takes it, in UTF-8 where the locale lacks a letter: undoes `as_text`."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # the C locale, for one, takes ASCII alone
        return os.fsdecode(to_utf8(text))
    return text


def from_home(path: str | Path) -> Path:
    """A path as the disk has it, with `~` replaced by the home folder; that of an unknown user stays as it is.

    >>> from_home("~nobody of this name/a.jpg").as_posix(), from_home("a~b").as_posix()
    ('~nobody of this name/a.jpg', 'a~b')
    """
    return Path(os.path.expanduser(on_disk(str(path))))  # pathlib's own raises RuntimeError for an unknown user


def to_utf8(text: str) -> bytes:
    """The bytes of any text, even of half characters (surrogates), which are the system's own bytes or come from JSON."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _from_utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def _percent(c: str) -> str:
    return "".join(f"%{byte:02X}" for byte in to_utf8(c))


def _is_hidden(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in _JOINERS


def _is_safe(c: str) -> bool:
    return c not in _UNSAFE and not _is_hidden(c)


def _folded(text: str) -> str:
    """Equal for names that some file system takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def is_number(name: str) -> bool:
    """Whether a name is a whole number that other formats can have as an id.

    >>> is_number("000123"), is_number("a1"), is_number("²")
    (True, False, False)
    """
    return name.isascii() and name.isdigit() and len(name) <= 18
