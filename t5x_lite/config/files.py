"""Read config files, command lines and config.json into the checked dataclasses of schema.py.

`get_config()` in a config file returns a ConfigDict (or a dict). `load` turns it, with the
overrides of the command line, into frozen dataclasses. Nothing below this file sees a ConfigDict.
"""

import dataclasses
import inspect
import itertools
import os
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from t5x_lite.config import CompareConfig, RunConfig, default, type_hints
from t5x_lite.config.grammar import (
    absolute,
    names_files,
    parse_list,
    parse_sources,
    read_value,
    wants_text,
)
from t5x_lite.config.permission import check_named, grant, guarded
from t5x_lite.config.provenance import (
    known_places,
    names_in,
    settings_written_here,
    written_here,
)
from t5x_lite.config.ranges import check_value, list_type
from t5x_lite.config.roles import BUDGET, PATH, SOURCES, TOKENIZER, roles, settings_with
from t5x_lite.errors import (
    BAD_CONFIG,
    NO_FILE,
    USAGE,
    UserError,
    nearest,
    read_json,
)

Schema = TypeVar("Schema")
Settings = dict[str, Any]  # nested, as a config file or a config.json holds them

# Names of settings in other code bases.
_ALIASES = {
    "lr": "optimizer.learning_rate",
    "max_steps": "training.steps",
    "num_steps": "training.steps",
    "n_layer": "model.num_layers",
    "n_head": "model.num_heads",
    "n_embd": "model.d_model",
    "hidden_size": "model.d_model",
    "block_size": "data.lengths.sequence_length",
    "seq_len": "data.lengths.sequence_length",
    "gradient_accumulation_steps": "training.microbatches",
}


# Dataclasses from nested dicts.


def build(schema: type[Schema], values: Any, path: str = "") -> Schema:
    """Build a checked dataclass from nested dicts. Text, as from a command line, is read as a
    literal.

    Args:
        path: prefix of the keys in error messages, such as "cells.gpt.".

    Raises:
        UserError: for an unknown key (with the nearest known one), a wrong type, or a value out of
            range.
    """
    hints, values = type_hints(schema), _plain(values)
    if not isinstance(values, dict):
        expected = f"expected keys such as {path}{next(iter(hints))}"
        raise UserError(
            BAD_CONFIG, f"{path.rstrip('.') or 'the config'}: got {values!r}, {expected}"
        )
    made = {}
    for name, value in values.items():
        key = f"{path}{name}"
        if name not in hints:
            raise UserError(BAD_CONFIG, f"{key}: no such setting; {_suggest(key, hints)}")
        kind = hints[name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            made[name] = build(hints[name], value, f"{key}.")
        else:
            made[name] = check_value(_from_text(value, kind, key), kind, key)
    built: Any = schema(**made)
    return built


def _plain(value: Any) -> Any:
    """Turn ConfigDicts into dicts, including those in lists."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def build_comparison(settings: Settings) -> CompareConfig:
    """Build a checked comparison. Each cell is `base`, changed by the settings of the cell.

    >>> base = {"data": {"lengths": {"sequence_length": 8}}}
    >>> two = {"base": base, "cells": {"small": {}, "large": {"model": {"d_model": 256}}}}
    >>> [cell.model.d_model for cell in build_comparison(two).cells.values()]
    [128, 256]
    """
    settings = dict(settings)
    base, changes = settings.pop("base", {}), settings.pop("cells", {})
    if not isinstance(changes, dict) or not changes:
        raise UserError(
            BAD_CONFIG, f"cells: got {changes!r}, expected names with the settings of a run each"
        )
    cells = {}
    for name, changed in changes.items():
        if not isinstance(base, dict) or not isinstance(changed, dict):
            key, got = (f"cells.{name}", changed) if isinstance(base, dict) else ("base", base)
            raise UserError(BAD_CONFIG, f"{key}: got {got!r}, expected settings such as seed")
        prefix = f"cells.{name}."
        try:
            cells[name] = build(RunConfig, merge(base, changed), prefix)
        # Name the cell in errors, or `base` if the wrong setting comes from there.
        except UserError as error:
            message = prefix + str(error).removeprefix(prefix)
            key = message.removeprefix(prefix).partition(":")[0]
            if key in flatten(base) and key not in flatten(changed):
                message = message.replace(prefix, "base.")
            raise UserError(error.code, message) from error
    # The baseline comes first.
    names = sorted(cells, key=lambda name: name != settings.get("baseline"))
    return build(CompareConfig, settings | {"cells": {name: cells[name] for name in names}})


def merge(base: Settings, changed: Settings) -> Settings:
    """Return the nested settings of `base`, overridden by those of `changed`.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4})
    {'a': {'b': 3, 'c': 2}, 'd': 4}
    """
    merged = dict(base)
    for name, value in changed.items():
        inner = merged.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            value = merge(inner, value)
        merged[name] = value
    return merged


def grid(*axes: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return the cells of a comparison along several axes. Each axis maps names to settings.

    >>> sizes = {"small": {"model": {"d_model": 64}}, "large": {"model": {"d_model": 128}}}
    >>> objectives = {"lm": {"objective": "causal_lm"}, "fim": {"objective": "fill_in_the_middle"}}
    >>> cells = grid(sizes, objectives)
    >>> list(cells)
    ['small-lm', 'small-fim', 'large-lm', 'large-fim']
    >>> cells["small-fim"]
    {'model': {'d_model': 64}, 'objective': 'fill_in_the_middle'}
    """
    cells: dict[str, Settings] = {}
    for values in itertools.product(*axes):
        name = "-".join(filter(None, values))
        if name in cells:
            raise UserError(BAD_CONFIG, f"cells: two would be called {name}; rename a value")
        cells[name] = {}
        for axis, value in zip(axes, values, strict=True):
            cells[name] = merge(cells[name], axis[value])
    return cells


