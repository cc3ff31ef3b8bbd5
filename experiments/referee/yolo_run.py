"""`yolo val` of YOLOv8n over VOC and VisDrone images, and our numbers for the same detections.

    python -m experiments.referee.yolo_run --data FOLDER --work FOLDER --out experiments/results/referee_yolo.json

needs an environment with ultralytics (AGPL, no dependency of ours) and onnxruntime; FOLDER of `--data` has VOC2012-320,
VisDrone-640 and weights/yolov8n_coco_fp32.onnx. ultralytics reads the images, detects and counts. Its boxes are recorded as
it counts them (float32, in the letterboxed image), once with its limits on scores and detections and once with looser ones.
The files it saves (predictions.json, labels/*.txt) stay in `--work`, with the YOLO folder they belong to.
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from stepgrad.evaluation import Evaluator, compare
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import ULTRALYTICS, get_protocol

VOC_NAMES = {
    **{
        "aeroplane": "airplane",
        "motorbike": "motorcycle",
        "diningtable": "dining table",
        "pottedplant": "potted plant",
    },
    **{"sofa": "couch", "tvmonitor": "tv"},
}
VISDRONE_NAMES = {
    **{"pedestrian": "person", "people": "person", "van": "car", "motor": "motorcycle"},
    **{name: name for name in ("bicycle", "car", "truck", "bus")},
}
LOOSE = {"conf_thres": 0.0005, "iou_thres": 0.7, "max_det": 1000}


def coco_names() -> list[str]:
    from ultralytics.utils import ROOT, YAML

    return list(YAML.load(ROOT / "cfg" / "datasets" / "coco8.yaml")["names"].values())


def write_voc(data: Path, folder: Path, count: int, names: list[str]) -> None:
    """The first validation images as a YOLO folder; difficult objects are left out, as ultralytics' own VOC set does."""
    source = data / "VOC2012-320"
    for image_id in (source / "ImageSets/Main/val.txt").read_text(encoding="utf-8").split()[:count]:
        root = ET.parse(source / f"Annotations/{image_id}.xml").getroot()
        size = [float(root.findtext(f"size/{side}", "")) for side in ("width", "height")]
        lines = []
        for entry in root.iter("object"):
            if entry.findtext("difficult") == "1":
                continue
            name = entry.findtext("name", "")
            x1, y1, x2, y2 = (float(entry.findtext(f"bndbox/{k}", "")) for k in ("xmin", "ymin", "xmax", "ymax"))
            box = np.array([(x1 - 1 + x2) / 2, (y1 - 1 + y2) / 2, x2 - x1 + 1, y2 - y1 + 1]) / (size * 2)
            lines.append(f"{names.index(VOC_NAMES.get(name, name))} " + " ".join(f"{value:.6f}" for value in box))
        _put(source / f"JPEGImages/{image_id}.jpg", folder, lines)


def write_visdrone(data: Path, folder: Path, count: int, names: list[str]) -> None:
    """The first validation images with the classes that COCO has too."""
    source = data / "VisDrone-640"
    own = [VISDRONE_NAMES.get(name) for name in _visdrone_names(source)]
    for image in sorted((source / "images/val").iterdir())[:count]:
        rows = [
            line.split() for line in (source / f"labels/val/{image.stem}.txt").read_text(encoding="utf-8").splitlines()
        ]
        kept = [(own[int(row[0])], row[1:]) for row in rows]
        _put(image, folder, [" ".join([str(names.index(name)), *box]) for name, box in kept if name])


def _visdrone_names(source: Path) -> list[str]:
    import yaml

    return list(yaml.safe_load((source / "data.yaml").read_text(encoding="utf-8"))["names"])


