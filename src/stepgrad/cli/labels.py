"""`stepgrad doctor DATA --detections`: labels that are likely wrong, a page to review them, and a file with what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from stepgrad.cli.judged import read
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.data import COCODataset, load_dataset
from stepgrad.data.review import apply_review
from stepgrad.errors import ConfigError
from stepgrad.evaluation.label_errors import KINDS, find_label_errors
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import get_protocol
from stepgrad.number_text import counted, per_cent

if TYPE_CHECKING:
    from stepgrad.evaluation.label_errors import LabelError
    from stepgrad.evaluation.records import Evidence

UNSEEN = "The detections must come from a model that did not train on these labels: it would repeat their errors."
CONVERT = "Only COCO files can be changed: to apply a review, `stepgrad convert DATA --to coco FOLDER` first, and review that."


def show_label_errors(
    data: Path,
    detections: Path,
    split: str | None,
    class_names: Sequence[str] | None,
    images: Path | None,
    images_outside: bool,
    protocol: str,
    order: str,
    kinds: Sequence[str] | None,
    limit: int,
    out: Path | None,
) -> int:
    """Print the first label errors, and write the page with more of them. Returns 0."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"out: expected a page such as review.html but got {out}.")
    console = Terminal()
    with Terminal(stderr=True).status("reading annotations and detections"):
        made = read(detections, data, split, class_names, "error", "count", images_outside)
    rules, evidence = get_protocol(protocol), made.evidence()
    result = evaluate_under(evidence, rules)
    made.warn_of_mistakes(result)
    with Terminal(stderr=True).status("changing labels one by one"):
        errors = find_label_errors(evidence, rules, order=order, kinds=kinds or KINDS)
    console.print(_table(errors[: limit or None], evidence))
    what = f"{counted(len(errors), 'label')} whose change would gain mAP"
    console.print(f"{rules.name}: mAP {per_cent(result.map)}; {what}", style="bold", soft_wrap=True)
    console.print(UNSEEN, soft_wrap=True)
    if out is not None:
        from stepgrad.report.labels import write_label_page

        dataset = made.load(images=images) if images and made.load else made.pictures()
        page = write_label_page(
            out,
            title=f"Labels of {made.dataset.name}",
            evidence=evidence,
            errors=errors,
            dataset=dataset,
            protocol=rules.name,
            mean_ap=result.map,
        )
        console.print(f"review: {safe_text(page)}", soft_wrap=True)
        if not isinstance(dataset, COCODataset):
            console.print(CONVERT, style="dim", soft_wrap=True)
    return 0


def write_reviewed(data: Path, review: Path, out: Path | None, split: str | None) -> int:
    """Write a new annotation file with the changes that a review accepts. Returns 0."""
    if out is None:
        raise ConfigError("out: --apply needs the new annotation file, such as --out new.json.")
    made = apply_review(Path(review), load_dataset(data, split, need_images=False), Path(out))
    Terminal().print(f"{counted(made, 'change')} made: {safe_text(out)}", soft_wrap=True)
    return 0


def _table(errors: Sequence[LabelError], evidence: Evidence) -> Table:
    table = Table()
    for heading in ("", "change", "image", "label", "would be"):
        table.add_column(heading)
    for heading in ("score", "mAP"):
        table.add_column(heading, justify="right")
    for number, error in enumerate(errors, 1):
        name = evidence.class_names[error.label]
        now = "" if error.object is None else evidence.class_names[evidence.objects.labels[error.object]]
        score = "" if error.detection is None else f"{evidence.detections.scores[error.detection]:.3g}"
        after = "" if error.kind == "remove" else f"{name} at {_corners(error.box)}"
        image = str(evidence.image_ids[error.image])
        table.add_row(
            str(number),
            error.kind,
            safe_text(image),
            safe_text(now),
            safe_text(after),
            score,
            f"+{100 * error.gain:.3f}",
        )
    table.caption = "mAP: points that this change alone would gain"
    return table


def _corners(box: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in box)