def changes_of(name: str) -> Settings:
    """Return the settings of a config that differ from the defaults, as a cell of a comparison.

    >>> changes_of("gpt_tiny")["data"]
    {'batch_size': 8, 'lengths': {'sequence_length': 128}}
    """
    defaults = flatten(default().to_dict())
    settings = flatten(get_config(name).to_dict())
    return nested({key: value for key, value in settings.items() if value != defaults[key]})


def parse_grid(axes: Sequence[str], option: str = "--grid") -> dict[str, list[str]]:
    """Parse --grid=KEY=VALUE,VALUE,… into the values of each setting. Commas in brackets do not
    separate.

    >>> parse_grid(["objective=causal_lm,prefix_lm(split=0.5, mode='S')", "seed=1,2"])
    {'objective': ['causal_lm', "prefix_lm(split=0.5, mode='S')"], 'seed': ['1', '2']}
    """
    grid: dict[str, list[str]] = {}
    for text in axes:
        key, equals, values = text.partition("=")
        if key in grid:
            raise UserError(USAGE, f"{option}={text}: {key} is given twice; give it once")
        grid[key] = parse_list(values, f"{option}={key}")
        if not equals or not key or not all(grid[key]):
            raise UserError(USAGE, f"{option}={text}: expected KEY=VALUE,VALUE,…")
        if len(set(grid[key])) < len(grid[key]):
            raise UserError(USAGE, f"{option}={text}: a value is given twice; give it once")
    return grid


def _from_text(value: Any, kind: Any, key: str) -> Any:
    """Read text as a literal if a number, a list or a bool is expected. Text that is not a literal
    stays text. A list may also be given as `a, b`.
    """
    if not isinstance(value, str) or wants_text(kind):
        return value
    members = get_args(list_type(kind))
    if members and wants_text(members[0]) and value[:1] not in ("(", "["):
        return tuple(read_value(part, str) for part in parse_list(value, key)) if value else ()
    read = read_value(value, kind)
    if isinstance(read, str) and list_type(kind):
        return tuple(parse_list(read, key)) if read else ()
    return read


def _suggest(key: str, siblings: Iterable[str]) -> str:
    """Suggest what an unknown key may mean: the same name elsewhere, or the nearest name."""
    prefix, inside = _split_cell(key)
    leaf = inside.rpartition(".")[2]
    elsewhere = find_setting(leaf)
    if elsewhere:
        return f"did you mean {prefix}{elsewhere}?"
    return nearest(leaf, siblings)


