"""What a conversion could not carry over, told once per kind with counts."""

from __future__ import annotations

from collections import Counter

FORMATS = {"yolo": "YOLO", "voc": "VOC", "coco": "COCO"}
_TEXTS = {
    "difficult-kept": "{n} difficult objects were written as ordinary ones, since {format} has no such mark",
    "difficult-dropped": "{n} difficult objects were left out",
    "crowd": "{n} crowd regions were left out, since {format} cannot store them",
    "area": "{n} areas were lost: they differ from the areas of the boxes, and {format} stores only boxes",
    "category": "{n} category ids were not kept, since {format} numbers classes by their order",
    "numbered": "{n} images got numbers from 1 as ids, as in COCO; their entries keep the names",
    "named": "{n} image files are named after their ids, not as before, since file names are the ids in {format}",
    "renamed": "{n} images were renamed, since the names of files must be valid and different",
    "stored": "{n} images were saved again, since {format} tools treat their EXIF orientation differently",
    "encoded": "{n} images were saved again, in a format that {format} tools read",
    "narrow": "{n} boxes narrower than a pixel were made a pixel wide, the smallest width that VOC can store",
    "beyond": "{n} boxes reach so far beyond their images that their numbers are not in 0 to 1; YOLO tools leave out such images",
    "cut": "{n} boxes reached far beyond their images and were cut at the edge, since YOLO's numbers go from 0 to 1",
    "outside": "{n} objects outside their images were left out",
    "order": "{n} splits are now ordered by id",
}


class Notes:
    """Counts by kind."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, count: int = 1) -> None:
        """So many more of a kind."""
        assert kind in _TEXTS, kind
        if count:
            self.counts[kind] += count

    def lines(self) -> list[str]:
        """A line for each kind, in a fixed order."""
        return [
            text.format(n=self.counts[kind], format=FORMATS[self.to])
            for kind, text in _TEXTS.items()
            if self.counts[kind]
        ]
