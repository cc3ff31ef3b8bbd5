"""Files of thresholds: JSON, or YAML if the name ends so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepgrad.errors import ConfigError, DataError
from stepgrad.extras import need
from stepgrad.files import write_whole

YAML = (".yaml", ".yml")


def check_name(path: Path) -> None:
    """Raise ConfigError for a name that says neither JSON nor YAML, before the work is done."""
    if path.suffix.lower() not in (*YAML, ".json"):
        raise ConfigError(f"{path}: expected a file name that ends in .json, .yaml or .yml.")
    if path.suffix.lower() in YAML:
        need("yaml", purpose="thresholds as YAML")


def save_cuts(path: Path, content: Mapping[str, Any]) -> None:
    """Write thresholds and what belongs to them."""
    place = path.expanduser()
    if place.suffix.lower() in YAML:
        need("yaml", purpose="thresholds as YAML")
        import yaml

        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(content, indent=1) + "\n"
    write_whole(place, text.encode())


def read_cuts(path: Path) -> dict[str, Any]:
    """The content of a file of thresholds: at least "thresholds", numbers or nulls by class."""
    place = path.expanduser()
    try:
        content = _parsed(place)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected thresholds that `stepgrad thresholds --out` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as thresholds: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("thresholds"), dict):
        raise DataError(
            f'{path}: expected thresholds as `stepgrad thresholds --out` writes them, {{"thresholds": {{"dog": 0.4}}}}'
        )
    for name, value in content["thresholds"].items():
        if not (value is None or (_is_number(value) and math.isfinite(value))):
            raise DataError(f"{path}: expected a number or null as the threshold of {name!r} but got {value!r}")
    return {**content, "thresholds": {str(name): value for name, value in content["thresholds"].items()}}


def _parsed(place: Path) -> Any:
    text = place.read_text(encoding="utf-8")
    if place.suffix.lower() not in YAML:
        return json.loads(text)
    need("yaml", purpose="thresholds as YAML")
    import yaml

    from stepgrad.yaml_text import load_yaml

    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