def find_setting(leaf: str) -> str | None:
    """Return the full key of a setting, given its last part or its name in other code bases.

    >>> find_setting("learning_rate"), find_setting("lr"), find_setting("foo")
    ('optimizer.learning_rate', 'optimizer.learning_rate', None)
    """
    if leaf in _ALIASES:
        return _ALIASES[leaf]
    for key in flatten(default().to_dict()):
        if key.rpartition(".")[2] == leaf:
            return key
    return None


def _split_cell(key: str) -> tuple[str, str]:
    """Split the key of a cell into ("cells.gpt.", "model.d_model"), any other into ("", key)."""
    found = re.match(r"(base|cells\.[^.]+)\.", key)
    return (found[0], key[found.end() :]) if found else ("", key)


# Config files.

# Parent of configs/: in an installed package, and in a checkout.
ROOTS = (Path(__file__).parents[1], Path(__file__).parents[2])


def find(name: str) -> Path:
    """Find the config file of a name.

    A bare name, such as `gpt_tiny`, means a config that ships with the package, even if there is a
    file of that name in the current directory. `./gpt_tiny.py`, `gpt_tiny.py` and
    `configs/gpt_tiny.py` are paths. A path that does not exist is also looked up among the configs
    that ship.
    """
    path = Path(name if name.endswith(".py") else name + ".py")
    inside = path.relative_to("configs") if path.parts[0] == "configs" else path
    shipped = [root / "configs" / inside for root in ROOTS]
    is_bare = "/" not in name and not name.endswith(".py")
    candidates = [*shipped, path] if is_bare else [path, *shipped]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise UserError(NO_FILE, f"--config={name}: no such file; {_nearest_config(name)}")


def names_run(name: str) -> bool:
    """True for a run directory, whose config.json is data; False for a Python file.

    A config that ships with the package comes before a directory of the same name.
    """
    shipped = [root / "configs" / f"{name}.py" for root in ROOTS]
    is_shipped = "/" not in name and any(path.is_file() for path in shipped)
    return not is_shipped and (Path(name) / "config.json").is_file()


def _nearest_config(name: str) -> str:
    files = [path for root in ROOTS for path in root.glob("configs/**/*.py")]
    files = [path for path in files if path.parent.name != "tasks"]
    names = sorted({path.with_suffix("").as_posix().rpartition("/configs/")[2] for path in files})
    stem = Path(name).stem
    # The sizes of configs/published.py are arguments of one file, but are suggested, too.
    published = (
        [f"published:{size}" for size in runpy.run_path(str(find("published")))["SIZES"]]
        if names
        else []
    )
    beginning = [
        known for known in [*names, *published] if known.removeprefix("published:").startswith(stem)
    ]
    if stem and beginning:
        return f"did you mean {' or '.join(beginning[:3])}?"
    return nearest(stem, [*names, *published] or ["a path to a file"])


def read_settings(name: str) -> Settings:
    """Read the settings that --config names: what get_config() in a file returns (for
    `file:argument`, get_config(argument)), or the config.json of a run directory.
    """
    if names_run(name):
        settings = read_json(Path(name) / "config.json", "expected the directory of a run")
        if "model_type" in settings:
            reason = "this is a model of Hugging Face; import it, and use the run"
            raise UserError(BAD_CONFIG, f"--config={name}: {reason}")
        unknown = set(settings) - set(type_hints(RunConfig))
        if unknown:
            reason = f"its config.json has {min(unknown)!r}, which is no setting of a run"
            raise UserError(BAD_CONFIG, f"--config={name}: {reason}; name another directory")
        return settings
    file, colon, argument = name.partition(":")
    path = find(file)
    arguments = (argument,) if colon else ()
    settings = _run_config_file(path, arguments, name)
    if hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    if not isinstance(settings, dict):
        raise UserError(
            BAD_CONFIG, f"{path}: expected a function get_config() that returns a ConfigDict"
        )
    return settings


