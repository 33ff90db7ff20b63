"""Flags, environment and file become one `Config`, by one rule for every field.

The flag of `gateway.admin_port` is `--admin-port`, its variable `WARMROUTE_GATEWAY_ADMIN_PORT`. Sections a command
shares with others keep their name in the flag: `--redis-url`.
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from warmroute.config.model import Config

_SHAPES: Final = {
    "tuple_type": "give a list, such as [a, b]",
    "model_type": "give a mapping, such as {name: value}",
}
CONFIG_VARIABLE: Final = "WARMROUTE_CONFIG"


class ConfigError(Exception):
    """The configuration is refused; the message names the field, the value, where it came from and the remedy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of one section, as the command line and the environment know it."""

    section: str
    field: str
    info: FieldInfo
    flag: str

    @property
    def variable(self) -> str:
        return f"WARMROUTE_{self.section}_{self.field}".upper()

    @property
    def destination(self) -> str:
        return f"{self.section}.{self.field}"


def settings_of(section: str, *shared: str) -> Iterator[Setting]:
    """The settings of a command: its own section, then shared ones."""
    for name in (section, *shared):
        (model,) = _models_in(Config.model_fields[name].annotation)
        for field, info in model.model_fields.items():
            prefix = "" if name == section else f"{name}-"
            yield Setting(name, field, info, f"--{prefix}{field.replace('_', '-')}")


def add_flags(parser: argparse.ArgumentParser, section: str, *shared: str) -> None:
    """Declare `--config` and one flag a setting."""
    parser.add_argument("--config", metavar="FILE", help=f"YAML file with all settings [{CONFIG_VARIABLE}]")
    for setting in settings_of(section, *shared):
        default = setting.info.get_default(call_default_factory=True)
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        shown = "" if default in (None, "") or isinstance(default, BaseModel) else f" (default: {default})"
        parser.add_argument(
            setting.flag,
            dest=setting.destination,
            metavar="VALUE",
            help=f"{setting.info.description}{_choices(setting)}{shown} [{setting.variable}]".replace("%", "%%"),
        )


def _choices(setting: Setting) -> str:
    if typing.get_origin(setting.info.annotation) is not typing.Literal:
        return ""
    return ": " + ", ".join(typing.get_args(setting.info.annotation))


def unknown_variables(environment: Mapping[str, str], section: str, *shared: str) -> list[str]:
    """Variables that look like settings of this command and are none. Kubernetes sets such ones for Services, so they
    are no errors."""
    known = {setting.variable for setting in settings_of(section, *shared)}
    prefixes = tuple(f"WARMROUTE_{name}_".upper() for name in (section, *shared))
    return sorted(name for name in environment if name.startswith(prefixes) and name not in known)


def load(arguments: argparse.Namespace, environment: Mapping[str, str], section: str, *shared: str) -> Config:
    """Merge file, environment and flags. Raises ConfigError."""
    path = arguments.config or environment.get(CONFIG_VARIABLE)
    file = Path(path) if path else None
    values = _read_file(file) if file else {}
    origins: dict[tuple[str, str], str] = {}
    for setting in settings_of(section, *shared):
        text = getattr(arguments, setting.destination, None)
        origin = setting.flag
        if text is None and setting.variable in environment:
            text, origin = environment[setting.variable], setting.variable
        if text is not None:
            values.setdefault(setting.section, {})[setting.field] = _parse(setting, text, origin)
            origins[setting.section, setting.field] = origin
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_describe(error, origins, file)) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not YAML: {_without_text(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(value, dict) for value in values.values()):
        known = ", ".join(Config.model_fields)
        raise ConfigError(f"--config: {path} must map section names to settings; sections: {known}")
    return _from_folder(values, Config, path.parent)


def _from_folder(values: dict[str, Any], model: type[BaseModel], folder: Path) -> dict[str, Any]:
    """Relative paths in a file start at its folder, wherever the command is called."""
    fields = model.model_fields
    return {
        name: _resolve(value, fields[name].annotation, folder) if name in fields else value
        for name, value in values.items()
    }


def _resolve(value: Any, annotation: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return str(folder / value) if _is_path(annotation) and value not in _words(annotation) else value
    if isinstance(value, list):
        return [_resolve(item, annotation, folder) for item in value]
    model = next(_models_in(annotation), None)
    return _from_folder(value, model, folder) if isinstance(value, dict) and model is not None else value


def _is_path(annotation: Any) -> bool:
    return annotation is Path or any(_is_path(option) for option in typing.get_args(annotation))


def _words(annotation: Any) -> tuple[Any, ...]:
    """What may stand in place of a path."""
    options = typing.get_args(annotation)
    return options if typing.get_origin(annotation) is typing.Literal else tuple(w for o in options for w in _words(o))


def _without_text(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """What is wrong and where, without the line itself: it may hold a password."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it has characters that YAML lacks"
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def _parse(setting: Setting, text: str, origin: str) -> Any:
    """Text fields are taken as they are, everything else is YAML."""
    if _is_text(setting.info.annotation):
        return None if text == "null" and type(None) in typing.get_args(setting.info.annotation) else text
    # [::1]:50051 is an address and no list.
    of_yaml = text.lstrip().startswith(("{", "-", "'", '"')) or (text.strip()[:1] == "[" and text.strip()[-1:] == "]")
    if _is_list(setting.info.annotation) and not of_yaml:
        return [item.strip() for item in text.split(",")]
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{setting.destination}: {text!r} from {origin} is not YAML: {error}") from error


def _is_text(annotation: Any) -> bool:
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return any(_is_text(option) for option in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_text(typing.get_args(annotation)[0])
    return isinstance(annotation, type) and issubclass(annotation, str | Path)


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) is tuple


def _describe(error: ValidationError, origins: Mapping[tuple[str, str], str], file: Path | None) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        name = ".".join(map(str, location))
        origin = origins.get(typing.cast(tuple[str, str], location[:2])) or (str(file) if file else "the defaults")
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name} (from {origin}) is not a setting; {_known(location)}")
        elif problem["type"] == "missing":
            lines.append(f"{name} is missing in {origin}: {_description(location)}")
        else:
            value = repr(problem["input"])[:200]
            reason = _SHAPES.get(problem["type"], problem["msg"])
            lines.append(f"{name}: {value} (from {origin}) is refused: {reason}. {_description(location)}".rstrip())
    return "\n".join(lines)


def _model_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that holds the last step of a location; None where steps leave plain models."""
    model: Any = Config
    for step in location[:-1]:
        if isinstance(step, int):
            continue
        info = model.model_fields.get(step) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = next(iter(_models_in(info.annotation)), None) if info else None
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for option in typing.get_args(annotation):
        yield from _models_in(option)


def _known(location: Sequence[int | str]) -> str:
    model = _model_at(location)
    return f"known here: {', '.join(model.model_fields)}" if model else "see the reference in warmroute/config/model.py"


def _description(location: Sequence[int | str]) -> str:
    model = _model_at(location)
    info = model.model_fields.get(str(location[-1])) if model else None
    return f"It means: {info.description}" if info and info.description else ""
