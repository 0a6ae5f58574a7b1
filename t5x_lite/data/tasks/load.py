"""Find a task by name: one that ships in configs/tasks, one defined in a user's file, or a kind of
task with its settings.
"""

import runpy
from collections.abc import Iterable
from pathlib import Path

from t5x_lite.config import Task, type_hints
from t5x_lite.config.files import ROOTS, Settings, build, with_absolute_paths
from t5x_lite.config.grammar import parse_call, read_value
from t5x_lite.config.permission import check_code, grant, permission
from t5x_lite.config.provenance import written_here
from t5x_lite.config.ranges import list_type
from t5x_lite.data.tasks.kinds.table import KINDS
from t5x_lite.errors import BAD_CONFIG, NO_FILE, UserError, nearest, user_errors


def load_task(spec: str) -> Task:
    """Return the task that --task names: one that ships, one defined in a file, or a kind of task
    with its settings.

    sst2 · 'sst2(DIR/{split}.tsv)' · my_tasks.py:mine · 'classify(file.tsv, text=sentence)'

    Raises:
        UserError: for a task that does not exist, or a Python file that is not permitted.

    >>> load_task("classify(file.tsv, text=sentence, label=label)").text
    'sentence'
    """
    if "(" not in spec and "{split}" in spec:
        raise UserError(BAD_CONFIG, f"--task={spec}: no such task; {_needs_kind(spec)}")
    name, arguments, options = parse_call(spec, "--task")
    if len(arguments) > 1:
        reason = f"got {len(arguments)} sources without a name"
        raise UserError(BAD_CONFIG, f"--task={spec}: {reason}; give one, and options as text=NAME")
    sources = [str(read_value(source, str)) for source in arguments]
    if name in KINDS:
        settings: Settings = {"kind": name, "name": _name_of_source(*sources) or name}
    else:
        settings = _named_task(name)
    for source in sources:
        settings["source"] = source
    for key, value in options.items():
        settings[key] = _listed(value, key)
    return with_absolute_paths(build(Task, settings, "task."))


def load_own_task(spec: str) -> Task:
    """Load a task that the user has named. Permit the file that defines it, and the code and the
    examples that it names.
    """
    file = file_of(spec)
    if file:
        grant(modules=[file])
    task = load_task(spec)
    written_here(task)
    return task


def load_own_tasks(specs: Iterable[str]) -> None:
    """Permit everything that the tasks of a user's comparison name."""
    for spec in specs:
        load_own_task(spec)


def file_of(spec: str) -> str:
    """Return the Python file that defines a task; empty if none does.

    >>> file_of("my_tasks.py:mine(a.tsv)"), file_of("sst2(a.py:b.tsv)")
    ('my_tasks.py', '')
    """
    file = spec.partition("(")[0].partition(":")[0].strip()
    return str(Path(file)) if file.endswith(".py") else ""


def _needs_kind(file: str) -> str:
    return f"a file of yours needs its kind: --task='classify({file}, text=COLUMN)'"


def shipped_tasks() -> dict[str, Settings]:
    """Return the settings of all tasks that ship, by name: TASKS of each file in configs/tasks."""
    directory = next((root for root in ROOTS if (root / "configs/tasks").is_dir()), None)
    tasks: dict[str, Settings] = {}
    for path in sorted(directory.glob("configs/tasks/*.py")) if directory else ():
        tasks |= runpy.run_path(str(path))["TASKS"]
    return tasks


def _name_of_source(source: str = "") -> str:
    """Name a task after its file, or after the directory if each split has a file.

    >>> _name_of_source("data/reviews.tsv"), _name_of_source("glue/SST-2/{split}.tsv")
    ('reviews', 'SST-2')
    """
    path = Path(source.partition("?")[0])
    return path.parent.name if "{split}" in path.name else path.stem


def _listed(value: str, key: str) -> str | tuple[str, ...]:
    """Read an option of a task. In a list, bars separate the items: labels=no|yes."""
    text = str(read_value(value, str))
    kind = type_hints(Task).get(key)
    if list_type(kind) is None:
        return text
    return tuple(str(read_value(part, str)) for part in text.split("|"))


def _named_task(name: str) -> Settings:
    file, _, inside = name.partition(":")
    if file.endswith(".py"):
        tasks = _tasks_of_file(Path(file), name)
        inside = inside or next(iter(tasks), "")
    else:
        tasks, inside = shipped_tasks(), name
    if inside not in tasks:
        hint = nearest(inside, tasks if file.endswith(".py") else [*tasks, *KINDS])
        if Path(name).suffix and not file.endswith(".py"):
            hint = _needs_kind(name)
        raise UserError(BAD_CONFIG, f"--task={name}: no such task; {hint}")
    return {"name": inside, **tasks[inside]}


def _tasks_of_file(path: Path, name: str) -> dict[str, Settings]:
    if not path.is_file():
        raise UserError(NO_FILE, f"--task={name}: no such file; expected one that defines TASKS")
    if permission().is_guarded:
        check_code(str(path), f"--task={name}")
    with user_errors(BAD_CONFIG, f"--task={name}: cannot be read"):
        tasks = runpy.run_path(str(path)).get("TASKS")
    if not isinstance(tasks, dict):
        raise UserError(
            BAD_CONFIG, f"--task={name}: expected TASKS = {{name: {{setting: value, …}}, …}} in it"
        )
    return tasks