def _run_config_file(path: Path, arguments: tuple[str, ...], name: str) -> Any:
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
        if get_config is None:
            return None
        if arguments and not inspect.signature(get_config).parameters:
            fix = f"use --config={name.partition(':')[0]}"
            raise UserError(BAD_CONFIG, f"this config has no variants; {fix}")
        return get_config(*arguments)
    except MemoryError:
        raise
    except UserError as error:
        raise UserError(error.code, f"--config={name}: {error}") from error
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        reason = _short_reason(error)
        raise UserError(BAD_CONFIG, f"{where}: {type(error).__name__}: {reason}") from error


def _short_reason(error: BaseException) -> str:
    """Shorten a ConfigDict's message about an unknown key: drop its list of known keys."""
    text = str(error).replace('\\"', '"').strip("'")
    reason, cut, rest = text.partition(" Other fields present")
    meant = re.search(r'Did you mean "(\w+)"', rest) if cut else None
    if meant:
        reason += f" did you mean {meant[1]}?"
    return reason[:300]


def get_config(name: str = "", **overrides: Any) -> Any:
    """Return all settings of a config as a locked ConfigDict: the defaults, changed by the named
    config and by overrides.

    Args:
        name: a name as in --config; empty: only the defaults.
        overrides: settings by their keys, {"training.steps": 100} or training={"steps": 100}.

    >>> get_config("gpt_tiny", **{"training.steps": 5}).training.steps
    5
    """
    settings = read_settings(name) if name else {}
    if name and names_run(name):
        # From here on, these settings count as Python code's own, so check now what they name.
        with guarded():
            grant(places=known_places(settings))
            check_named(*names_in(build(RunConfig, settings)), f"{name}/config.json")
    compares = isinstance(settings.get("cells"), dict)
    config = default(CompareConfig if compares else RunConfig)
    known = config.to_dict()
    if compares:
        known["cells"] = {cell: default().to_dict() for cell in settings["cells"]}
        with config.unlocked():
            config.cells = settings["cells"]
    _check_keys(settings, known)
    _check_keys(overrides, known)
    try:
        config.update(settings)
        with config.unlocked():
            config.update_from_flattened_dict(flatten(overrides))
    except (KeyError, TypeError, AttributeError) as error:
        reason = _short_reason(error)
        raise UserError(BAD_CONFIG, f"get_config({name!r}): {reason}") from error
    return config


def _check_keys(settings: Settings, known_settings: Settings) -> None:
    """Reject a setting that does not exist, and suggest what was probably meant."""
    known = flatten(known_settings)
    for key in flatten(settings):
        section, _, _ = key.rpartition(".")
        siblings = [name for name in known if name.rpartition(".")[0] == section]
        if key not in known and not any(name.startswith(f"{key}.") for name in known):
            leaves = [name.rpartition(".")[2] for name in siblings] or list(known_settings)
            raise UserError(BAD_CONFIG, f"{key}: no such setting; {_suggest(key, leaves)}")


# Command lines.


def override(values: Settings, overrides: Sequence[str]) -> Settings:
    """Apply `a.b=value` overrides in place and return `values`. A key may be given only once.

    >>> override({"seed": 1}, ["training.steps=5", "seed=2"])
    {'seed': '2', 'training': {'steps': '5'}}
    """
    seen = set()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(USAGE, f"--config.{text}: expected --config.KEY=VALUE")
        if key in seen:
            raise UserError(BAD_CONFIG, f"--config.{key}: given twice; give it once")
        seen.add(key)
        *parents, last = key.split(".")
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UserError(
                    BAD_CONFIG, f"--config.{key}: {parent} is a single value and has no {last}"
                )
        inner[last] = value
    return values


