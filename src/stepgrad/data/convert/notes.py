"""What a conversion could not carry over, told once per kind with counts."""

from __future__ import annotations

from collections import Counter

FORMATS = {"yolo": "YOLO", "voc": "VOC", "coco": "COCO"}
_TEXTS = {
    "difficult-kept": "{n} objects are difficult, which {format} cannot say: written as ordinary ones",
    "difficult-dropped": "{n} difficult objects are left out",
    "crowd": "{n} crowd regions are left out: {format} has no place for them",
    "area": "{n} areas are not those of their boxes, which is all that {format} has",
    "category": "{n} category ids are not kept: {format} numbers its classes by their order",
    "numbered": "{n} images are numbered from 1, as COCO does; their entries keep the names",
    "named": "{n} images are called by their ids, not by the names of their files, since ids are names in {format}",
    "renamed": "{n} images have another name, which files and lists can have",
    "stored": "{n} images were stored anew, since their EXIF orientation means another thing in {format}",
    "encoded": "{n} images were stored anew in a format that {format} tools read",
    "narrow": "{n} boxes are narrower than a pixel, the least that VOC can say: written a pixel wide",
    "beyond": "{n} boxes reach so far beyond their images that YOLO tools leave the images out: written a little wide",
    "cut": "{n} boxes reached far beyond their images: cut at the edge, since YOLO's numbers go from 0 to 1",
    "outside": "{n} objects lay outside their images: left out",
    "order": "{n} splits are in another order, by id",
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
