"""Images, objects and windows: VOC, COCO and YOLO files, the built-in `shapes`, proposals, and the checks of the doctor."""

from stepgrad.extras import need

need("PIL", purpose="stepgrad.data")

from stepgrad.data.base import DatasetTarget, DetectionDataset, ImageId, make_target
from stepgrad.data.coco import COCODataset
from stepgrad.data.dota import DOTADataset
from stepgrad.data.load import load_dataset
from stepgrad.data.problems import Problem
from stepgrad.data.proposals import (
    CachedProposals,
    PackedProposals,
    Proposals,
    Recall,
    SearchSettings,
    generate_proposals,
    import_mat,
    import_npz,
    import_proposals,
    load_proposals,
    recall,
    selective_search,
)
from stepgrad.data.segments import SegmentDataset
from stepgrad.data.shapes import EndlessShapes, FreshImage, ShapesDataset
from stepgrad.data.voc import VOC_CLASSES, VOCDataset
from stepgrad.data.yolo import YOLODataset
from stepgrad.pixels import continuous_from_devkit, devkit_from_continuous

__all__ = [
    "VOC_CLASSES",
    "COCODataset",
    "CachedProposals",
    "DOTADataset",
    "DatasetTarget",
    "DetectionDataset",
    "EndlessShapes",
    "FreshImage",
    "ImageId",
    "PackedProposals",
    "Problem",
    "Proposals",
    "Recall",
    "SearchSettings",
    "SegmentDataset",
    "ShapesDataset",
    "VOCDataset",
    "YOLODataset",
    "continuous_from_devkit",
    "devkit_from_continuous",
    "generate_proposals",
    "import_mat",
    "import_npz",
    "import_proposals",
    "load_dataset",
    "load_proposals",
    "make_target",
    "recall",
    "selective_search",
]
