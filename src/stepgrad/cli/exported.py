"""`stepgrad evaluate --model`: an exported model judged, and what makes the difference between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepgrad.cli.judged import JudgedInput, save_detections
from stepgrad.cli.terminal import Terminal
from stepgrad.data import DetectionDataset
from stepgrad.data.read_detections import FileDetections
from stepgrad.errors import ConfigError
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.exported.class_names import read_names
from stepgrad.models.exported.difference import Difference, difference
from stepgrad.models.exported.draw import draw_first_image
from stepgrad.models.exported.pipeline import Pipeline, as_detections, detect_all, open_pipeline
from stepgrad.progress import RichProgress

SUFFIXES = (".onnx", ".pt")
"""Of files that are models; any other file has detections."""


@dataclass(frozen=True)
class JudgedModels:
    """What one or two models made of the data."""

    model: JudgedInput
    against: JudgedInput | None = None
    difference: Difference | None = None

    def draw(self, path: Path) -> None:
        """Draw the first image in which the two differ."""
        if self.difference is None:
            raise ConfigError("draw: needs --compare, or two models (--model and --against).")
        draw_first_image(self.difference, self.model.dataset, path)


def run_models(
    model: Path,
    against: Path | None,
    dataset: DetectionDataset,
    recipes: tuple[Sequence[str] | None, Sequence[str] | None],
    model_classes: Path | None,
    protocol: str | None,
    names: tuple[str, str],
    save_to: Path | None,
) -> JudgedModels:
    """Run a model on every picture, and another one if `against` is a model.

    Args:
        model: the file of the model.
        against: what it is compared with: another model, or a file of detections.
        dataset: the pictures and objects.
        recipes: the words of --recipe and --against-recipe.
        model_classes: a file with the names of the models' classes.
        protocol: the rules by which a difference is split; None: those that are usual for the data.
        names: what to call the two.
        save_to: where to write the detections of the model, if anywhere.
    """
    two = against is not None and against.suffix.lower() in SUFFIXES
    if recipes[1] and not two:
        raise ConfigError(f"against-recipe: needs a model ({' or '.join(SUFFIXES)}) as --against.")
    classes = None if model_classes is None else read_names(model_classes)
    first = open_pipeline(model, dataset.class_names, recipes[0] or (), classes)
    if against is None or not two:
        found = _detected(first, dataset)
        made = JudgedModels(_judged(found, dataset, names[0]))
    else:
        other = open_pipeline(against, dataset.class_names, recipes[1] or (), classes, "against-recipe")
        if model.expanduser().resolve() == against.expanduser().resolve():  # only what is around it can differ
            other = replace(other, network=first.network)
        rules = get_protocol(protocol or _judged(as_detections([]), dataset, "").protocol)
        with RichProgress(Terminal(stderr=True)) as progress:
            progress.say(str(first))
            progress.say(str(other))
            with progress.stage("detecting with both", len(dataset)) as tick:
                way = difference(other, first, dataset, rules, tick, (names[1], names[0]))
        before, found = way.detections
        made = JudgedModels(_judged(found, dataset, names[0]), _judged(before, dataset, names[1]), way)
    if save_to is not None:
        save_detections(save_to, found.detections, dataset)
    return made


def names_of(
    model: Path, against: Path, short: tuple[str, str], recipes: tuple[Sequence[str] | None, Sequence[str] | None]
) -> tuple[str, str]:
    """What to call two models: by the names of their files, or by their recipes where the file is the same one."""
    if model.expanduser().resolve() != against.expanduser().resolve():
        return short if model.name == against.name else (model.name, against.name)
    first, second = (f"{model.name} ({' '.join(words) if words else 'as usual'})" for words in recipes)
    return first, second


def _detected(pipeline: Pipeline, dataset: DetectionDataset) -> FileDetections:
    with RichProgress(Terminal(stderr=True)) as progress:
        progress.say(str(pipeline))
        with progress.stage("detecting", len(dataset)) as tick:
            return detect_all(pipeline, dataset, tick)


def _judged(found: FileDetections, dataset: DetectionDataset, name: str) -> JudgedInput:
    return JudgedInput(dataset, found, name=f"{name} on {dataset.name}", load=lambda: dataset)
