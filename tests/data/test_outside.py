"""Names in annotation files that lead out of the data: refused, with the entry and the way out, unless allowed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import COCODataset, VOCDataset, import_proposals, load_dataset, load_proposals
from stepgrad.data.doctor import examine
from stepgrad.data.own_files import is_below
from stepgrad.errors import DataError
from tests.data.builders import coco_content, voc_xml, write_coco, write_image, write_voc

OPTION = r"images_outside=True in Python, --images_outside in commands, data\.images_outside: true in configs"


def coco_naming(root: Path, name: str) -> Path:
    """A COCO file in root/data whose image 4, the first by id, is called so."""
    content = coco_content()
    content["images"][1]["file_name"] = name
    return write_coco(root / "data", content)


def secret(root: Path) -> Path:
    write_image(root / "secret.jpg")
    return root / "secret.jpg"


@pytest.mark.parametrize("name", ["../../secret.jpg", "x/../../../secret.jpg", "absolute", "../../gone.jpg"])
def test_a_file_name_of_coco_that_leads_out_is_refused_with_its_entry_and_the_option(tmp_path: Path, name: str) -> None:
    name = str(secret(tmp_path)) if name == "absolute" else name
    path = coco_naming(tmp_path, name)
    with pytest.raises(DataError, match=OPTION) as error:
        COCODataset(path)
    assert str(error.value).startswith(f"{path}: image 4: file_name {name!r} points outside {path.parent}; ")


def test_it_is_allowed_where_that_is_asked_for(tmp_path: Path) -> None:
    path = coco_naming(tmp_path, str(secret(tmp_path)))
    with pytest.raises(DataError, match="points outside"):
        load_dataset(path)
    dataset = load_dataset(path, images_outside=True)
    assert [dataset.image(i).size for i in range(2)] == [(60, 40), (60, 40)]


@pytest.mark.parametrize("where", ["../images/four.jpg", "absolute", "x/../four.jpg"])
def test_names_that_lead_elsewhere_in_the_data_are_fine(tmp_path: Path, where: str) -> None:
    content = coco_content()
    content["images"] = content["images"][1:]
    content["annotations"] = content["annotations"][2:]
    path = write_coco(tmp_path / "data", content)
    (tmp_path / "data/images/x").mkdir()
    (tmp_path / "data/annotations").mkdir()
    path = path.rename(tmp_path / "data/annotations/instances.json")
    content["images"][0]["file_name"] = str(tmp_path / "data/images/four.jpg") if where == "absolute" else where
    path.write_text(json.dumps(content))
    assert COCODataset(path).image(0).size == (60, 40)
    assert examine(path).errors == 0


def test_names_are_as_good_as_any_if_no_image_is_needed(tmp_path: Path) -> None:
    assert len(COCODataset(coco_naming(tmp_path, "/etc/x.jpg"), need_images=False)) == 2


def test_the_doctor_reports_it_and_does_not_open_the_file(tmp_path: Path) -> None:
    path = coco_naming(tmp_path, str(secret(tmp_path)))
    (tmp_path / "secret.jpg").write_bytes(b"not for you")
    kinds = [problem.kind for problem in examine(path).problems if problem.severity == "error"]
    assert kinds == ["image-outside"]
    allowed = [problem.kind for problem in examine(path, images_outside=True).problems if problem.severity == "error"]
    assert "image-outside" not in allowed


def test_the_commands_take_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = coco_naming(tmp_path, str(secret(tmp_path)))
    assert main(["doctor", str(path)]) == 1
    assert "points outside" in capsys.readouterr().out
    assert main(["doctor", str(path), "--images_outside"]) == 0
    out = str(tmp_path / "windows")
    assert main(["propose", str(path), "--out", out, "--workers", "1"]) == 2
    assert "points outside" in capsys.readouterr().err
    assert main(["propose", str(path), "--out", out, "--workers", "1", "--images_outside"]) == 0
    assert main(["train", "--data.path", str(path), "--data.images_outside", "--print_config"]) == 0
    assert "images_outside: true" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["../../secret", "absolute"])
def test_a_line_of_an_image_set_that_leads_out_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "secret.xml").write_text(voc_xml([("secret", 1, 1, 5, 5)]))
    line = str(tmp_path / "secret") if line == "absolute" else line
    root = write_voc(tmp_path / "V", splits={"train": f"a\n{line}\n"})
    with pytest.raises(
        DataError, match=r"train\.txt: lists image '.*secret', which points outside .*Annotations; correct"
    ):
        VOCDataset(root, "train", need_images=False)
    problems = examine(root).problems
    assert [problem.kind for problem in problems if problem.severity == "error"] == ["id-outside"]
    assert not any("'secret'" in problem.what for problem in problems)


def test_the_filename_in_an_annotation_is_not_followed(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    path = root / "Annotations/a.xml"
    path.write_text(path.read_text().replace("<size>", f"<filename>{secret(tmp_path)}</filename><size>", 1))
    assert VOCDataset(root, "train").image_path(0) == root / "JPEGImages/a.jpg"


def test_windows_of_any_image_id_stay_in_their_folder(tmp_path: Path) -> None:
    dataset = VOCDataset(write_voc(tmp_path / "V"), "train")
    dataset.ids = ["../../a", "/b"]
    dataset._images = {"../../a": "a.jpg", "/b": "b.jpg"}
    np.savez(tmp_path / "w.npz", ids=["../../a", "/b", "../c"], offsets=[0, 1, 2, 3], boxes=[[0, 0, 5, 5]] * 3)
    before = set(tmp_path.rglob("*"))
    import_proposals(load_proposals(tmp_path / "w.npz"), dataset, tmp_path / "deep" / "cache")
    made = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert {path.parent for path in made} == {tmp_path / "deep" / "cache"}
    assert len(load_proposals(tmp_path / "deep" / "cache", dataset)) == 2


def test_below_means_below(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = tmp_path / "link"
    assert is_below(folder / "a/b.jpg", folder)
    assert is_below(tmp_path / "real/b.jpg", folder)  # the same folder by its other name
    assert not is_below(folder / "../b.jpg", folder)
    assert not is_below(folder / "/etc/passwd", folder)
    assert not is_below(tmp_path / "link-2/b.jpg", folder)
