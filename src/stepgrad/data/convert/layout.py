"""Where the pictures of a new dataset lie: in the folder of the first split that has them, under names of their own."""

from __future__ import annotations

from collections.abc import Callable

from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.source import Source, SourcePicture
from stepgrad.data.yolo_yaml import SPLITS
from stepgrad.names import file_name, file_names

Stems = dict[SourcePicture, str]
"""The name of each picture's files, without suffix."""


def homes(source: Source) -> dict[SourcePicture, str]:
    """The folder of each picture: that of its first split, where train, val and test come first."""
    ordered = sorted(source.splits, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))
    home: dict[SourcePicture, str] = {}
    for name in ordered:
        for picture in source.splits[name]:
            home.setdefault(picture, file_name(name))
    return home


def stems_by_home(source: Source, home: dict[SourcePicture, str], notes: Notes) -> Stems:
    """Names that are unique in each folder."""
    stems: Stems = {}
    for folder in dict.fromkeys(home.values()):
        inside = [picture for picture in source.pictures if home[picture] == folder]
        stems |= dict(zip(inside, file_names([picture.name for picture in inside]), strict=True))
    _note(source, stems, notes)
    return stems


def stems_of_all(source: Source, home: dict[SourcePicture, str], notes: Notes, as_word: Callable[[str], str]) -> Stems:
    """Names that are unique in the whole dataset; where two splits use one name, all names begin with that of the split."""
    pictures = source.pictures
    names = [as_word(picture.name) for picture in pictures]
    if len(set(names)) != len(names):
        names = [f"{home[picture]}_{name}" for picture, name in zip(pictures, names, strict=True)]
    stems = dict(zip(pictures, file_names(names), strict=True))
    _note(source, stems, notes)
    return stems


def note_categories(source: Source, notes: Notes) -> None:
    """Count the category ids that a way back would not give: it numbers the classes from 1."""
    K = len(source.class_names)
    if source.category_ids not in (None, tuple(range(1, K + 1))):
        notes.add("category", K)


def _note(source: Source, stems: Stems, notes: Notes) -> None:
    notes.add("renamed", sum(stem != picture.name for picture, stem in stems.items()))
    if source.kind == "coco" and notes.to != "coco":
        named = sum(picture.path is not None and picture.path.stem != picture.name for picture in stems)
        notes.add("named", named)
