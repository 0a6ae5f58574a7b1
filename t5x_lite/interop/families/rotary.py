"""Rotary angles and kinds of layers in a config.json.

`transformers` 5 has the angles in rope_parameters, version 4 in rope_scaling and rope_theta. If
layers differ, layer_types gives the type of each layer, and rope_parameters may hold angles for
each type.
"""

import math
from collections.abc import Sequence
from typing import Any

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import ConfigJson, ModelFields
from t5x_lite.model.masks import RULES, Window, find_rules
from t5x_lite.model.parts.options import part_name, write_part
from t5x_lite.model.parts.positions import POSITIONS, Rotary, make_positions
from t5x_lite.model.parts.rotary_scaling import SCALINGS, find_scaling

# Type of a layer in config.json → its kind in layer_pattern.
_KINDS = {"full_attention": "global", "sliding_attention": "local"}
_TYPES = {kind: name for name, kind in _KINDS.items()}

_LENGTH = "original_max_position_embeddings"
# Type of rotary angles in config.json, which is also the name of our scaling → its settings there
# → our options. `transformers` has no defaults for the settings in _REQUIRED.
_OPTIONS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        _LENGTH: "length",
    },
    "yarn": {
        "factor": "factor",
        "beta_fast": "fast",
        "beta_slow": "slow",
        "attention_factor": "attention",
        "truncate": "whole",
        _LENGTH: "length",
    },
}
_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


def read_rotary(
    config: ConfigJson,
    layer_type: str = "",
    base: float = 10_000.0,
    fraction: float | None = None,
    base_key: str = "rope_theta",
    fraction_key: str = "partial_rotary_factor",
) -> str:
    """Return the positions that config.json describes, as a value of our setting `positions`.

    Args:
        layer_type: the type of layers whose angles to read, if angles are stated by type; "": all
            layers have the same angles.
        base: the family's default for rope_theta.
        fraction: the family's default for the fraction of features that are rotated; None: its
            class rotates all features, whatever a config says.
        base_key, fraction_key: names of these two settings outside of rope_parameters.

    Raises:
        UserError: for angles that we cannot compute, or that are stated twice with different
            values.
    """
    outside = {
        "rope_theta": config.get(base_key),
        "partial_rotary_factor": config.get(fraction_key),
        _LENGTH: config.get(_LENGTH),
    }
    outside = {name: value for name, value in outside.items() if value is not None}
    defaults = {
        "rope_theta": base,
        "partial_rotary_factor": 1.0 if fraction is None else fraction,
        _LENGTH: config["max_position_embeddings"],
    }
    # Depending on its version, `transformers` may have written either key, or both.
    stated = {key: _stated(config, key, layer_type) for key in ("rope_parameters", "rope_scaling")}
    stated = {key: inside for key, inside in stated.items() if inside} or {"rope_parameters": {}}
    found = set()
    for key, inside in stated.items():
        for name in set(inside) & set(outside):
            if inside[name] != outside[name]:
                got = f"{outside[name]} and, in {key}, {inside[name]}"
                raise UserError(BAD_DATA, f"config.json: {name} is {got}; correct one")
        angles = defaults | outside | inside
        if fraction is None and angles["partial_rotary_factor"] != 1:
            got = f"partial_rotary_factor={angles['partial_rotary_factor']}"
            raise UserError(BAD_DATA, f"config.json: {got}: expected 1 in a model of this kind")
        _refuse_other_names(config, angles, (base_key, fraction_key))
        found.add(_read_angles(key, angles))
    if len(found) > 1:
        reason = "rope_parameters and rope_scaling describe different angles; correct one"
        raise UserError(BAD_DATA, f"config.json: {reason}")
    return found.pop()


