"""`stepgrad convert`: a dataset in another format, and what the format could not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.number_text import counted
from stepgrad.progress import RichProgress


def convert(
    data: Path,
    out: Path,
    *,
    to: Literal["yolo", "voc", "coco"],
    split: str | None = None,
    pictures: Literal["copy", "link"] = "copy",
    difficult: Literal["keep", "drop", "ignore"] = "keep",
    degenerate: Literal["error", "drop"] = "error",
    class_names: list[str] | None = None,
    images: Path | None = None,
    images_outside: bool = False,
    task: Literal["boxes", "masks", "keypoints", "oriented"] = "boxes",
) -> int:
    """Write a dataset in another format: YOLO, VOC or COCO.

    Boxes stay the same to a millionth of a pixel, and things that the format cannot store are printed. Masks, keypoints or
    oriented boxes are kept with --task; other things that stepgrad does not read are left out. The new folder is either complete
    or not there at all.

        stepgrad convert VOCdevkit/VOC2007 --to yolo voc07-yolo
        stepgrad convert data.yaml --to coco data-coco

    Args:
        data: A VOC folder, a COCO json file or folder, a YOLO data.yaml, a DOTA folder, or `shapes`.
        out: The new folder, which must not exist yet.
        to: The format to write.
        split: The split to write; by default all of them.
        pictures: How to add the images: as copies (`copy`), or as symbolic links to the originals (`link`).
        difficult: How to write VOC's difficult objects to COCO and YOLO, which have no such mark: as ordinary objects
            (`keep`), as regions of their class that are not judged (`ignore`), or not at all (`drop`).
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        class_names: The classes of a VOC folder, in the order of the labels.
        images: The folder of the images of a COCO file, if it is not in the usual place.
        images_outside: Whether file names and links in the data may lead out of its folder.
        task: What to write besides boxes, in COCO and YOLO: masks, keypoints or oriented (boxes); every object must have it.

    Returns:
        0; 130 after Ctrl-C, which leaves nothing behind.
    """
    from stepgrad.data.convert import convert as write

    with RichProgress(Terminal(stderr=True)) as progress, progress.counted("converting images") as show:
        done = write(
            data,
            out,
            to,
            split,
            class_names=class_names,
            images=images,
            pictures=pictures,
            difficult=difficult,
            degenerate=degenerate,
            images_outside=images_outside,
            task=task,
            progress=show,
        )
    console = Terminal()
    splits = ", ".join(f"{safe_text(name)} {count}" for name, count in done.splits.items())
    console.print(f"{counted(done.images, 'image')} in {safe_text(done.folder)} ({splits})", soft_wrap=True)
    for note in done.notes:
        console.print(f"[yellow]note:[/] {safe_text(note)}", soft_wrap=True)
    return 0
