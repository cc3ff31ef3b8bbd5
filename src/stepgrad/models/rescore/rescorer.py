"""Better scores for a finished detector, learnt from its detections on labelled images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import ConfigError, DataError, InputError, one_of, whole_number
from stepgrad.evaluation.evaluator import Evaluator
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.options import resolve_protocol
from stepgrad.metric.protocol import PROTOCOLS, Protocol
from stepgrad.models.rescore.choose import LEAST_IMAGES, Course, Trainer, WayTried, best_of, choose, trainings
from stepgrad.models.rescore.describe import more_names, rows_of, width_of
from stepgrad.models.rescore.features import are_probabilities, checked_features, columns_of
from stepgrad.models.rescore.files import numbers_of, read_content, tensors_of, write_content
from stepgrad.models.rescore.fuse import Fusion
from stepgrad.models.rescore.images import ScoredImage, image_of
from stepgrad.models.rescore.network import QualityNetwork
from stepgrad.models.rescore.onnx import WholeRescorer, export
from stepgrad.models.rescore.sentences import choice_sentence, fusion_sentence
from stepgrad.models.rescore.several import fitted_fusion
from stepgrad.models.rescore.ways import SAYS, Setting, ranked_by
from stepgrad.overlaps import overlap_of
from stepgrad.overlaps.base import Boxes, Overlap
from stepgrad.overlaps.keypoints import Keypoints
from stepgrad.overlaps.masks import Masks
from stepgrad.progress import bar, ticker

TASKS = ("boxes", "masks", "keypoints")
UNITS = 16
Detections = Sequence[Mapping[str, Any]]


class Rescorer:
    """Learns from a detector's detections of labelled images how good each of them is, and changes scores accordingly.

    A small network sees what the file tells of each detection (score, box, rank, overlap with others; of masks and poses their
    shape) and looks at its neighbours. It is trained in four ways: a quality regressed on detections that have an object, which
    multiplies the score; hits regressed for all detections (Pato et al. 2020); the metric itself; and the metric after a
    regression. `fit` tunes each, compares them on images they were not trained on, and keeps the detector's own scores
    unless a way is clearly ahead. `sentence` says what was chosen and why.

    The detector must not have been trained on the images: its scores are better there than they will ever be again. Detections
    are final, after NMS; low scores belong to them.

    Args:
        num_classes: labels are in [0, num_classes).
        protocol: what the scores are to be better by, a `Protocol` or its name.
        task: what is compared: "boxes", "masks" or "keypoints"; or `sg.overlaps.Keypoints(sigmas)`.
        units: of each layer of the network.
        show_progress: whether `fit` shows on stderr how far it is.

    >>> import torch
    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> found = [{"boxes": box, "scores": torch.tensor([0.9]), "labels": torch.tensor([0])}] * 30
    >>> rescorer = Rescorer(1).fit(found, [{"boxes": box, "labels": torch.tensor([0])}] * 30)
    >>> rescorer.way, rescorer.apply(found)[0]["scores"].tolist() == found[0]["scores"].tolist()
    ('own', True)
    """

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol = "coco",
        task: str | Overlap = "boxes",
        *,
        units: int = UNITS,
        show_progress: bool = False,
    ) -> None:
        self.num_classes = whole_number("num_classes", num_classes, least=1)
        self.overlap = overlap_of(task)
        if type(self.overlap) not in (Boxes, Masks, Keypoints):
            raise ConfigError(f"Expected task to be one of {list(TASKS)} but got {task!r}.")
        self.protocol = resolve_protocol(protocol, None, None, self.overlap.adapt)
        self.units = whole_number("units", units, least=1)
        self.show_progress = show_progress
        self.module: QualityNetwork | None = None
        """The network; None while the detector's own scores are kept."""
        self.setting: Setting | None = None
        self.trials: list[WayTried] = []
        """What each way was worth on held-out images: the detector's own scores first."""
        self.more: tuple[str, ...] = ()
        """What the network sees besides scores and boxes."""
        self.are_probabilities = True
        self.images = 0
        self.fusion: Fusion | None = None
        """How the detections of several models are joined; None: there is one model."""
        self.alone: list[float] = []
        """mAP of each of several models, and of their fusion, on the images that it was tuned on."""
        self.classes_of_file: dict[str, Any] = {}
        """Names and COCO's ids of the classes, if a file was fitted to."""

    @property
    def way(self) -> str:
        """The way that was chosen: "own", "quality", "context", "metric" or "metric_after"."""
        return "own" if self.setting is None else self.setting.way

    def fit(
        self, detections: Detections, targets: Detections, features: Sequence[Any] | None = None, seed: int = 0
    ) -> Rescorer:
        """Train, compare and choose; returns itself.

        Args:
            detections: per image a dict of boxes (M, 4), scores (M,) and labels (M,), as `Evaluator.update` takes them, with
                masks or keypoints for these tasks; if there are class_scores (M, K), they are used.
            targets: per image the objects, as `Evaluator.update` takes them.
            features: per image (M, D) numbers on each detection, whatever else is known of them.
            seed: of the folds, the first weights and the order of images.
        """
        self._check(detections, targets)
        self._look_at(detections, features)
        images = self._images(detections, targets, features)
        some = [image for image in images if len(image.boxes)]
        self.images, self.module, self.setting = len(images), None, None
        self.trials = []
        if len(some) < LEAST_IMAGES or not any(bool(image.found.any()) for image in some):
            return self
        with bar(self.show_progress) as watch, torch.random.fork_rng():
            tick = ticker(watch, "training in four ways", trainings())
            course = Course(self.num_classes, self.protocol, self.overlap, self.units, seed, tick)
            self.trials = choose(course, some)
            chosen = best_of(self.trials)
            if chosen.setting is not None:
                self.setting = chosen.setting
                self.module = Trainer(course, some).network(chosen.setting)
        return self

    def fit_several(self, several: Sequence[Detections], targets: Detections, seed: int = 0) -> Rescorer:
        """Join the detections of several models by weighted boxes fusion, its weights tuned; then `fit`, which sees what each
        model said, and keeps the scores of the fusion unless a way is clearly ahead of them. Returns itself.

        Args:
            several: the detections of each model, as `fit` takes them, of the same images in the same order.
            targets: the objects of these images.
            seed: as for `fit`.
        """
        for found in several:
            self._check(found, targets)
        self.fusion, self.alone = fitted_fusion(several, targets, self._evaluator, seed, self.show_progress)
        fused, features = self.fusion.apply(several)
        return self.fit(fused, targets, features, seed)

    def apply_several(self, several: Sequence[Detections]) -> list[dict[str, Any]]:
        """The joined detections of each image with new scores."""
        if self.fusion is None:
            raise InputError("Expected a rescorer that has been fitted to several models; call fit_several first.")
        fused, features = self.fusion.apply(several)
        return self.apply(fused, features)

    def fit_way(
        self,
        detections: Detections,
        targets: Detections,
        setting: Setting,
        features: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> Rescorer:
        """Train in one way, without a comparison: for experiments."""
        self._check(detections, targets)
        self._look_at(detections, features)
        some = [image for image in self._images(detections, targets, features) if len(image.boxes)]
        self.images, self.trials, self.setting = len(detections), [], setting
        course = Course(self.num_classes, self.protocol, self.overlap, self.units, seed)
        self.module = Trainer(course, some).network(setting)
        return self

    @property
    def sentence(self) -> str:
        """Which way was chosen, and why."""
        said = choice_sentence(self.trials, self.setting, self.images, self.protocol.name)
        return said if self.fusion is None else fusion_sentence(self.fusion, self.alone, said)

    @property
    def table(self) -> str:
        """What each way was worth on held-out images."""
        rows = [[SAYS[t.way], *t.cells(), "" if t.setting is None else t.setting.text] for t in self.trials]
        return plain_table(["scores", self.protocol.name, "gain", "interval", "setting"], rows) if rows else ""

    def apply(self, detections: Detections, features: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """The same detections with new scores, in the same order; the dicts that were given are not changed."""
        if not self.images:
            raise InputError(
                "Expected a rescorer that has been fitted; call fit(detections, targets), or Rescorer.load."
            )
        checked = checked_features(detections, features, self._features_wanted)
        if self.overlap.key == "boxes":
            self._check(detections, [_NOTHING] * len(detections))
        return [self._rescored(found, own, i) for i, (found, own) in enumerate(zip(detections, checked, strict=True))]

    def _rescored(self, found: Mapping[str, Any], features: Tensor | None, position: int) -> dict[str, Any]:
        scores = torch.as_tensor(found["scores"])
        if self.module is None or self.setting is None or not scores.numel():
            return dict(found)
        where = f"image {found.get('image_id', position)}"
        has_classes = "margin" in self.more
        rows = rows_of(found, self.overlap, self.are_probabilities, has_classes, features, where)
        with torch.no_grad():
            ranked = ranked_by(self.module(rows).double(), rows.own.double(), self.setting)
        return {**found, "scores": self._as_scores(ranked).to(scores.device)}

    def _as_scores(self, ranked: Tensor) -> Tensor:
        """Probabilities where the detector's scores are some."""
        if not self.are_probabilities:
            return ranked
        return ranked.exp() if self.setting is not None and self.setting.multiplies else ranked.sigmoid()

    def save(self, path: str | Path) -> None:
        """Write the whole rescorer to one json file."""
        name = self.protocol.name
        one_of("protocol, to be found again by its name,", name, list(PROTOCOLS))
        content = {
            "sentence": self.sentence,
            "num_classes": self.num_classes,
            "protocol": name,
            "task": self.overlap.key,
            "sigmas": list(self.overlap.sigmas) if isinstance(self.overlap, Keypoints) else None,
            "units": self.units,
            "images": self.images,
            "are_probabilities": self.are_probabilities,
            "more": list(self.more),
            "classes": self.classes_of_file,
            "fusion": None if self.fusion is None else self.fusion.to_dict(),
            "alone": self.alone,
            "setting": None if self.setting is None else self.setting.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "weights": {} if self.module is None else numbers_of(self.module.state_dict()),
        }
        write_content(Path(path), content)

    @classmethod
    def load(cls, path: str | Path) -> Rescorer:
        """The rescorer of a file that `save` wrote."""
        content = read_content(Path(path))
        try:
            return cls._from(content)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise DataError(
                f"{path}: was not written by `stepgrad rescore` or is damaged ({error}); fit it again"
            ) from error

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Rescorer:
        sigmas = content["sigmas"]
        task = Keypoints(sigmas) if sigmas is not None else content["task"]
        made = cls(content["num_classes"], content["protocol"], task, units=content["units"])
        made.images, made.are_probabilities = int(content["images"]), bool(content["are_probabilities"])
        made.more, made.classes_of_file = tuple(content["more"]), dict(content["classes"])
        made.trials = [WayTried.from_dict(trial) for trial in content["trials"]]
        if content["fusion"] is not None:
            made.fusion, made.alone = Fusion.from_dict(content["fusion"]), [float(v) for v in content["alone"]]
        if content["setting"] is not None:
            made.setting = Setting.from_dict(content["setting"])
            network = QualityNetwork(made.num_classes, width_of(made.more), made.units)
            network.load_state_dict(tensors_of(content["weights"]))
            made.module = network.eval()
        return made

    def to_onnx(self, path: str | Path) -> None:
        """Write the network with everything before it as ONNX: boxes, scores and labels of an image in, new scores out."""
        export(self.torch_module, Path(path))

    @property
    def torch_module(self) -> WholeRescorer:
        """The same as a torch module: `module(boxes, scores, labels)` gives the new scores of an image."""
        if self.module is None or self.setting is None:
            raise ConfigError("Expected a rescorer with a network but this one keeps the detector's own scores.")
        return WholeRescorer(self.module, self.setting, self.are_probabilities, len(self.more))

    @property
    def _features_wanted(self) -> int:
        return sum(name.startswith("feature_") for name in self.more)

    def _evaluator(self) -> Evaluator:
        return Evaluator(self.num_classes, self.protocol, task=self.overlap)

    def _check(self, detections: Detections, targets: Detections) -> None:
        """Raise whatever an evaluator would."""
        self._evaluator().update(detections, targets)

    def _look_at(self, detections: Detections, features: Sequence[Any] | None) -> None:
        """Whether scores are probabilities, and what else there is to see."""
        self.are_probabilities = are_probabilities(detections)
        has_classes = bool(len(detections)) and all("class_scores" in found for found in detections)
        self.more = more_names(self.overlap, has_classes, columns_of(features))

    def _images(self, detections: Detections, targets: Detections, features: Sequence[Any] | None) -> list[ScoredImage]:
        has_classes = "margin" in self.more
        images = []
        given = checked_features(detections, features, self._features_wanted)
        with bar(self.show_progress) as watch:
            tick = ticker(watch, "looking at detections", len(detections))
            for i, (found, target, own) in enumerate(zip(detections, targets, given, strict=True)):
                where = f"image {target.get('image_id', i)}"
                rows = rows_of(found, self.overlap, self.are_probabilities, has_classes, own, where)
                images.append(image_of(rows, found, target, self.overlap))
                tick()
        return images

    def __repr__(self) -> str:
        return f"Rescorer({self.num_classes}, {self.protocol.name!r}, way={self.way!r})"


_NOTHING = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
