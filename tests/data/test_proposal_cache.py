"""The cache: whole or absent, resumable, and nobody else's."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from stepgrad.data import (
    CachedProposals,
    PackedProposals,
    SearchSettings,
    ShapesDataset,
    VOCDataset,
    generate_proposals,
    import_proposals,
    load_proposals,
    selective_search,
)
from stepgrad.data.proposals.cache import record_path
from stepgrad.errors import DataError
from stepgrad.files import WriteError
from stepgrad.locks import only_writer
from tests.data.builders import write_image, write_voc
from tests.patience import PATIENCE
from tests.small_disk import largest_file

pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")


@pytest.fixture
def dataset(tmp_path: Path) -> VOCDataset:
    return VOCDataset(write_voc(tmp_path / "V"), "train")


@pytest.fixture
def cache(dataset: VOCDataset, tmp_path: Path) -> Path:
    """A folder with the windows of images a and b."""
    outcome = generate_proposals(dataset, tmp_path / "cache")
    assert (outcome.made, outcome.found, outcome.failed) == (2, 0, [])
    return tmp_path / "cache"


def test_cached_windows_are_those_of_the_search_without_pickles(dataset: VOCDataset, cache: Path) -> None:
    proposals = load_proposals(cache, dataset)
    for index, image_id in enumerate(dataset.ids):
        assert np.array_equal(proposals[image_id].numpy(), selective_search(dataset.image(index)))
    with np.load(record_path(cache, "a"), allow_pickle=False) as file:
        assert sorted(file) == ["boxes", "dataset", "fingerprint", "settings"]
        assert str(file["settings"]) == SearchSettings().to_json()


def test_threads_make_the_same_cache_as_one(tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=4)
    generate_proposals(dataset, tmp_path / "one")
    ticks: list[int] = []
    outcome = generate_proposals(dataset, tmp_path / "two", workers=2, progress=lambda: ticks.append(1))
    assert (outcome.made, len(ticks)) == (4, 4)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("one", "two")]
    assert contents[0] == contents[1]


def test_second_run_makes_only_what_is_missing(dataset: VOCDataset, cache: Path) -> None:
    kept = record_path(cache, "a")
    before = kept.stat().st_mtime_ns
    record_path(cache, "b").unlink()
    outcome = generate_proposals(dataset, cache)
    assert (outcome.made, outcome.found) == (1, 1)
    assert kept.stat().st_mtime_ns == before


def test_changed_image_makes_the_cache_stale(dataset: VOCDataset, cache: Path) -> None:
    write_image(dataset.root / "JPEGImages/b.jpg", seed=99)
    changed = r"b\.npz: was made for 'V train'; the image with that id has changed since"
    for use in (load_proposals, lambda folder, images: generate_proposals(images, folder)):
        with pytest.raises(DataError, match=changed):
            use(cache, dataset)
    assert load_proposals(cache, dataset, verify=False)["b"].shape[1] == 4
    generate_proposals(dataset, cache, overwrite=True)
    load_proposals(cache, dataset)


def test_cache_of_another_dataset_is_named_and_left_alone(cache: Path, tmp_path: Path) -> None:
    other_root = write_voc(tmp_path / "W")
    write_image(other_root / "JPEGImages/a.jpg", seed=50)
    before = record_path(cache, "a").read_bytes()
    with pytest.raises(
        DataError, match=r"was made for 'V train'; the image with that id is a different one in 'W train'; .*--out"
    ):
        generate_proposals(VOCDataset(other_root, "train"), cache)
    assert record_path(cache, "a").read_bytes() == before


def test_missing_windows_are_counted_and_other_settings_noticed_before_anything_is_written(
    dataset: VOCDataset, cache: Path
) -> None:
    record_path(cache, "a").unlink()  # so that there would be something to write
    with pytest.raises(DataError, match="has no windows for 1 of the 2 images of V train, first 'a'"):
        load_proposals(cache, dataset)
    with pytest.raises(DataError, match=r'b\.npz: was made with .*"min_side": 12.*not with .*"min_side": 20'):
        generate_proposals(dataset, cache, SearchSettings(min_side=20))
    assert not record_path(cache, "a").exists()


def test_damaged_cache_file_is_named(dataset: VOCDataset, cache: Path) -> None:
    path = record_path(cache, "a")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(b"PK") + 60] ^= 0xFF  # inside the compressed windows, the first member
    for damaged in (b"", whole[:10], whole[:200], bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.npz: is damaged or not a proposal cache file"):
            load_proposals(cache, dataset)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no proposal cache files"):
        load_proposals(tmp_path)


@pytest.mark.parametrize(
    "image_id", ["2008_000007", "a/b", "..", ".hidden", "50%", "ü x", 7, "", "CON", "a\nb\0", "\ud800"]
)
def test_every_id_gets_a_file_of_its_own_in_the_folder(tmp_path: Path, image_id: str | int) -> None:
    path = record_path(tmp_path, image_id)
    assert path.parent == tmp_path
    assert not path.name.startswith(".")
    path.write_bytes(b"")
    assert list(CachedProposals(tmp_path)) == [str(image_id)]


def test_long_ids_have_files_of_their_own(tmp_path: Path) -> None:
    ids = ["x" * 400 + end for end in "ab"]
    for image_id in ids:
        record_path(tmp_path, image_id).write_bytes(b"")
    cached = CachedProposals(tmp_path)
    assert len({cached.path(image_id) for image_id in ids}) == 2
    assert all(key in cached for key in cached)
    assert "x" * 400 not in cached


def test_files_whose_names_quote_more_than_necessary_are_found(dataset: VOCDataset, cache: Path) -> None:
    record_path(cache, "a").rename(cache / "%61.npz")
    assert generate_proposals(dataset, cache).found == 2
    assert len(load_proposals(cache, dataset)) == 2


def test_unreadable_image_is_reported_and_the_rest_goes_on(dataset: VOCDataset, tmp_path: Path) -> None:
    (dataset.root / "JPEGImages/a.jpg").write_bytes(b"")
    outcome = generate_proposals(dataset, tmp_path / "cache")
    assert outcome.made == 1
    assert len(outcome.failed) == 1
    assert "a.jpg: is not an image (the file is empty)" in outcome.failed[0]


def test_full_disk_stops_the_run_and_loses_nothing(
    dataset: VOCDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def fill_up(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(WriteError, match=r"b\.npz: the disk is full"):
        generate_proposals(dataset, tmp_path / "cache")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a.npz"]
    assert generate_proposals(dataset, tmp_path / "cache").found == 1
    with largest_file(100), pytest.raises(WriteError, match="the disk is full"):
        generate_proposals(dataset, tmp_path / "other", workers=2)
    assert not list(tmp_path.glob("other/*"))


def test_interrupt_leaves_a_cache_to_go_on_with(tmp_path: Path) -> None:
    code = """
