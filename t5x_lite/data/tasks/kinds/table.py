"""The kinds of tasks, by their names in `task.kind`.

To add one, derive a class from kind.Kind in a file next to this one, and add its name here.
"""

from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.chat import Chat
from t5x_lite.data.tasks.kinds.choose import Choose
from t5x_lite.data.tasks.kinds.classify import Classify
from t5x_lite.data.tasks.kinds.extract import Extract
from t5x_lite.data.tasks.kinds.kind import Format, Kind
from t5x_lite.data.tasks.kinds.label import LabelWords
from t5x_lite.data.tasks.kinds.regress import Regress
from t5x_lite.data.tasks.kinds.texts import Complete, Generate, Prefer
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

KINDS: dict[str, Kind] = {
    "classify": Classify(),
    "regress": Regress(),
    "choose": Choose(),
    "generate": Generate(),
    "chat": Chat(),
    "extract": Extract(),
    "label": LabelWords(),
    "complete": Complete(),
    "prefer": Prefer(),
}


def kind_of(task: Task) -> Kind:
    """Return the kind of a task, after checking the task's settings against it.

    Raises:
        UserError: for an unknown kind, or settings that contradict it.
    """
    if task.kind not in KINDS:
        raise UserError(BAD_CONFIG, f"task.kind: got {task.kind!r}; {nearest(task.kind, KINDS)}")
    kind = KINDS[task.kind]
    for contradiction in kind.check(task):
        raise UserError(BAD_CONFIG, contradiction)
    return kind


def metrics_of(task: Task) -> tuple[str, ...]:
    """Return the names of the metrics that judge a task: task.metrics, or those of its kind."""
    return tuple(map(str, task.metrics)) or kind_of(task).metrics


def find_format(task: Task, architecture: str) -> Format:
    """Return how the architecture reads the task.

    Raises:
        UserError: if it cannot; the error names the kinds that it can read.
    """
    kind = kind_of(task)
    if task.in_words and architecture == "encoder":
        reason = "an encoder writes no words; leave it out, or compare models with a decoder"
        raise UserError(BAD_CONFIG, f"task.in_words: {reason}")
    if architecture not in kind.formats:
        reason = f"an {architecture}" if architecture[0] == "e" else f"a {architecture}"
        kinds = ", ".join(name for name in KINDS if architecture in KINDS[name].formats)
        raise UserError(
            BAD_CONFIG, f"task {task.name}: {reason} cannot learn to {task.kind}; it can {kinds}"
        )
    # With task.in_words, a decoder reads the task like a prefix decoder: as a prompt and an answer.
    in_words = task.in_words and architecture == "decoder"
    return kind.formats["prefix_decoder" if in_words else architecture]
