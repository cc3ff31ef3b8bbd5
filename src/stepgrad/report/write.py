"""report.json, report.html and plots/ of a run folder."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from stepgrad.data.base import DetectionDataset
from stepgrad.evaluation.records import Evidence
from stepgrad.files import write_whole
from stepgrad.metric.protocol import Protocol
from stepgrad.names import file_name
from stepgrad.report.content import ComparisonRow, Content, Picture, gather
from stepgrad.report.draw import draw_verdicts
from stepgrad.report.history import Line
from stepgrad.report.page import EncodedPicture, plots, render

PICTURE_BYTES = 1_000_000
"""All pictures of a page together, as JPEG; base64 makes them a third larger."""
_QUALITIES = ((560, 85), (480, 80), (400, 72), (320, 65), (240, 55), (160, 45))
"""Longest side in pixels and JPEG quality, from the best downward."""
_LEAST_BYTES = 0.1
"""Of a pixel in a JPEG of a photograph."""


def write_report(
    folder: Path | str,
    *,
    title: str,
    config: Mapping[str, Any],
    history: Sequence[Line],
    evidence: Evidence,
    protocols: Sequence[str | Protocol],
    dataset: DetectionDataset,
    comparison: Sequence[ComparisonRow] = (),
    shown: int = 6,
) -> Path:
    """Write report.json, plots/*.svg and report.html, one file that needs no other; returns the path of the page.

    Args:
        folder: made if it does not exist.
        title: the heading of the page.
        config: nested keys and values, as they are to be read.
        history: the lines of log.jsonl.
        evidence: detections and objects, continuous boxes: `Evaluator.evidence()`.
        protocols: the first is the one by which images and classes are judged; AP is reported under all.
        dataset: where the pictures come from.
        comparison: ways of training to be set side by side, the first being what the others are measured against.
        shown: so many of the best images and so many of the worst.
    """
    folder = Path(folder)
    content = gather(title, config, history, evidence, protocols, dataset.name, comparison, shown)
    page = render(content.numbers, _pictures(content, evidence, dataset))
    return write_files(folder, content.numbers, plots(content.numbers), page)


def write_files(folder: Path, numbers: Mapping[str, Any], drawn: Mapping[str, str], page: str) -> Path:
    """The numbers as report.json, the charts below plots/, the page as report.html; returns the path of the page."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", text.encode("utf-8", "replace"))
    for name, chart in drawn.items():
        write_whole(folder / "plots" / file_name(name), chart.encode())
    write_whole(folder / "report.html", page.encode())
    return folder / "report.html"


def _pictures(content: Content, evidence: Evidence, dataset: DetectionDataset) -> dict[str, list[EncodedPicture]]:
    wanted = [picture for pictures in content.pictures.values() for picture in pictures]
    shown = encode_pictures(wanted, evidence, dataset)
    best = len(content.pictures["best"])
    return {"best": shown[:best], "worst": shown[best:]}


def encode_pictures(wanted: Sequence[Picture], evidence: Evidence, dataset: DetectionDataset) -> list[EncodedPicture]:
    """All pictures of a page, at the best quality that keeps it small; `evidence` gives the names."""
    images = [dataset.image(dataset.index_of(evidence.image_ids[picture.position])) for picture in wanted]
    drawn: list[tuple[bytes, tuple[int, int]]] = []
    for side, quality in _QUALITIES:
        if len(wanted) * side**2 * _LEAST_BYTES > PICTURE_BYTES and side > _QUALITIES[-1][0]:
            continue  # hopeless, not worth the drawing
        drawn = [
            _jpeg(image, picture, evidence.class_names, side, quality)
            for image, picture in zip(images, wanted, strict=True)
        ]
        if sum(len(data) for data, _ in drawn) <= PICTURE_BYTES:
            break
    return [
        EncodedPicture(
            "data:image/jpeg;base64," + base64.b64encode(data).decode(), size, _alt(picture, evidence.class_names)
        )
        for (data, size), picture in zip(drawn, wanted, strict=True)
    ]


def _jpeg(
    image: Image.Image, picture: Picture, class_names: Sequence[str], side: int, quality: int
) -> tuple[bytes, tuple[int, int]]:
    """The picture scaled, its boxes drawn, compressed."""
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    boxes = [[value * scale for value in mark.box] for mark in picture.marks]
    named = [(class_names[mark.label], mark.score) for mark in picture.marks]
    texts = [f"missed {name}" if score is None else f"{name} {score:.2f}" for name, score in named]
    scaled = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    drawn = draw_verdicts(scaled, boxes, texts, [mark.verdict for mark in picture.marks])
    data = BytesIO()
    drawn.save(data, "JPEG", quality=quality, subsampling=0, optimize=True)
    return data.getvalue(), size


def _alt(picture: Picture, class_names: Sequence[str]) -> str:
    """The picture in words."""
    by_verdict = {
        verdict: ", ".join(class_names[mark.label] for mark in picture.marks if mark.verdict == verdict)
        for verdict in ("right", "wrong", "missed")
    }
    return "; ".join(f"{verdict}: {names}" for verdict, names in by_verdict.items() if names) or "no boxes"
