"""Windows of a dataset in a folder: searched for in parallel, or imported; one file per image, one writer at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from stepgrad.data.base import DetectionDataset
from stepgrad.data.proposals.cache import WindowsRecord, check_record, record_files, record_path, write_record
from stepgrad.data.proposals.search import SearchSettings, check_installed, selective_search
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
    """A folder to fill with the windows of a dataset."""

    dataset: DetectionDataset
    folder: Path
    origin: SearchSettings | Proposals
    """The settings of a search, or windows that were made elsewhere."""

    @property
    def settings(self) -> str:
        """How the windows are made, as each file says it."""
        if isinstance(self.origin, SearchSettings):
            return self.origin.to_json()
        return json.dumps({"method": "imported", "source": Path(self.origin.source).name})

    def run(self, index: int) -> None:
        """Find the windows of one image and write its file."""
        image_id = self.dataset.ids[index]
        if isinstance(self.origin, SearchSettings):
            windows = selective_search(self.dataset.image(index), self.origin)
        else:
            windows = self.origin.windows(image_id)
        record = WindowsRecord(windows, self.settings, self.dataset.fingerprint(index), self.dataset.name)
        write_record(record_path(self.folder, image_id), record)

    def missing(self, indices: Sequence[int]) -> list[int]:
        """The images without a file; a file that belongs to another image or other settings is a DataError."""
        todo: list[int] = []
        cached = record_files(self.folder)
        for index in indices:
            path = cached.get(key_of(str(self.dataset.ids[index])))
            if path is not None:
                check_record(path, self.dataset, index, self.settings)
            else:
                todo.append(index)
        return todo


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
        workers: number of images to search at a time, each on a thread.
        indices: search only the images of these numbers; None: all.
        say: is called with a line that says which process this one waits for.
    """
    job = Job(dataset, Path(folder), settings or SearchSettings())
    return _fill(job, range(len(dataset)) if indices is None else indices, workers, overwrite, progress, say)


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
    return _fill(Job(dataset, Path(folder), proposals), range(len(dataset)), 1, overwrite, progress, say)


def missing_windows(
    dataset: DetectionDataset,
    folder: str | Path,
    settings: SearchSettings | None = None,
    indices: Sequence[int] | None = None,
) -> list[int]:
    """The numbers of the images that `generate_proposals` would search; raises DataError where it would."""
    job = Job(dataset, Path(folder), settings or SearchSettings())
    return job.missing(range(len(dataset)) if indices is None else indices)


def _fill(
    job: Job, wanted: Sequence[int], workers: int, overwrite: bool, tick: ImageDone | None, say: Say | None
) -> Outcome:
    outcome, tick = Outcome(), tick or (lambda: None)
    todo = list(wanted) if overwrite else job.missing(wanted)
    if todo:
        if isinstance(job.origin, SearchSettings):
            check_installed()
        way_out = "wait until it has finished, or pass another folder (--out)"
        # two searches at once would do the same images, and could mix windows of different settings
        with only_writer(job.folder, way_out, wait=say or (lambda _: None)):
            todo = todo if overwrite else job.missing(todo)  # whoever was waited for may have made some
            with closing(_results(job, todo, workers)) as results:  # ends the threads, whatever happens
                for error in results:
                    if error is None:
                        outcome.made += 1
                    else:
                        outcome.failed.append(str(error))
                    tick()
    outcome.found = len(wanted) - len(todo)
    for _ in range(outcome.found):
        tick()
    return outcome


def _attempt(job: Job, index: int) -> DataError | None:
    """Find the windows of one image; an error of this image is returned, one that concerns all images is raised."""
    try:
        job.run(index)
    except WriteError:
        raise
    except DataError as error:
        return error
    return None


def _results(job: Job, todo: list[int], workers: int) -> Generator[DataError | None, None, None]:
    """What `_attempt` says of each image, in order; when the caller stops, threads end after the image they have in hand.

    OpenCV, PIL and zlib do their work without Python's lock.
    """
    pool = ThreadPoolExecutor(max(workers, 1))
    try:
        yield from pool.map(lambda index: _attempt(job, index), todo)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
