"""A small COCO file with wrong labels, detections of it, and what a person would export after a review."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stepgrad.cli import main
from tests.data.builders import write_image

CLASSES = ("dog", "<cat>")
BOX = {"dog": [2, 2, 10, 10], "<cat>": [30, 2, 10, 10], "forgotten": [30, 25, 10, 10]}


def annotation(number: int, image: int, name: str, box: list[float]) -> dict[str, Any]:
    outline = {"segmentation": [[2, 2, 12, 2, 12, 12]], "area": box[2] * box[3], "iscrowd": 0}
    return {"id": number, "image_id": image, "category_id": 7 * CLASSES.index(name) + 3, "bbox": box, **outline}


def write_wrong_labels(tmp_path: Path) -> Path:
    """A label is missing in the first image, of a wrong class in the second, badly drawn in the third, spurious in the last."""
    for number in (1, 2, 3, 4):
        write_image(tmp_path / f"images/{number}.jpg", seed=number)
    labels = [
        annotation(11, 1, "dog", BOX["dog"]),
        annotation(12, 2, "dog", BOX["dog"]),
        annotation(13, 2, "dog", BOX["<cat>"]),
        annotation(14, 3, "dog", [2, 9, 10, 10]),
        annotation(15, 3, "<cat>", BOX["<cat>"]),
        annotation(16, 4, "<cat>", [2, 25, 4, 4]),
    ]
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 60, "height": 40, "flickr": "x"} for n in (1, 2, 3, 4)]
    categories = [{"id": 7 * c + 3, "name": name} for c, name in enumerate(CLASSES)]
    file = tmp_path / "labels.json"
    content = {"info": {"year": 2016}, "images": images, "annotations": labels, "categories": categories}
    file.write_text(json.dumps(content))
    found = [
        *((1, 3, BOX["forgotten"], 0.99), (2, 10, BOX["<cat>"], 0.9), (3, 3, BOX["dog"], 0.95)),
        *((1, 3, BOX["dog"], 0.9), (2, 3, BOX["dog"], 0.85), (3, 10, BOX["<cat>"], 0.8)),
    ]
    rows = [dict(zip(("image_id", "category_id", "bbox", "score"), row, strict=True)) for row in found]
    (tmp_path / "found.json").write_text(json.dumps(rows))
    return file


def listed(data: Path, *words: str) -> int:
    return main(["doctor", str(data), "--detections", str(data.with_name("found.json")), *words])


def review_of(page: Path, *accepted: str) -> dict[str, Any]:
    """What the page exports when the changes of these kinds are accepted."""
    (block,) = re.findall(r'id="review">(.*?)</script>', page.read_text(), re.DOTALL)
    content = json.loads(block)
    content.pop("pictures")
    for change in content["changes"]:
        for extra in ("picture", "found", "now"):
            change.pop(extra)
        change["accepted"] = change["kind"] in accepted
    return dict(content)
