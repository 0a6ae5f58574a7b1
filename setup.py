"""All metadata is in pyproject.toml; this file is for tools that still ask for it."""

from setuptools import setup

setup()
