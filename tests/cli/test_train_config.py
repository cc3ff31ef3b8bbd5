"""Configs of `stepgrad train`: presets, files, options, and mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stepgrad.cli import main
from stepgrad.cli.configs import config_text, presets, read_config
from stepgrad.detector.training.config import TrainConfig, to_dict
from stepgrad.errors import ConfigError
from stepgrad.losses.detection import MAPLoss

PRESETS = ["fast-rcnn", "paper", "paper-voc12", "shapes", "voc07", "voc12"]


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["train", *words, "--print_config"]) == 0
    content: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return content


def test_without_a_word_all_is_as_in_the_dataclass(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([], capsys) == to_dict(TrainConfig())


@pytest.mark.parametrize("name", PRESETS)
def test_printed_config_reads_back_as_the_same_config(name: str, tmp_path: Path) -> None:
    assert name in presets()
    config = read_config([name], {})
    (tmp_path / "c.yaml").write_text(config_text(config))
    assert read_config([str(tmp_path / "c.yaml")], {}) == config


def test_options_beat_later_files_beat_earlier_files_beat_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("nll: {lr: 1e-2, steps: 11, images: 3}\n")  # yaml alone takes 1e-2 for text
    words = ["--config", "shapes", f"--config={file}", "--nll.steps", "12", "--data.flip", "false"]
    content = printed([*words, "--map_loss.l4", "null", "--also_report", "coco", "voc07"], capsys)
    assert content["model"]["backbone"] == "tiny"
    assert {key: content["nll"][key] for key in ("lr", "steps", "images")} == {"lr": 0.01, "steps": 12, "images": 3}
    assert content["data"]["flip"] is False
    assert content["also_report"] == ["coco", "voc07"]


def test_several_configs_may_follow_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("nll: {steps: 11}\n")
    once, twice = ["--config", "shapes", str(file)], ["--config", "shapes", "--config", str(file)]
    assert printed(once, capsys) == printed(twice, capsys)


def test_a_file_changes_what_it_extends(tmp_path: Path) -> None:
    """A preset, then a file in the same folder that extends another; each changes those before it."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "long.yaml").write_text("nll: {steps: 7, lr: 0.5}\nmap: {steps: 7}\n")
    (tmp_path / "parts" / "longer.yaml").write_text("extends: long.yaml\nnll: {steps: 8}\n")
    (tmp_path / "mine.yaml").write_text("extends: [shapes, parts/longer.yaml]\nmap: {steps: 9}\n")
    config = read_config([str(tmp_path / "mine.yaml")], {"nll.images": 3})
    assert (config.nll.steps, config.nll.lr, config.map.steps, config.nll.images) == (8, 0.5, 9, 3)
    assert config.model == read_config(["shapes"], {}).model


def test_a_mistake_in_an_extended_file_is_named_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("nll: {step: 3}")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nnll: {lr: 0.1}")
    with pytest.raises(ConfigError, match=r"base\.yaml: nll\.step: no such key\. Did you mean 'steps'\?"):
        read_config([str(tmp_path / "mine.yaml")], {})


BAD_BASES = {
    "extends: mine.yaml": r"mine\.yaml: extends itself, by way of .*mine\.yaml",
    "extends: vo07": r"vo07: no such config file or preset",
    "extends: {a: 1}": r"mine\.yaml: extends: expected a preset, a file, or a list of them but got \{'a': 1\}",
    "extends: [3]": r"mine\.yaml: extends: expected a preset, a file, or a list of them but got \[3\]",
}


@pytest.mark.parametrize("content", BAD_BASES)
def test_what_cannot_be_extended_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError, match=BAD_BASES[content]):
        read_config([str(tmp_path / "mine.yaml")], {})


def test_short_options_stand_for_those_of_the_map_phase(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["--batch-images", "512", "--chunk-images", "4"], capsys)
    assert (found["map"]["images"], found["map"]["chunk_images"]) == (512, 4)
    assert found["nll"] == to_dict(TrainConfig())["nll"]