def load(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load and check a config file with overrides. Raises UserError, before jax is imported."""
    settings = read_settings(name)
    if "cells" in settings:
        raise UserError(
            BAD_CONFIG, f"--config={name} compares several runs; use it with the command compare"
        )
    return _run_of(name, settings, overrides)


def load_run_or_comparison(name: str, overrides: Sequence[str]) -> RunConfig | CompareConfig:
    """Load and check a config file of either kind."""
    settings = read_settings(name)
    of_kind = _comparison_of if "cells" in settings else _run_of
    return of_kind(name, settings, overrides)


def _run_of(name: str, settings: Settings, overrides: Sequence[str]) -> RunConfig:
    """Check the settings of a run, with overrides."""
    places = known_places(settings) if names_run(name) else None
    config = with_absolute_paths(build(RunConfig, override(settings, overrides)))
    _permit(config, places, overrides)
    return config


def _permit(
    config: RunConfig | CompareConfig, known: set[str] | None, arguments: Sequence[str]
) -> None:
    """Permit what the user has written: the whole config, or what the command line adds to a run.

    Args:
        known: known_places of the run that --config names; None: it names a config file.
        arguments: settings on the command line.
    """
    if known is None:
        written_here(config)
    else:
        settings_written_here(arguments)
        grant(places=known)


def load_comparison(
    name: str,
    overrides: Sequence[str] = (),
    axes: Sequence[str] = (),
    tune: Sequence[str] = (),
) -> CompareConfig:
    """Load and check the comparison of a file, or of the config of a run and a grid.

    Args:
        overrides: settings of the comparison ("budget=1e6"), of a cell ("cells.gpt.seed=1"), or of
            the base ("data.source=text/*.txt").
        axes: axes of a grid, as in parse_grid; each cell of the file becomes one per grid point.
        tune: values that each cell chooses from, as in parse_grid.
    """
    return _comparison_of(name, read_settings(name), overrides, axes, tune)


def _comparison_of(
    name: str,
    settings: Settings,
    overrides: Sequence[str],
    axes: Sequence[str] = (),
    tune: Sequence[str] = (),
) -> CompareConfig:
    """Check the settings of a comparison, or of a run and a grid. For the arguments see
    load_comparison.
    """
    places = known_places(settings) if names_run(name) else None
    if "cells" not in settings:
        settings = {"base": settings, "cells": {"": {}}, "title": Path(name).stem}
    cells = settings["cells"]
    names = list(cells) if isinstance(cells, dict) else []
    # An override names a setting of the comparison, or else of the base.
    of_comparison = ["base", *type_hints(CompareConfig)]
    routed = []
    for text in overrides:
        key = text.partition("=")[0]
        section, dot, _ = key.partition(".")
        known = [*of_comparison, *type_hints(RunConfig)]
        if not dot and key not in known and not find_setting(key):
            raise UserError(BAD_CONFIG, f"{key}: no such setting; {nearest(key, known)}")
        routed.append(text if section in of_comparison else f"base.{text}")
    settings = override(settings, routed)

    cells = settings["cells"]
    if isinstance(cells, dict) and all(isinstance(cell, dict) for cell in cells.values()):
        for cell in cells:
            if cell not in names:  # a typo in an override, not a new cell
                raise UserError(BAD_CONFIG, f"cells.{cell}: no such cell; {nearest(cell, names)}")
        _check_effect(cells, routed)
        settings["cells"] = cells = grid(cells, *_axes_of_grid(axes))
        if list(cells) == [""]:
            fix = "add --grid=KEY=VALUE,VALUE,…, or use the command train"
            raise UserError(BAD_CONFIG, f"--config={name} is one run, not a comparison; {fix}")
    if tune:
        chosen_among = {key: tuple(values) for key, values in parse_grid(tune, "--tune").items()}
        settings["tune"] = merge(settings.get("tune", {}), nested(chosen_among))
    config = with_absolute_paths(build_comparison(settings))
    _permit(config, places, [*overrides, *axes, *tune])
    return config


def _axes_of_grid(axes: Sequence[str]) -> list[dict[str, Settings]]:
    """Turn a grid of the command line into axes of `grid`, named by their values."""
    values_by_key = parse_grid(axes)
    for key in settings_with(RunConfig, BUDGET) & set(values_by_key):
        raise UserError(USAGE, f"--grid={key}=…: the budget decides it; set budgets=A,B instead")
    return [
        {label_of({key: value}): override({}, [f"{key}={value}"]) for value in values}
        for key, values in values_by_key.items()
    ]


def label_of(settings: Mapping[str, Any]) -> str:
    """Return a name for a directory from settings, given by their dotted names.

    >>> label_of({"optimizer.learning_rate": 1e-3, "data.source": "text/*.txt"})
    'learning_rate=0.001,source=text_*.txt'
    """
    parts = (f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())
    return ",".join(parts).replace("/", "_")


def _check_effect(cells: dict[str, Any], overrides: Sequence[str]) -> None:
    """Reject a setting of the base that every cell overrides."""
    for text in overrides:
        key = text.partition("=")[0].removeprefix("base.")
        if text.startswith("base.") and all(key in flatten(cell) for cell in cells.values()):
            reason = "each cell has a value of its own"
            raise UserError(BAD_CONFIG, f"{key}: {reason}; set it as cells.NAME.{key}")


def load_run_config(path: Path) -> RunConfig:
    """Load and check the config.json of a run directory. Places that the user has permitted for it
    before are permitted again.
    """
    settings = read_json(path, "expected the directory of a run")
    grant(places=known_places(settings))
    return build(RunConfig, settings)


# Paths.


def with_absolute_paths(config: Any) -> Any:
    """Return a config whose paths are absolute, so that they hold in any working directory."""
    changed: dict[str, Any] = {}
    for name, kind in type_hints(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            changed[name] = with_absolute_paths(value)
        elif name == "cells":  # of a comparison
            changed[name] = {cell: with_absolute_paths(inner) for cell, inner in value.items()}
        elif name == "stages":  # changed settings of the run
            changed[name] = tuple(_with_absolute_settings(type(config), stage) for stage in value)
        for role, make_absolute in _ABSOLUTE.items():
            if role in get_args(kind):
                changed[name] = make_absolute(value)
    return dataclasses.replace(config, **changed)


def _with_absolute_settings(schema: type, settings: Settings) -> Settings:
    of_schema = roles(schema)

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: changed(inner, f"{key}.{name}") for name, inner in value.items()}
        for role, make_absolute in _ABSOLUTE.items():
            if role in of_schema.get(key, ()) and isinstance(value, str):
                return make_absolute(value)
        return value

    return {name: changed(value, name) for name, value in settings.items()}


def _absolute_terms(sources: str) -> str:
    """Return a sum of sources with the path of each made absolute.

    >>> _absolute_terms("3 * /text/a.txt + /text/../b.txt")
    '3.0 * /text/a.txt + 1.0 * /b.txt'
    """
    terms = []
    for rate, source in parse_sources(sources, "data.source"):
        terms.append(f"{rate!r} * {absolute(source)}" if rate else absolute(source))
    return " + ".join(terms)


def _absolute_tokenizer(tokenizer: str) -> str:
    return os.path.abspath(tokenizer) if names_files(tokenizer) else tokenizer


_ABSOLUTE = {PATH: absolute, SOURCES: _absolute_terms, TOKENIZER: _absolute_tokenizer}


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested dicts into one, keyed by dotted names.

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


def nested(flat: Mapping[str, Any]) -> Settings:
    """Nest a dict that is keyed by dotted names: the inverse of flatten.

    >>> nested({"a.b": 1, "c": 2})
    {'a': {'b': 1}, 'c': 2}
    """
    settings: Settings = {}
    for key, value in flat.items():
        for section in reversed(key.split(".")):
            value = {section: value}
        settings = merge(settings, value)
    return settings


# Run directories.


def check_is_run(workdir: Path) -> None:
    """Reject a directory that is not a run. If it holds runs, the error names them."""
    if (workdir / "config.json").is_file():
        return
    inside = sorted(path.parent for path in workdir.glob("*/config.json"))
    inside = inside or sorted(path.parent for path in workdir.glob("*/*/config.json"))
    if inside:
        names = " or ".join(map(str, inside))
        raise UserError(NO_FILE, f"{workdir}: holds several runs; name one: {names}")
    if not workdir.is_dir():
        raise UserError(NO_FILE, f"{workdir}: no such directory; expected that of a run")
    raise UserError(NO_FILE, f"{workdir}: has no config.json; expected the directory of a run")
