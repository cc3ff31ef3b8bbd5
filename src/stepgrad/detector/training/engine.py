"""The training loop: a run from its config to its report, stopped and resumed at will.

All randomness is a function of seed and step, and a checkpoint holds weights, momentum and counters: a resumed run takes
the very steps the unbroken one would have taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepgrad.detector.training.build import build_model, enter_phase, load_into, measure_boxes
from stepgrad.detector.training.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from stepgrad.detector.training.config import Phase, TrainConfig
from stepgrad.detector.training.features import source_for
from stepgrad.detector.training.finish import RunResult, finish_run, merit_of, save_best, validate, validation_line
from stepgrad.detector.training.inputs import Example, Order, find_split, find_training, locate, with_windows
from stepgrad.detector.training.process import RunInterrupted, launch, noted_interrupts, owning
from stepgrad.detector.training.progress import Progress, QuietProgress, Times
from stepgrad.detector.training.run_folder import RunFolder, State
from stepgrad.detector.training.run_log import Log, read_log, versions
from stepgrad.detector.training.step import Stepper, make_optimizer
from stepgrad.errors import DataError, NonFiniteError, StepgradError
from stepgrad.evaluation import Evaluator
from stepgrad.names import on_disk
from stepgrad.weights_file import load_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stepgrad.detector import FastRCNN

__all__ = ["RunInterrupted", "RunResult", "resume", "train"]


def train(config: TrainConfig, out: str | Path, *, progress: Progress | None = None) -> RunResult:
    """Train by `config` into the folder `out`, which must not hold a run yet nor be in use by another process."""
    fabric = launch(config.run)
    folder = RunFolder(Path(out))
    with owning(folder.path, fabric):
        folder.check_free()
        fabric.barrier()  # nobody begins before everybody has looked
        return _Engine(config, folder, None, fabric, progress or QuietProgress()).run()


def resume(out: str | Path, *, step: int | None = None, progress: Progress | None = None) -> RunResult:
    """Go on with the run in `out`, from its last checkpoint or that of an earlier `step`."""
    folder = RunFolder(Path(out))
    config = folder.config()
    fabric = launch(config.run)
    with owning(folder.path, fabric):
        return _Engine(config, folder, folder.checkpoint(step), fabric, progress or QuietProgress()).run()


class _Engine:
    """One run, as this process sees it."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        fabric: Fabric,
        progress: Progress,
    ) -> None:
        self.config = config
        self.folder = folder
        self.fabric = fabric
        self.progress = progress
        self.phases, self.times = config.phases(), Times()
        found = [*find_training(config.data), find_split(config.data, "val")]
        names, of_val = found[0].dataset.class_names, found[-1].dataset.class_names
        if names != of_val:
            raise DataError(f"Expected the same classes in both splits but got {names} and {of_val}.")
        for images in found:
            images.check_packages()  # before weights are downloaded
        self.state = State.of(checkpoint) if checkpoint else State(class_names=list(names))
        self.model = self._model(checkpoint)
        with self.times.of("windows"):  # after all that can go wrong at once, since a search may take hours
            *self.data, self.val = with_windows(found, progress)
        measure_boxes(self.model, self.data, config.data.flip)
        if fabric.is_global_zero:
            folder.create(config)
        fabric.to_device(self.model)
        self.stepper = Stepper(fabric, self.model, config.run)
        self.restored = checkpoint.optimizer if checkpoint else {}
        self.saved = (self.state.step, self.state.validated)
        named = config.run.feature_cache
        cache = Path(on_disk(named)) if named else folder.path / "features"
        self.source = source_for(self.model, cache, f"{fabric.device.type} {config.run.precision}")
        self.order = Order(sum(map(len, self.data)), config.data.flip, config.run.seed)

    def _model(self, checkpoint: Checkpoint | None) -> FastRCNN:
        weights = self.config.model.weights if checkpoint is None else None
        model = build_model(self.config, len(self.state.class_names), weights)
        if checkpoint is not None:
            load_into(model, checkpoint.weights, str(self.folder.path))
        elif weights is not None:
            self.progress.say(str(model.weights_report))
        return model

    def run(self) -> RunResult:
        """All phases from where the run stands, then the report."""
        state = self.state
        self.progress.start(self.config.total_steps, state.step)
        self.log = self._open_log()
        closes_log = closing(self.log) if self.log else nullcontext()
        with (
            noted_interrupts() as self.interrupts,
            closes_log,
            torch.random.fork_rng(),
            ThreadPoolExecutor(2) as self.pool,
        ):
            if state.step == 0:
                self._write({"kind": "start", "step": 0, **versions()})
            for phase in self.phases:
                if state.step < phase.end:
                    self._run_phase(phase)
            if state.validated < state.step:  # an interrupt cut the last validation short
                self._pause(None)
            self.fabric.barrier()  # until the best weights are written
            with self.times.of("the best step's evaluation and the report"):
                load_into(self.model, load_weights(self.folder.best_file)[0], str(self.folder.best_file))
                evaluator = self._validate("evaluating the best step")
                result = finish_run(self.config, self.folder, evaluator, self.val.dataset, state, self.log)
            return replace(result, seconds=self.times.seconds)

    def _open_log(self) -> Log | None:
        """The log, without the lines of steps that will be taken again; None in all processes but the first."""
        folder, state = self.folder, self.state
        if not self.fabric.is_global_zero:
            return None
        last = {"start": state.step, "train": state.step, "val": state.validated}  # and the end is written again
        kept = [line for line in read_log(folder.log_file) if state.step and line["step"] <= last.get(line["kind"], -1)]
        return Log(folder.log_file, kept, folder.events, state.step)

    def _write(self, line: dict[str, Any]) -> None:
        if self.log is not None:
            self.log.write(line)

    def _run_phase(self, phase: Phase) -> None:
        """The steps of one phase: load, step, and now and then validate and save."""
        state = self.state
        enter_phase(self.model, self.config, phase.name, phase.config, len(state.class_names))
        optimizer = self._optimizer(phase)
        self._pause(optimizer)
        self.model.train()
        batch = self._load(phase, state.step)
        while state.step < phase.end:
            with self._saved_on_error(optimizer):
                with self.times.of("waiting for images and features"):
                    examples = batch.result()
                batch = self._load(phase, state.step + 1)
                with self.times.of("training steps"):
                    line = self._step(phase, optimizer, examples)
            state.step += 1
            state.seconds += line["seconds"]
            line = {"kind": "train", "step": state.step, "phase": phase.name, **line, "seconds": state.seconds}
            self.progress.step(line)
            if state.step % self.config.run.log_every == 0:
                self._write(line)
            self._pause(optimizer)

    def _optimizer(self, phase: Phase) -> Any:
        """Fresh for each phase; its memory comes back if the run was stopped within it."""
        optimizer = make_optimizer(self.model, phase.config)
        if self.state.step > phase.first:
            restore_optimizer(optimizer, self._names(), self.restored)
        return self.fabric.setup_optimizers(optimizer)

    def _names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self.model.named_parameters()}

    def _load(self, phase: Phase, step: int) -> Future[list[Example]]:
        """The examples of a step, read while the one before is computed; each process takes its share of the images."""
        images = phase.config.images
        first = phase.images_before + (step - phase.first) * images
        places = range(first, first + images)[self.fabric.global_rank :: self.fabric.world_size]
        return self.pool.submit(self._read, places if step < phase.end else range(0))

    def _read(self, places: range) -> list[Example]:
        entries = [(place, *self.order.entry(place)) for place in places]
        return [self.source(*locate(self.data, i), flipped)._replace(place=place) for place, i, flipped in entries]

    def _step(self, phase: Phase, optimizer: Any, examples: list[Example]) -> dict[str, Any]:
        step = self.state.step
        try:
            return self.stepper.step(phase, optimizer, examples, step)
        except NonFiniteError as error:
            raise NonFiniteError(
                f"step {step + 1} of {self.config.total_steps} ({phase.name}): {error}. The weights are still those "
                f"of step {step}; lower {phase.name}.lr, or look at these images with `stepgrad doctor`."
            ) from error

    def _pause(self, optimizer: Any) -> None:
        """Between two steps: validate and save where due, and stop where asked to."""
        state, run = self.state, self.config.run
        every = run.eval_every or max(1, self.config.total_steps // 10)
        due = state.step > 0 and (state.step % every == 0 or state.step in {phase.end for phase in self.phases})
        try:
            if due and state.validated < state.step:
                self._judge()
            self.interrupts.agree(run.timeout)
            self.interrupts.check()
        except RunInterrupted:
            self._save(optimizer)
            raise RunInterrupted(
                f"stopped after step {state.step} of {self.config.total_steps}, which is saved; "
                f"continue with `stepgrad train --resume {self.folder.path}`"
            ) from None
        if due or (state.step > 0 and state.step % (run.save_every or every) == 0):
            self._save(optimizer)

    def _judge(self) -> None:
        """Measure the mAP and the run's metric; the best weights so far are kept apart."""
        state = self.state
        with self.times.of("validation"):
            # several processes leave a validation together, or not at all
            between = self.interrupts.check if self.fabric.world_size == 1 else lambda: None
            result = self._validate("validating", between).compute()
        phase = next(phase.name for phase in self.phases if state.step <= phase.end)
        line = validation_line(state, result, phase)
        state.validated = state.step
        self._write(line)
        merit = merit_of(result, self.config)
        if state.best_step == 0 or merit > state.best_merit:
            state.best_step, state.best_map, state.best_merit = state.step, result.map, merit
            if self.fabric.is_global_zero:
                save_best(self.folder, self.model, self.config, state, result)
        self.progress.val({**line, "best": state.best_step == state.step})

    def _validate(self, what: str, between: Any = lambda: None) -> Evaluator:
        config = self.config
        protocols = [config.protocol, *config.also_report]
        return validate(
            self.model, self.val, protocols, self.progress, self.source, between, what, metrics=config.metrics
        )

    def _save(self, optimizer: Any) -> None:
        """A checkpoint of this step, unless there is one that says the same."""
        state = self.state
        if self.saved == (state.step, state.validated) or self.log is None:
            return
        self.log.sync()
        weights = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        memory = self.restored if optimizer is None else optimizer_tensors(optimizer.optimizer, self._names())
        counters = {name: value for name, value in asdict(state).items() if name != "step"}
        pinned = {phase.end for phase in self.phases if phase.end <= state.step}  # later ones are of another course
        save_checkpoint(
            self.folder.checkpoints, Checkpoint(state.step, weights, memory, counters), self.config.run.keep, pinned
        )
        self.saved = (state.step, state.validated)

    @contextmanager
    def _saved_on_error(self, optimizer: Any) -> Iterator[None]:
        """Whatever goes wrong in a step, the steps before it are not lost."""
        try:
            yield
        except StepgradError:
            if self.state.step > 0:
                self._save(optimizer)
            raise