def test_paper_preset_is_the_loss_and_protocol_of_the_paper() -> None:
    theirs = MAPLoss.paper(20).objective
    for name, protocol in (("paper", "voc07"), ("paper-voc12", "voc12")):
        config = read_config([name], {})
        assert (config.loss, config.protocol, config.score, config.model.backbone) == (
            "map",
            protocol,
            "raw",
            "alexnet",
        )
        assert config.map.foreground == 0.05
        assert config.map.images > 2
        loss = config.map_loss
        assert (loss.log, loss.eps, loss.l4, loss.clip, loss.balance) == (
            *(theirs.log, theirs.eps, theirs.l4, theirs.clip, theirs.balance),
        )
        assert (loss.estimator, loss.through_nms, loss.min_step) == (
            *(theirs.method.estimator, theirs.method.through_nms, theirs.method.min_step),
        )


SEE = "See `stepgrad train --help`."
BAD_OPTIONS = {
    "--nll.step 3": f"Unknown option: --nll.step. Did you mean --nll.steps? {SEE}",
    "--lr 3": f"Unknown option: --lr. Did you mean --nll.lr or --map.lr? {SEE}",
    "--nll.steps few": f"Invalid value for --nll.steps: expected a whole number but got 'few'. {SEE}",
    "--nll.windows some": f"Invalid value for --nll.windows: expected a whole number but got 'some'. {SEE}",
    "--nll.lr slow": f'Invalid value for --nll.lr: unable to convert "slow" into float. {SEE}',
    "--nll.lr null": "nll.lr: expected float but got None.",
    "--loss nl": f'Invalid value "nl" for --loss. Choose from: "nll", "map", "nll-then-map". Did you mean "nll"? {SEE}',
    "--nll.lr -1": "nll.lr: expected a number > 0 but got -1.0.",
    "--config shpes": (
        "shpes: no such config file or preset. Did you mean 'shapes'? "
        "Presets: fast-rcnn, paper, paper-voc12, shapes, voc07, voc12."
    ),
    "shapes": f"Unused Tokens: ['shapes']. {SEE}",
    "--step 3": "step: needs --resume RUN; to set the length of a run, use --nll.steps and --map.steps.",
}


@pytest.mark.parametrize("words", BAD_OPTIONS)
def test_a_mistake_in_the_options_is_answered_by_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words.split()]) == 2
    assert capsys.readouterr().err == f"stepgrad: {BAD_OPTIONS[words]}\n"


BAD_FILES = {
    "nll: {step: 3}": "nll.step: no such key. Did you mean 'steps'?",
    "los: map": "los: no such key. Did you mean 'loss'?",
    "nll: 3": "nll: expected a section with keys but got 3.",
    "nll: {steps: few}": "nll.steps: expected int but got 'few'.",
    "- loss": "expected keys and values such as `loss: map` but got \"['loss']\".",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_a_mistake_in_a_file_is_named_with_the_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    assert main(["train", "--config", str(file)]) == 2
    assert capsys.readouterr().err == f"stepgrad: {file}: {BAD_FILES[content]}\n"


def test_what_is_no_yaml_is_named_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("nll: {steps: 3\nloss: map")
    assert main(["train", "--config", str(file)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"stepgrad: {file}: is not valid yaml: ")
    assert "line 2" in shown
    assert shown.count("\n") == 1


def test_a_file_need_not_make_sense_without_what_completes_it(tmp_path: Path) -> None:
    """`raw` fits no cross-entropy, which is the default; the option that follows takes it away."""
    file = tmp_path / "mine.yaml"
    file.write_text("model: {score: raw}")
    assert read_config([str(file)], {"loss": "map"}).score == "raw"


def test_help_starts_with_examples_and_explains_every_preset_and_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    head, presets_and_more = shown.split("Presets: ")
    assert head.count(" stepgrad train") == 4  # with the usage
    assert [name for name in presets() if name not in presets_and_more] == []
    for section, values in to_dict(TrainConfig()).items():
        keys = [f"{section}.{key}" for key in values] if isinstance(values, dict) else [section]
        assert [key for key in keys if f"--{key}" not in shown] == []
    assert "Weight of the fourth power of the scores" in " ".join(shown.replace("│", " ").split())


def test_a_run_goes_on_by_its_own_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(tmp_path), "--nll.lr", "0.1"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(
        "stepgrad: nll.lr: a resumed run keeps its own config, so --resume allows no option but --step."
    )
    assert f"stepgrad train --config {tmp_path}/config.yaml --nll.lr ... --out NEW" in shown