def _put(image: Path, folder: Path, lines: list[str]) -> None:
    for kind in ("images", "labels"):
        (folder / kind / "val").mkdir(parents=True, exist_ok=True)
    target = folder / "images/val" / image.name
    if not target.exists():
        with Image.open(image) as picture:
            picture.verify()
        target.symlink_to(image.resolve())
    (folder / "labels/val" / f"{image.stem}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def recorder() -> Any:
    """A validator that keeps what it counts. Made here, since its base is imported only now."""
    from ultralytics.models.yolo.detect.val import DetectionValidator
    from ultralytics.utils import nms

    class Recorder(DetectionValidator):
        """The stock validator; `found` and `loose` are lists of detections, `there` of objects, per image."""

        found: ClassVar[list[dict[str, torch.Tensor]]] = []
        loose: ClassVar[list[dict[str, torch.Tensor]]] = []
        there: ClassVar[list[dict[str, torch.Tensor]]] = []
        counted: ClassVar[dict[str, Any]] = {}

        def postprocess(self, preds: Any) -> Any:
            outputs = nms.non_max_suppression(preds.clone(), multi_label=True, **LOOSE)
            self.loose.extend({"boxes": x[:, :4], "scores": x[:, 4], "labels": x[:, 5].long()} for x in outputs)
            return super().postprocess(preds)

        def update_metrics(self, preds: Any, batch: Any) -> None:
            for i, pred in enumerate(preds):
                self.found.append({"boxes": pred["bboxes"], "scores": pred["conf"], "labels": pred["cls"].long()})
                objects = self._prepare_batch(i, batch)
                self.there.append({"boxes": objects["bboxes"], "labels": objects["cls"].long()})
            super().update_metrics(preds, batch)

        def get_stats(self) -> Any:
            self.counted.update({name: np.concatenate(parts) for name, parts in self.metrics.stats.items()})
            return super().get_stats()

    return Recorder


OTHERS = ("ultralytics-8.4", "ultralytics-8.3", "coco", "torchmetrics", "voc12")


def evaluated(found: list[Any], there: list[Any], names: list[str]) -> Evaluator:
    """Our evaluator with everything handed in."""
    evaluator = Evaluator(len(names), ULTRALYTICS, names)
    evaluator.update(found, there)
    return evaluator


def ap_with_ties_in_order(counted: dict[str, Any]) -> Any:
    """(classes, 10) AP by ultralytics' own function, its unstable sort given nothing to decide: equal scores get ranks."""
    from ultralytics.utils.metrics import ap_per_class

    rank = np.empty(len(counted["conf"]))
    rank[np.argsort(-counted["conf"], kind="stable")] = np.arange(len(rank))
    return ap_per_class(counted["tp"], 1.0 - rank / len(rank), counted["pred_cls"], counted["target_cls"])[5]


def tied_scores(counted: dict[str, Any]) -> int:
    """How many detections share class and score with another."""
    pairs = np.stack([counted["pred_cls"], counted["conf"]], axis=1)
    _, times = np.unique(pairs, axis=0, return_counts=True)
    return int(times[times > 1].sum())


def run(name: str, data: Path, work: Path, count: int) -> dict[str, Any]:
    """One set of images: their numbers, ours, and the largest difference."""
    import ultralytics

    names = coco_names()
    folder = work / name
    {"voc": write_voc, "visdrone": write_visdrone}[name](data, folder, count, names)
    listed = "\n".join(f"  {i}: {n}" for i, n in enumerate(names))
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/val\nval: images/val\nnames:\n{listed}\n", encoding="utf-8"
    )
    keep = recorder()
    model = ultralytics.YOLO(str(data / "weights/yolov8n_coco_fp32.onnx"), task="detect")
    metrics = model.val(
        keep,
        **{"data": str(folder / "data.yaml"), "imgsz": 640, "batch": 1, "rect": False, "device": "cpu", "workers": 0},
        **{"save_json": True, "save_txt": True, "save_conf": True, "plots": False, "exist_ok": True},
        **{"project": str(work), "name": f"{name}-val", "verbose": False},
    )
    evidence = evaluated(keep.found, keep.there, names).evidence()
    pairs = [compare(evidence, [ULTRALYTICS, get_protocol(other)]).pairs[0] for other in OTHERS]
    result = evaluate_under(evidence, ULTRALYTICS)
    loose = evaluated(keep.loose, keep.there, names).compute()
    ap = np.array([list(row.ap_by_threshold.values()) for row in result.classes if row.objects])
    in_order = ap_with_ties_in_order(keep.counted)
    return {
        "set": name,
        "images": len(keep.found),
        "objects": sum(len(t["labels"]) for t in keep.there),
        "detections": sum(len(p["scores"]) for p in keep.found),
        "ultralytics": ultralytics.__version__,
        "their_map": float(metrics.box.map),
        "their_map50": float(metrics.box.map50),
        "their_map_with_equal_scores_in_order": float(in_order.mean()),
        "our_map": result.map,
        "our_map50": result.map_at(0.5),
        "our_map_with_our_limits": loose.map,
        "detections_before_our_limits": sum(len(p["scores"]) for p in keep.loose),
        "detections_whose_score_ties_within_the_class": tied_scores(keep.counted),
        "largest_difference_of_any_class_and_threshold": float(abs(ap - metrics.box.all_ap).max()),
        "largest_difference_with_equal_scores_in_order": float(abs(ap - in_order).max()),
        "others": {pair.names[1]: pair.maps[1] for pair in pairs},
        "points": {f"to {pair.names[1]}": pair.split() for pair in pairs},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    options = parser.parse_args(arguments)
    rows = [run(name, options.data.resolve(), options.work.resolve(), options.images) for name in ("voc", "visdrone")]
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
