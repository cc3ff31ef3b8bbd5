"""Training configs as people write them: presets, yaml files, and the same keys as options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from stepgrad.cli.options import Option, helps_of
from stepgrad.detector.training.config import TrainConfig, from_dict, to_dict
from stepgrad.errors import ConfigError, suggest
from stepgrad.names import on_disk
from stepgrad.yaml_text import load_yaml

_PRESETS = files("stepgrad") / "detector" / "presets"


def presets() -> dict[str, str]:
    """Every preset by name, and its first line of comment."""
    texts = {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in _PRESETS.iterdir()
        if entry.is_file()
    }
    return {name: texts[name].splitlines()[0].lstrip("# ") for name in sorted(texts)}


def read_config(sources: Iterable[str], options: dict[str, Any]) -> TrainConfig:
    """The defaults, changed by each source in turn (a preset or a file), changed by the options given."""
    parts = [part for source in sources for part in _with_bases(source)]
    content: dict[str, Any] = {}
    for _, part in parts:
        content = _merged(content, part)
    try:
        return from_dict(_merged(content, nested(options)))
    except ConfigError as error:
        key = str(error).partition(":")[0]
        guilty = [source for source, part in parts if _has(part, key) and key not in options]
        raise ConfigError(f"{guilty[-1]}: {error}" if guilty else str(error)) from error


def _has(content: Any, key: str) -> bool:
    """Whether a dotted key is there."""
    name, _, rest = key.partition(".")
    return isinstance(content, dict) and name in content and (not rest or _has(content[name], rest))


def _with_bases(source: str, extending: tuple[str, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """A source after the presets and files that its key `extends` names: each with its own keys, which change those before."""
    if source in extending:
        raise ConfigError(f"{source}: extends itself, by way of {' and '.join(extending)}.")
    content = _read(source)
    bases = content.pop("extends", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{source}: extends: expected a preset, a file, or a list of them but got {bases!r}.")
    inherited = [part for base in bases for part in _with_bases(_beside(source, base), (*extending, source))]
    return [*inherited, (source, content)]


def _beside(source: str, base: str) -> str:
    """The name of a preset unchanged, of a file relative to the file that names it."""
    return base if base in presets() else str(Path(source).expanduser().parent / base)


def _read(source: str) -> dict[str, Any]:
    if source in presets():
        text = (_PRESETS / f"{source}.yaml").read_text(encoding="utf-8")
    else:
        text = _read_file(source)
    try:
        content = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not valid yaml: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict | None):
        raise ConfigError(f"{source}: expected keys and values such as `loss: map` but got {str(content)[:40]!r}.")
    return content or {}


def _read_file(source: str) -> str:
    try:
        return Path(on_disk(source)).expanduser().read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        names = list(presets())
        raise ConfigError(
            f"{source}: no such config file or preset.{suggest(source, names)} Presets: {', '.join(names)}."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read as a config ({error}).") from error


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two configs as one, section by section; where both have a key, `above` wins."""
    both = {key for key in below if isinstance(below[key], dict) and isinstance(above.get(key), dict)}
    return {**below, **above, **{key: _merged(below[key], above[key]) for key in both}}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Sections from keys with dots.

    >>> nested({"loss": "map", "map.lr": 0.1, "map.steps": 5})
    {'loss': 'map', 'map': {'lr': 0.1, 'steps': 5}}
    """
    content: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (content.setdefault(section, {}) if section else content)[name] = value
    return content


def config_options() -> list[Option]:
    """Every key of a config as an option, section by section."""
    return list(_options(TrainConfig(), ""))


def _options(config: Any, prefix: str) -> Iterator[Option]:
    helps, hints = helps_of(type(config)), get_type_hints(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if not is_dataclass(value):
            yield Option(f"{prefix}{f.name}", hints[f.name], value, helps.get(f.name, ""))
    for f in fields(config):
        if is_dataclass(getattr(config, f.name)):
            yield from _options(getattr(config, f.name), f"{prefix}{f.name}.")


def config_text(config: TrainConfig) -> str:
    """The whole config as yaml, every key explained."""
    helps = {option.name: option.help for option in config_options()}
    lines: list[str] = []
    for key, value in to_dict(config).items():
        if not isinstance(value, dict):
            lines.append(_line(key, value, helps[key], ""))
    for section, values in to_dict(config).items():
        if isinstance(values, dict):
            lines.append(f"{section}:")
            lines += [_line(key, value, helps[f"{section}.{key}"], "  ") for key, value in values.items()]
    return "\n".join(lines)


def _line(key: str, value: Any, text: str, indent: str) -> str:
    shown = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    return f"{f'{indent}{key}: {shown}':<28}  # {text}"
