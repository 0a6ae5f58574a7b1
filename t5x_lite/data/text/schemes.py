"""Schemes of sources: the part before the colon in tfds:…, hf:…, python:… and world:…. Sources of
text and tasks share one object per scheme.
"""

import hashlib
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from urllib.parse import parse_qsl

from t5x_lite.config.permission import import_code
from t5x_lite.data.text import files, worlds
from t5x_lite.data.text.files import Document
from t5x_lite.data.text.foreign_sets import check_card, check_features, check_files
from t5x_lite.data.text.records import Record
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError, nearest, optional_import, user_errors


class Scheme(ABC):
    """A kind of source. Its address is what follows the colon."""

    def documents(self, address: str, field: str, where: str) -> Iterator[Document]:
        """Yield the documents of a source, in a fixed order.

        Args:
            field: column that holds the text.
            where: setting and its value, for errors.
        """
        for record in self.records(address, "", where):
            yield from files.text_of(record, field, where)

    @abstractmethod
    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the records of a split. If the source belongs to a task, `with_split` has also put
        the split into the address.

        Raises:
            UserError: for a source that cannot be read.
        """

    def with_split(self, address: str, split: str) -> str:
        """Return the address of a split."""
        return address

    def fingerprint(self, address: str, where: str) -> str:
        """Return a string that changes when the source's text does, as far as this machine can
        tell. It does not include the address.
        """
        return ""


class _DataSet(Scheme):
    """A data set with named splits, `NAME?split=…&option=…`."""

    def with_split(self, address: str, split: str) -> str:
        """Return the address of a split, as an option."""
        return f"{address}{'&' if '?' in address else '?'}split={split}"

    @abstractmethod
    def directory(self, address: str) -> Path:
        """Return the directory of the data set, if its address names one."""

    def fingerprint(self, address: str, where: str) -> str:
        """Return paths, sizes and times of the data set's files, if the address names a directory
        on this machine.
        """
        parts = []
        directory = self.directory(address)
        for path in sorted(directory.rglob("*")) if directory.is_dir() else ():
            if path.is_file():
                status = path.stat()
                place = path.relative_to(directory)
                parts.append(f"{place} {status.st_size} {status.st_mtime}")
        return "; ".join(parts)


class TensorFlowDataSet(_DataSet):
    """A data set of TensorFlow Datasets, tfds:NAME?split=…&data_dir=…"""

    def directory(self, address: str) -> Path:
        """Return the directory of the data set, if its address names one."""
        name, options = _parse_query(address)
        return Path(options.get("data_dir", os.devnull)) / name.replace(":", "/")

    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the records of a split. Files in tfrecord format need TensorFlow; files in
        array_record format do not.
        """
        name, options = _parse_query(address)
        named = options.pop("split", "train")
        # TensorFlow is not installed on purpose. Hide the message that this import prints about it.
        with redirect_stdout(None), redirect_stderr(None):
            tfds = optional_import("tensorflow_datasets", "tfds", where)
            # c4, glue and others are registered only by this import.
            optional_import("tensorflow_datasets.text", "tfds", where)
        from etils import epath

        place = options.get("data_dir", tfds.core.constants.DATA_DIR)
        check_features(epath.Path(str(place)) / re.split("[/:]", name)[0], where)
        with user_errors(NO_FILE, f"{where}: cannot be read"):
            builder = tfds.builder(name, **options)
            if builder.info.file_format.value == "array_record":
                yield from builder.as_data_source(named)
            else:
                yield from tfds.as_numpy(builder.as_dataset(named))


