"""Training configs as people write them: presets, yaml files, and the same keys as options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml
from docstring_parser import parse_from_object

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


def read_config(sources: Iterable[str], options: Mapping[str, Any]) -> TrainConfig:
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


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Sections from keys with dots.

    >>> nested({"loss": "map", "map.lr": 0.1, "map.steps": 5})
    {'loss': 'map', 'map': {'lr': 0.1, 'steps': 5}}
    """
    content: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (content.setdefault(section, {}) if section else content)[name] = value
    return content


class Key(NamedTuple):
    """A key of a config."""

    name: str
    """With its section: `nll.steps`."""
    hint: Any
    default: Any
    help: str


def config_keys() -> list[Key]:
    """Every key of a config, those without a section first. No config is made, for its checks would import numpy."""
    parts = {f.name: f.default_factory() for f in fields(TrainConfig) if f.default_factory is not MISSING}
    alone = {f.name: f.default for f in fields(TrainConfig) if f.name not in parts}
    keys = _keys_of(TrainConfig, alone, "")
    for section, part in parts.items():
        keys += _keys_of(type(part), vars(part), f"{section}.")
    return keys


def _keys_of(kind: type, defaults: Mapping[str, Any], prefix: str) -> list[Key]:
    """Keys with the docstrings of their fields on one line; null is what yaml calls None."""
    hints, texts = get_type_hints(kind), {p.arg_name: p.description or "" for p in parse_from_object(kind).params}
    helps = {name: re.sub(r"\bNone\b", "null", " ".join(text.split())) for name, text in texts.items()}
    return [Key(f"{prefix}{name}", hints[name], default, helps[name]) for name, default in defaults.items()]


def config_text(config: TrainConfig) -> str:
    """The whole config as yaml, every key explained."""
    content = to_dict(config)
    lines: list[str] = []
    for key in config_keys():
        section, _, name = key.name.rpartition(".")
        if section and f"{section}:" not in lines:
            lines.append(f"{section}:")
        value = content[section][name] if section else content[name]
        shown = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
        line = f"{'  ' if section else ''}{name}: {shown}"
        lines.append(f"{line:<28}  # {key.help}")
    return "\n".join(lines)
