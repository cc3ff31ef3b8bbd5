"""The configuration: round trips, and errors that name the key."""

from __future__ import annotations

import pytest

from stepgrad.detector.training.config import PhaseConfig, TrainConfig, from_dict, to_dict
from stepgrad.errors import ConfigError


def test_a_config_survives_the_way_to_plain_dicts_and_back() -> None:
    config = from_dict({"also_report": ["coco"], "data": {"class_names": ["a", "b"]}, "nll": {"drop_every": None}})
    assert from_dict(to_dict(config)) == config
    assert config.also_report == ("coco",)
    assert config.data.class_names == ("a", "b")


def test_keys_left_out_keep_the_values_of_the_base() -> None:
    base = from_dict({"nll": {"steps": 7, "lr": 0.5}})
    assert from_dict({"nll": {"lr": 1}}, base).nll == PhaseConfig(steps=7, lr=1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"modle": {}}, r"modle: no such key. Did you mean 'model'\?"),
        ({"nll": {"foregrund": 0.1}}, r"nll.foregrund: no such key. Did you mean 'foreground'\?"),
        ({"nll": {"steps": "many"}}, "nll.steps: expected int but got 'many'"),
        ({"loss": "mapp"}, "loss: expected .*'nll-then-map'.* but got 'mapp'"),
        ({"nll": 3}, "nll: expected a section with keys but got 3"),
        ({"nll": {"foreground": 2.0}}, "nll.foreground: expected a share from 0 to 1 but got 2.0"),
        ({"map": {"images": 0}}, "map.images: expected a number > 0 but got 0"),
        ({"map": {"steps": -1}}, "map.steps: expected a number >= 0 but got -1"),
        ({"map": {"windows": 0}}, "map.windows: expected a number > 0 or null but got 0"),
        ({"run": {"keep": 0}}, "run.keep: expected a number >= 1 but got 0"),
        ({"model": {"score": "raw"}}, "model.score: cross-entropy needs `logprob`"),
        ({"loss": "map", "model": {"score": "raw"}, "map_loss": {"nll_weight": 1}}, "map_loss.nll_weight: needs"),
        ({"loss": "nll", "nll": {"steps": 0}}, "loss: 'nll' has no steps"),
        ({"protocol": "voc13"}, r"protocol.*'voc13'.*Did you mean"),
        ({"metric": "recal@precision=0.9"}, r"recal@precision=0.9.*Did you mean 'recall'"),
        ({"metric": "f1@threshold=-1"}, "map_loss.balance: expected `none` for f1@threshold=-1"),
        ({"metric": "ap@area=small"}, "COCO"),
    ],
)
def test_what_cannot_work_is_an_error_that_names_the_key(content: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(content)


def test_scores_are_raw_only_where_no_cross_entropy_is_involved() -> None:
    assert from_dict({"loss": "map"}).score == "raw"
    assert from_dict({"loss": "map", "map_loss": {"nll_weight": 0.1}}).score == "logprob"
    assert from_dict({"loss": "map", "model": {"score": "logprob"}}).score == "logprob"
    assert TrainConfig().score == "logprob"


def test_a_phase_without_steps_is_left_out() -> None:
    config = from_dict({"nll": {"steps": 0}, "map": {"steps": 5}})
    assert [phase.name for phase in config.phases()] == ["map"]
    assert config.total_steps == 5
