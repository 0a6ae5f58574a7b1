import dataclasses

import pytest

from t5x_lite.config import CompareConfig, Mesh, Model, RunConfig, default, roles, to_dict
from t5x_lite.config.files import flatten, load, with_absolute_paths
from t5x_lite.config.roles import OnlyWith, Role

ROLES = [value for value in vars(roles).values() if isinstance(value, Role)]


def test_each_setting_of_a_run_has_its_roles():
    assert roles.roles(RunConfig).keys() == flatten(default().to_dict()).keys()


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.meaning)
def test_each_role_is_one_of_some_setting(role):
    assert roles.settings_with(RunConfig, role) | roles.settings_with(CompareConfig, role)


def test_a_role_of_a_section_is_that_of_each_setting_in_it():
    mesh = {f"mesh.{field.name}" for field in dataclasses.fields(Mesh)}
    assert mesh <= roles.settings_with(RunConfig, roles.RESUMABLE)


def test_what_has_no_effect_depends_on_the_other_setting():
    assert set(roles.without_effect(Model())) == {
        "local_positions",
        "local_rules",
        "lora_alpha",
        "lora_targets",
        "shared_norm",
    }
    with_all = Model(lora_rank=4, parallel_residual=True, layer_pattern=("local",))
    assert set(roles.without_effect(with_all)) == set()


def test_what_a_setting_needs_is_a_setting():
    for kind in roles.type_hints(Model).values():
        for part in getattr(kind, "__metadata__", ()):
            if isinstance(part, OnlyWith):
                assert part.other in roles.type_hints(Model)


@pytest.mark.parametrize(
    "key", sorted(roles.settings_with(RunConfig, roles.PATH, roles.SOURCES, roles.TOKENIZER))
)
def test_each_setting_that_names_files_is_made_absolute(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section, _, name = key.rpartition(".")
    config = load("gpt_tiny")
    if section:
        changed = dataclasses.replace(getattr(config, section), **{name: "there/text.txt"})
        config = dataclasses.replace(config, **{section: changed})
    else:
        config = dataclasses.replace(config, **{name: "there/text.txt"})
    made = flatten(to_dict(with_absolute_paths(config)))
    assert made[key] == str(tmp_path / "there/text.txt")
