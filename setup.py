"""The packages; all other metadata is in pyproject.toml. The configs ship with them."""

from setuptools import find_namespace_packages, find_packages, setup

CONFIGS = ["configs", *(f"configs.{name}" for name in find_namespace_packages("configs"))]

setup(
    packages=[*find_packages(include=["t5x_lite*"]), *(f"t5x_lite.{name}" for name in CONFIGS)],
    package_dir={"t5x_lite.configs": "configs"},
)
