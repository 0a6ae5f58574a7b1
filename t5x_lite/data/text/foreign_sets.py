"""Safety checks for data sets of TensorFlow Datasets and Hugging Face. Anyone can publish one, and
the libraries do what its files say: features.json names modules to import, and README.md names
files and addresses to read. Both are checked here before the library reads them.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from t5x_lite.errors import BAD_DATA, UserError, user_errors

_MODULE = "tensorflow_datasets."


def check_features(directory: Any, where: str) -> None:
    """Reject a data set of TensorFlow Datasets that names a class outside of that package.

    Args:
        directory: directory of the data set and its versions, a Path or an etils.epath.
        where: name of the data set in error messages.
    """
    if not directory.is_dir():
        return
    # NAME/VERSION/features.json, or NAME/CONFIG/VERSION/features.json
    places = (f"{above}features.json" for above in ("", "*/", "*/*/"))
    for path in itertools.chain(*map(directory.glob, places)):
        with user_errors(BAD_DATA, f"{where}: {path} cannot be read"):
            features = json.loads(path.read_text())
        for name in _classes_in(features):
            if not name.startswith(_MODULE):
                reason = f"names the class {name}, and data imports no module"
                raise UserError(BAD_DATA, f"{where}: {path}: {reason}; use another data set")


def _classes_in(features: Any) -> Iterator[str]:
    """Yield the names of classes in a features.json, in either of its two formats.

    >>> list(_classes_in({"pythonClassName": "a.B", "featuresDict": {"x": {"type": "c.D"}}}))
    ['a.B', 'c.D']
    """
    inner = features.values() if isinstance(features, dict) else ()
    if isinstance(features, list):
        inner = features
    elif isinstance(features, dict):
        for key in ("pythonClassName", "python_class_name", "type"):
            name = features.get(key)
            if isinstance(name, str) and "." in name:
                yield name
    for value in inner:
        yield from _classes_in(value)


def check_card(directory: Path, where: str) -> None:
    """Reject a data set of Hugging Face on disk whose README.md or state.json names a file outside
    its directory.

    Args:
        where: name of the data set in error messages.
    """
    for path in (directory / "README.md", *directory.glob("**/state.json")):
        if not path.is_file():
            continue
        with user_errors(BAD_DATA, f"{where}: {path} cannot be read"):
            content = path.read_text("utf-8")
            described = json.loads(content) if path.suffix == ".json" else _front_matter(content)
        for name in _files_in(described):
            leads_out = Path(name).is_absolute() or ".." in Path(name).parts
            if leads_out or "://" in name or "::" in name:
                reason = f"names the file {name}, which is not in its directory"
                raise UserError(BAD_DATA, f"{where}: {path}: {reason}; correct it")


def _front_matter(text: str) -> Any:
    """Return the metadata at the start of a README.md, between two lines of dashes."""
    import yaml

    found = re.match(r"\s*---[\r\n]+([\S\s]*?)[\r\n]+---", text)  # as huggingface_hub finds it
    return yaml.safe_load(found[1]) if found else None


def _files_in(card: Any) -> Iterator[str]:
    """Yield the strings under those keys of a card or a state.json that name files.

    >>> list(_files_in({"configs": [{"data_files": [{"split": "train", "path": ["a", "b"]}]}]}))
    ['train', 'a', 'b']
    """
    if isinstance(card, dict):
        for key, value in card.items():
            if key in ("data_files", "data_dir", "_data_files"):
                yield from _texts_in(value)
            else:
                yield from _files_in(value)
    elif isinstance(card, list):
        for value in card:
            yield from _files_in(value)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def check_files(files_of_splits: Iterable[Iterable[str]], inside: str, where: str) -> None:
    """Reject a data set of Hugging Face that would read files which are not its own.

    Args:
        files_of_splits: files that the library has found for each split.
        inside: directory of the data set, or "hf://" for a data set on the hub.
    """
    for files in files_of_splits:
        for file in files:
            if not (file if "://" in file else os.path.abspath(file)).startswith(inside):
                reason = f"names the file {file}, which is not its own"
                raise UserError(BAD_DATA, f"{where}: {reason}; use another data set")
