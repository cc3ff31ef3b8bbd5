"""What a config asks for must be possible: checked when it is made, each complaint with the name of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepgrad.errors import ConfigError, one_of

if TYPE_CHECKING:
    from stepgrad.detector.training.config import PhaseConfig, TrainConfig


def check_config(config: TrainConfig) -> None:
    """Raise ConfigError, naming the key, for what cannot work."""
    from stepgrad.metric.protocol import PROTOCOLS  # the help page should not wait for numpy

    for protocol in (config.protocol, *config.also_report):
        one_of("protocol", protocol, list(PROTOCOLS))
    if config.metric != "ap":
        _check_metric(config)
    if config.loss != "map" and config.model.score == "raw":
        raise ConfigError("model.score: cross-entropy needs `logprob` (it has a background column) but got `raw`.")
    if config.map_loss.nll_weight > 0 and config.model.score == "raw":
        raise ConfigError("map_loss.nll_weight: needs model.score `logprob` but got `raw`.")
    for name, phase in (("nll", config.nll), ("map", config.map)):
        _check_phase(name, phase)
    for key in ("keep", "log_every", "devices"):
        if getattr(config.run, key) < 1:
            raise ConfigError(f"run.{key}: expected a number >= 1 but got {getattr(config.run, key)!r}.")
    if not config.phases():
        raise ConfigError(f"loss: {config.loss!r} has no steps; give nll.steps or map.steps.")


def _check_metric(config: TrainConfig) -> None:
    from stepgrad.metric.options import get_metric, get_protocol  # not for AP: other configs should not wait for numba

    metric = get_metric(config.metric)
    for protocol in (config.protocol, *config.also_report):
        metric.check_protocol(get_protocol(protocol))
    if config.map_loss.balance != "none" and not metric.shift_invariant:
        raise ConfigError(
            f"map_loss.balance: expected `none` for {metric.name}, which has a fixed score threshold, but got "
            f"`{config.map_loss.balance}`."
        )


def _check_phase(name: str, phase: PhaseConfig) -> None:
    for key in ("images", "lr"):
        if not getattr(phase, key) > 0:
            raise ConfigError(f"{name}.{key}: expected a number > 0 but got {getattr(phase, key)!r}.")
    for key in ("steps", "warmup", "weight_decay"):
        if getattr(phase, key) < 0:
            raise ConfigError(f"{name}.{key}: expected a number >= 0 but got {getattr(phase, key)!r}.")
    if phase.foreground is not None and not 0 <= phase.foreground <= 1:
        raise ConfigError(f"{name}.foreground: expected a share from 0 to 1 but got {phase.foreground!r}.")
    for key in ("windows", "chunk_images", "drop_every", "max_gradient_norm"):
        if getattr(phase, key) is not None and not getattr(phase, key) > 0:
            raise ConfigError(f"{name}.{key}: expected a number > 0 or null but got {getattr(phase, key)!r}.")