def _stated(config: ConfigJson, key: str, layer_type: str) -> dict[str, Any]:
    """Return the angles under a key: only those of `layer_type`, if they are stated by type."""
    angles = config.get(key) or {}
    if not isinstance(angles, dict):
        raise UserError(BAD_DATA, f"config.json: {key}={angles!r}, expected settings")
    is_by_type = any(name in _KINDS for name in angles)
    # Old files of such a model may have one rope_scaling that is not stated by type.
    if layer_type and angles and not is_by_type and key == "rope_parameters":
        expected = f"expected those of {' and '.join(_KINDS)}"
        raise UserError(BAD_DATA, f"config.json: rope_parameters={angles!r}: {expected}")
    if is_by_type:
        angles = angles.get(layer_type or "full_attention") or {}
    return {name: value for name, value in angles.items() if value is not None}


def _refuse_other_names(config: ConfigJson, angles: dict[str, Any], read: tuple[str, str]) -> None:
    """Reject angles under a name that the class does not read, unless they equal those it reads."""
    for name, others in (
        ("rope_theta", ("rope_theta", "rotary_emb_base")),
        ("partial_rotary_factor", ("partial_rotary_factor", "rotary_pct")),
    ):
        for other in others:
            value = config.get(other)
            if other not in read and value not in (None, angles[name]):
                reason = f"a model of this kind does not read it, and its {name} is {angles[name]}"
                raise UserError(BAD_DATA, f"config.json: {other}={value}: {reason}; correct one")


def _read_angles(key: str, angles: dict[str, Any]) -> str:
    """Translate rotary settings of Hugging Face into a value of our setting `positions`."""
    angles = dict(angles)
    kinds = {angles.pop(name) for name in ("rope_type", "type") if name in angles}
    if len(kinds) > 1:
        raise UserError(BAD_DATA, f"config.json: {key}: two types, {sorted(kinds)}; correct one")
    kind = kinds.pop() if kinds else "default"
    if kind not in _OPTIONS:
        expected = f"expected one of {', '.join(map(repr, _OPTIONS))}"
        raise UserError(BAD_DATA, f"config.json: {key}: rope_type={kind!r}: {expected}")
    base, fraction = angles.pop("rope_theta"), angles.pop("partial_rotary_factor")
    length = angles.pop(_LENGTH)
    if _LENGTH in _OPTIONS[kind]:
        angles[_LENGTH] = length
    if kind == "yarn":
        angles = _with_attention_factor(angles)
    for name in _REQUIRED[kind]:
        if name not in angles:
            raise UserError(BAD_DATA, f"config.json: {key}: {kind} has no {name}; add it")
    options: dict[str, Any] = {}
    for name, option in _OPTIONS[kind].items():
        if name in angles:
            value = angles.pop(name)
            options[option] = value if isinstance(value, bool) or name == _LENGTH else float(value)
    if angles:
        known = "rope_theta, partial_rotary_factor and those of its type"
        raise UserError(BAD_DATA, f"config.json: {key}: got {angles}, expected only {known}")
    scaling = write_part(SCALINGS, "none" if kind == "default" else kind, **options)
    return write_part(
        POSITIONS, "rotary", base=float(base), fraction=float(fraction), scaling=scaling
    )


def _with_attention_factor(angles: dict[str, Any]) -> dict[str, Any]:
    """Replace the two scales of DeepSeek's YaRN by the attention factor that follows from them."""
    angles = dict(angles)
    scale, scale_all = angles.pop("mscale", 0), angles.pop("mscale_all_dim", 0)
    if scale and scale_all and "factor" in angles:
        log = 0.1 * math.log(angles["factor"])
        angles.setdefault("attention_factor", (scale * log + 1) / (scale_all * log + 1))
    return angles


def write_rotary(model: ModelDimensions) -> ConfigJson:
    """Write the rotary angles of a model whose layers all have the same angles."""
    angles = _write_angles(make_positions(model))
    settings: ConfigJson = {"rope_parameters": angles, "rope_theta": angles["rope_theta"]}
    if "partial_rotary_factor" in angles:
        settings["partial_rotary_factor"] = angles["partial_rotary_factor"]
    if angles["rope_type"] != "default":
        settings["rope_scaling"] = angles  # for version 4 of transformers
    return settings