class HuggingFaceDataSet(_DataSet):
    """hf:NAME_OR_PATH?name=…&split=…, loaded by name or from disk, with or without splits."""

    def directory(self, address: str) -> Path:
        """Return the directory of the data set, if its address names one."""
        return Path(_parse_query(address)[0])

    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the records of a split."""
        name, options = _parse_query(address)
        datasets = optional_import("datasets", "hf", where)
        is_here = Path(name).is_dir()
        if is_here:
            check_card(Path(name), where)
        with user_errors(NO_FILE, f"{where}: cannot be read"):
            # Saved with save_to_disk, without or with splits; otherwise loaded by name.
            if (Path(name) / "dataset_info.json").exists():
                _check_options(options, (), where)
                data_set = datasets.load_from_disk(name)
            elif (Path(name) / "dataset_dict.json").exists():
                _check_options(options, ("split",), where)
                data_set = datasets.load_from_disk(name)[options.get("split", "train")]
            else:
                named = options.pop("split", "train")
                builder = datasets.load_dataset_builder(name, **options)
                if "data_files" not in options:
                    inside = f"{os.path.abspath(name)}/" if is_here else "hf://"
                    check_files((builder.config.data_files or {}).values(), inside, where)
                data_set = builder.as_streaming_dataset(named)
            yield from data_set


class Function(Scheme):
    """python:module.function, a user's function. Called without arguments, it returns texts; called
    with the name of a split, it returns the records of a task.
    """

    def documents(self, address: str, field: str, where: str) -> Iterator[Document]:
        """Yield the texts that the function returns."""
        function = import_code(address, where)
        with user_errors(BAD_DATA, f"{where}: failed"):
            texts = function()
            if isinstance(texts, str | bytes):
                raise TypeError("returned one text, expected an iterable of texts")
            for text in texts:
                if not isinstance(text, str | bytes):
                    raise TypeError(f"yielded {type(text).__name__}, expected str or bytes")
                yield text

    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the records of a split."""
        function = import_code(address, where)
        with user_errors(BAD_DATA, f"{where}: failed"):
            for record in function(split):
                if not isinstance(record, dict):
                    raise TypeError(f"yielded {type(record).__name__}, expected a dict of columns")
                yield record

    def fingerprint(self, address: str, where: str) -> str:
        """Return a hash of the file that holds the function."""
        module = sys.modules[import_code(address, where).__module__]
        path = getattr(module, "__file__", None)
        if not path:
            return ""
        return f"{path} {_hash_of_file(Path(path))}"


class Worlds(Scheme):
    """world:LANGUAGE?seed=…, the text of a generated language; world:QUESTIONS?seed=…, a task about
    it: see worlds.py.
    """

    def documents(self, address: str, field: str, where: str) -> Iterator[Document]:
        """Yield the documents of a language."""
        language, seed = self._read(address, where)
        _check_named(language, worlds.LANGUAGES, "language", where)
        yield from worlds.documents(language, seed)

    def records(self, address: str, split: str, where: str) -> Iterator[Record]:
        """Yield the questions of a split with their answers."""
        questions, seed = self._read(address, where)
        _check_named(questions, worlds.QUESTIONS, "questions", where)
        _check_named(split, worlds.SPLITS, "split", where)
        for example in worlds.QUESTIONS[questions](worlds.make_world(seed), split):
            yield example._asdict()

    def fingerprint(self, address: str, where: str) -> str:
        """Return a hash of the code that generates the text."""
        return _hash_of_file(Path(worlds.__file__))

    def _read(self, address: str, where: str) -> tuple[str, int]:
        """Split an address into its name and its seed."""
        name, options = _parse_query(address)
        _check_options(options, ("seed",), where)
        seed = options.get("seed", "0")
        if not seed.isdecimal():
            reason = f"got seed={seed!r}, expected a whole number from 0 on"
            raise UserError(BAD_DATA, f"{where}: {reason}")
        return name, int(seed)


def _hash_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


SCHEMES: dict[str, Scheme] = {
    "tfds": TensorFlowDataSet(),
    "hf": HuggingFaceDataSet(),
    "python": Function(),
    "world": Worlds(),
}


def _parse_query(address: str) -> tuple[str, dict[str, str]]:
    """Split an address into its name and its options.

    >>> _parse_query("c4/en?split=train+validation")
    ('c4/en', {'split': 'train+validation'})
    """
    name, _, query = address.partition("?")
    escaped = query.replace("+", "%2B")  # parse_qsl would turn a plus into a space
    return name, dict(parse_qsl(escaped, keep_blank_values=True))


def _check_named(name: str, known: Collection[str], kind: str, where: str) -> None:
    if name not in known:
        raise UserError(NO_FILE, f"{where}: no such {kind}: {name!r}; {nearest(name, known)}")


def _check_options(options: dict[str, str], known: Collection[str], where: str) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        reason = f"takes no {', '.join(unknown)}; leave that out"
        raise UserError(BAD_DATA, f"{where}: {reason}")