import sys
from stepgrad.cli.propose import propose
if __name__ == "__main__":
    sys.exit(propose("shapes:val,length=5000", out=sys.argv[1], workers=2))
"""
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(code)
    command = [sys.executable, str(script), str(cache)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + PATIENCE
    while len(list(cache.glob("[!.]*.npz"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and its workers all get it
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "of 5000 images: run the same command again to continue" in " ".join(output.split())
    assert "Traceback" not in errors
    done = len(list(cache.glob("*.npz")))
    assert 3 <= done < 5000
    assert not list(cache.glob(".*"))
    part = ShapesDataset("val", length=3)
    assert generate_proposals(part, cache).found + generate_proposals(part, cache).found >= 3


def test_imported_windows_get_fingerprints(dataset: VOCDataset, tmp_path: Path) -> None:
    packed = PackedProposals(["a", "b", "c"], [0, 1, 1, 2], [[0, 0, 5, 5], [1, 1, 9, 9]], "windows.npz")
    outcome = import_proposals(packed, dataset, tmp_path / "cache")
    assert outcome.made == 2
    cached = load_proposals(tmp_path / "cache", dataset)
    assert cached["a"].tolist() == [[0, 0, 5, 5]]
    assert len(cached["b"]) == 0
    assert import_proposals(packed, dataset, tmp_path / "cache").found == 2
    with pytest.raises(DataError, match=r'was made with .*"imported", "source": "windows\.npz"'):
        generate_proposals(dataset, tmp_path / "cache")


def test_only_the_images_of_the_numbers_given_are_searched(tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=4)
    outcome = generate_proposals(dataset, tmp_path / "cache", indices=[1, 3])
    assert (outcome.made, outcome.found) == (2, 0)
    assert sorted(CachedProposals(tmp_path / "cache")) == [str(dataset.ids[1]), str(dataset.ids[3])]
    load_proposals(tmp_path / "cache", dataset, indices=[3])
    with pytest.raises(DataError, match="has no windows for 1 of the 2 images"):
        load_proposals(tmp_path / "cache", dataset, indices=[0, 1])


def test_a_search_waits_for_the_one_before_it_and_makes_nothing_twice(tmp_path: Path) -> None:
    """The second has looked before the first was done; it looks again when its turn comes."""
    dataset, cache, said = ShapesDataset("val", length=3), tmp_path / "cache", []
    with ExitStack() as first:
        first.enter_context(only_writer(cache, ""))

        def let_the_first_finish(text: str) -> None:
            said.append(text)
            source = tmp_path / "made by the first"
            generate_proposals(dataset, source, indices=[0, 1])
            for path in source.iterdir():
                path.rename(cache / path.name)
            first.close()

        outcome = generate_proposals(dataset, cache, say=let_the_first_finish)
    assert (outcome.made, outcome.found) == (1, 2)
    assert len(said) == 1
    assert f"waiting for process {os.getpid()}" in said[0]


def test_windows_of_different_settings_are_not_mixed_by_two_searches_at_once(tmp_path: Path) -> None:
    dataset, cache = ShapesDataset("val", length=2), tmp_path / "cache"
    with ExitStack() as first:
        first.enter_context(only_writer(cache, ""))

        def let_the_first_finish(_: str) -> None:
            generate_proposals(dataset, tmp_path / "other", SearchSettings(min_side=20), indices=[0])
            (tmp_path / "other" / f"{dataset.ids[0]}.npz").rename(record_path(cache, dataset.ids[0]))
            first.close()

        with pytest.raises(DataError, match=r'was made with .*"min_side": 20.*not with'):
            generate_proposals(dataset, cache, say=let_the_first_finish)
    assert list(CachedProposals(cache)) == [str(dataset.ids[0])]


def test_cached_windows_are_found_while_another_process_searches(dataset: VOCDataset, cache: Path) -> None:
    with only_writer(cache, ""):
        assert generate_proposals(dataset, cache).found == 2


def test_two_commands_at_once_make_the_cache_of_one(tmp_path: Path) -> None:
    words = ["-m", "stepgrad.cli", "propose", "shapes:val,length=12", "--workers", "1", "--out"]
    commands = [[sys.executable, *words, str(tmp_path / "cache")] for _ in range(2)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for command in commands
    ]
    outputs = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    made = [int(word) for output in outputs for word in re.findall(r"(\d+) made", output)]
    assert sum(made) == 12  # none of them twice
    generate_proposals(ShapesDataset("val", length=12), tmp_path / "alone")
    contents = [{path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("cache", "alone")]
    assert contents[0] == contents[1]


def test_windows_that_lack_an_image_are_refused_before_any_is_written(dataset: VOCDataset, tmp_path: Path) -> None:
    packed = PackedProposals(["a"], [0, 1], [[0, 0, 9, 9]], "windows.npz")
    with pytest.raises(DataError, match="has no windows for 1 of the 2 images of V train, first 'b'"):
        import_proposals(packed, dataset, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