def write_rotary_by_type(model: ModelDimensions, base_key: str, local_key: str) -> ConfigJson:
    """Write the rotary angles of both kinds of layers.

    Args:
        base_key, local_key: names in transformers 4 for the bases of global and of local layers.
    """
    setting = "local_positions" if model.local_positions else "positions"
    everywhere = _write_angles(make_positions(model))
    nearby = _write_angles(make_positions(model, setting))
    return {
        "rope_parameters": {"full_attention": everywhere, "sliding_attention": nearby},
        base_key: everywhere["rope_theta"],
        local_key: nearby["rope_theta"],
    }


def _write_angles(positions: Any) -> dict[str, Any]:
    """Write rotary positions under Hugging Face's names."""
    if not isinstance(positions, Rotary):
        return {"rope_type": "default", "rope_theta": 10_000.0}
    settings: dict[str, Any] = {"rope_type": "default", "rope_theta": positions.base}
    if positions.fraction != 1:
        settings["partial_rotary_factor"] = positions.fraction
    name = part_name(positions.scaling)
    if name in _OPTIONS:
        scaling = find_scaling(positions.scaling)
        settings["rope_type"] = name
        for theirs, ours in _OPTIONS[name].items():
            value = getattr(scaling, ours)
            if value or theirs != "attention_factor":  # 0 means that it follows from the factor
                settings[theirs] = value
    return settings


# Which layers attend to a window, and which to the whole text.


def read_layers(
    types: list[str], layers: int, window: int | None, positions: str, local_positions: str = ""
) -> ModelFields:
    """Return the fields of Model that say which layers attend to a window.

    Args:
        types: type of each layer, as in config.json.
        layers: number of layers.
        window: number of positions, up to and including its own, that a query attends to in a
            sliding layer; None: all.
        local_positions: positions of sliding layers; empty: the same as in other layers.
    """
    unknown = sorted(set(types) - set(_KINDS))
    if unknown:
        expected = " or ".join(map(repr, _KINDS))
        raise UserError(BAD_DATA, f"config.json: layer_types: got {unknown}, expected {expected}")
    if len(types) != layers:
        reason = f"names {len(types)} layers, but there are {layers}; correct one"
        raise UserError(BAD_DATA, f"config.json: layer_types: {reason}")
    if "sliding_attention" in types and window is None:
        reason = "names sliding_attention, but no window is in use; correct one"
        raise UserError(BAD_DATA, f"config.json: layer_types: {reason}")
    pattern = shortest_period([_KINDS[name] for name in types])
    if pattern == ("global",):
        return {"positions": positions}
    rules = (write_part(RULES, "window", size=window),)
    if pattern == ("local",):
        return {"positions": local_positions or positions, "attention_rules": rules}
    fields: ModelFields = {
        "positions": positions,
        "layer_pattern": pattern,
        "local_rules": rules,
    }
    if local_positions != positions:
        fields["local_positions"] = local_positions
    return fields


def shortest_period(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest prefix that gives the whole sequence when it is repeated. The last
    repetition may be incomplete.

    >>> shortest_period(["local", "global", "local", "global", "local"])
    ('local', 'global')
    """
    for period in range(1, len(kinds) + 1):
        if all(kind == kinds[i % period] for i, kind in enumerate(kinds)):
            return tuple(kinds[:period])
    return ()


def write_layers(model: ModelDimensions) -> ConfigJson:
    """Write layer_types and sliding_window."""
    pattern = model.layer_pattern or ("local" if model.attention_rules else "global",)
    kinds = [pattern[layer % len(pattern)] for layer in range(model.num_layers)]
    rules = find_rules(model.local_rules if model.layer_pattern else model.attention_rules)
    window = rules[0].size if len(rules) == 1 and isinstance(rules[0], Window) else None
    return {"layer_types": [_TYPES[kind] for kind in kinds], "sliding_window": window}
