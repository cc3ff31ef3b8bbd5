"""Searching a dataset: in parallel, resumable, one file per image, one process at a time in a folder."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.proposals.cache import WindowsRecord, check_record, record_files, record_path, write_record
from stepgrad.data.proposals.search import SearchSettings, check_installed, selective_search, use_one_thread
from stepgrad.data.proposals.windows import Proposals
from stepgrad.data.voc import VOCDataset
from stepgrad.errors import DataError
from stepgrad.files import WriteError
from stepgrad.locks import only_writer
from stepgrad.names import as_text, file_name, key_of

ImageDone = Callable[[], None]
"""Called once for each image that is done."""
Say = Callable[[str], None]
"""Called with a line of news for the user."""


@dataclass
class Outcome:
    """How many images a run searched, found done before, or failed on."""

    made: int = 0
    found: int = 0
    """Images whose windows were already there."""
    failed: list[str] = field(default_factory=list)
    """One message for each image that could not be searched."""


@dataclass(frozen=True)
class Job:
    """The dataset, the folder and the settings of a search: everything a worker needs to know."""

    dataset: DetectionDataset
    folder: Path
    settings: SearchSettings

    def run(self, index: int) -> None:
        """Search one image and write its file."""
        windows = selective_search(self.dataset.image(index), self.settings)
        self.write(index, windows, self.settings.to_json())

    def write(self, index: int, windows: NDArray[np.generic], settings: str) -> None:
        record = WindowsRecord(windows, settings, self.dataset.fingerprint(index), self.dataset.name)
        write_record(record_path(self.folder, self.dataset.ids[index]), record)


def default_folder(dataset: DetectionDataset, suffix: str) -> Path:
    """`proposals/VOC2012-fast`; the splits of a VOC folder share it, since no two images share an id."""
    name = dataset.root.resolve().name if isinstance(dataset, VOCDataset) else dataset.name
    return Path("proposals") / file_name(re.sub(r"[^\w.-]+", "-", as_text(f"{name}-{suffix}")))


def generate_proposals(
    dataset: DetectionDataset,
    folder: str | Path,
    settings: SearchSettings | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: ImageDone | None = None,
    *,
    indices: Sequence[int] | None = None,
    say: Say | None = None,
) -> Outcome:
    """Search every image of `dataset` that has no windows in `folder` yet.

    A file that exists is checked, not made again; one of another dataset or with other settings raises DataError
    before anything is written. An image that cannot be read is reported in the outcome, and the search continues. After
    Ctrl-C, a crash or a full disk, finished windows are kept: call again to continue. One process at a time searches for a
    folder; a second one waits, and then does only what is still missing.

    Args:
        indices: search only the images of these numbers; None: all.
        say: is called with a line that says which process this one waits for.
    """
    job = Job(dataset, Path(folder), settings or SearchSettings())
    wanted = range(len(dataset)) if indices is None else indices
    todo = list(wanted) if overwrite else _not_cached(job, wanted)
    outcome, tick = Outcome(), progress or (lambda: None)
    _count_found(outcome, len(wanted) - len(todo), tick)
    if todo:
        check_installed()
        with _only_searcher(job.folder, say):
            left = todo if overwrite else _not_cached(job, todo)  # whoever was waited for may have made some
            _count_found(outcome, len(todo) - len(left), tick)
            _search(job, left, workers, outcome, tick)
    return outcome


def missing_windows(
    dataset: DetectionDataset,
    folder: str | Path,
    settings: SearchSettings | None = None,
    indices: Sequence[int] | None = None,
) -> list[int]:
    """The numbers of the images that `generate_proposals` would search; raises DataError where it would."""
    job = Job(dataset, Path(folder), settings or SearchSettings())
    return _not_cached(job, range(len(dataset)) if indices is None else indices)


def _only_searcher(folder: Path, say: Say | None) -> AbstractContextManager[None]:
    """Lock the folder: two searches at once would do the same images, and could mix windows of different settings."""
    return only_writer(
        folder, "wait until it has finished, or pass another folder (--out)", wait=say or (lambda _: None)
    )


def _count_found(outcome: Outcome, count: int, tick: ImageDone) -> None:
    outcome.found += count
    for _ in range(count):
        tick()


def _search(job: Job, todo: list[int], workers: int, outcome: Outcome, tick: ImageDone) -> None:
    here = (_attempt(job, index) for index in todo)
    results = here if workers <= 1 else _run_in_processes(job, todo, min(workers, max(len(todo), 1)))
    with closing(results):  # stops the workers, whatever happens here
        for error in results:
            if error is not None:
                outcome.failed.append(str(error))
            else:
                outcome.made += 1
            tick()


def _not_cached(job: Job, indices: Sequence[int]) -> list[int]:
    """The images without a file; a file that belongs to another image or other settings is a DataError."""
    todo: list[int] = []
    cached = record_files(job.folder)
    for index in indices:
        path = cached.get(key_of(str(job.dataset.ids[index])))
        if path is not None:
            check_record(path, job.dataset, index, job.settings.to_json())
        else:
            todo.append(index)
    return todo


def _attempt(job: Job, index: int) -> DataError | None:
    """Search one image; an error of this image is returned, one that concerns all images is raised."""
    try:
        job.run(index)
    except WriteError:
        raise
    except DataError as error:
        return error
    return None


_worker_job: Job | None = None


def _start_worker(job: Job) -> None:
    """Prepare a worker: it ignores Ctrl-C, which the parent handles, and ends if the parent does."""
    global _worker_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_one_thread()
    _worker_job = job


def _end_with_parent() -> None:
    """End this worker when its parent does: a killed parent cannot stop workers, which would wait for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(index: int) -> DataError | None:
    assert _worker_job is not None, "workers are started with their job"
    return _attempt(_worker_job, index)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes started in here never see Ctrl-C, not even while they start; only the main thread may arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_in_processes(job: Job, todo: list[int], workers: int) -> Generator[DataError | None, None, None]:
    """Keep every worker busy with a few images in hand; stop at once when the caller does."""
    context = get_context("spawn")  # a forked copy of a process with threads may hang
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(job,))
    indices = iter(todo)
    try:
        with _ignoring_interrupts():
            pending: set[Future[DataError | None]] = {pool.submit(_work, i) for i in islice(indices, 2 * workers)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(_work, i) for i in islice(indices, len(done))}
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise DataError(
            f"{job.folder}: a search process died, perhaps because memory ran out; finished windows are kept: run the "
            "command again, with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def import_proposals(
    proposals: Proposals,
    dataset: DetectionDataset,
    folder: str | Path,
    overwrite: bool = False,
    progress: ImageDone | None = None,
    *,
    say: Say | None = None,
) -> Outcome:
    """Write windows made elsewhere into a cache folder, so that from now on they are checked against their images."""
    proposals.check(dataset)
    job = Job(dataset, Path(folder), SearchSettings())
    settings = json.dumps({"method": "imported", "source": Path(proposals.source).name})
    outcome, tick = Outcome(), progress or (lambda: None)
    with _only_searcher(job.folder, say):
        cached = record_files(job.folder)
        for index, image_id in enumerate(dataset.ids):
            path = cached.get(key_of(str(image_id)))
            if path is not None and not overwrite:
                check_record(path, dataset, index, settings)
                outcome.found += 1
            else:
                job.write(index, proposals.windows(str(image_id)), settings)
                outcome.made += 1
            tick()
    return outcome
