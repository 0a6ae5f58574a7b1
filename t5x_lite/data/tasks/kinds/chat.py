"""Conversations: the model learns each reply of the assistant, given all turns before it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.config import Task
from t5x_lite.data.tasks.formats import conversation
from t5x_lite.data.tasks.kinds.kind import Example, Format, OfTexts
from t5x_lite.data.tasks.records import lookup
from t5x_lite.data.text.records import Record
from t5x_lite.errors import BAD_DATA, UserError

ASSISTANT = "assistant"
# Names of roles in data sets → our names
_ROLES = {
    **{name: name for name in ("system", "user", ASSISTANT, "tool", "function")},
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "model", "bot", "chatbot"), ASSISTANT),
}


class Turn(NamedTuple):
    """One turn of a conversation: who speaks, and the text."""

    role: str
    content: str


class Chat(OfTexts):
    """A conversation: a list of turns, {"role": …, "content": …}, in the column task.text."""

    meaning = "which reply in a conversation"
    replies = True
    shown = "any"
    formats = {
        "decoder": Format(conversation, "lm", ends_prompt=False),
        "prefix_decoder": Format(conversation, "lm", ends_prompt=False),
        "encoder_decoder": Format(conversation, "lm"),
    }

    def check(self, task: Task) -> Iterator[str]:
        """Yield a message if task.turn is not a template of one role and one content, or if a
        setting names a text other than the turns.
        """
        if task.label == task.text:
            yield f"task.label: got {task.label!r}, the column of the turns; name another or none"
        for name in ("prompt", "text_pair"):
            if getattr(task, name):
                got = getattr(task, name)
                yield f"task.{name}: got {got!r}, but a chat has its turns only; set task.turn"
        if not _parts(task):
            expected = "expected a template with {role} before {content}, each once"
            yield f"task.turn: got {task.turn!r}, {expected}"

    def records(self, task: Task, record: Record, where: str) -> Iterator[Record]:
        """Yield a record for each reply of the assistant. The reply is the label. The text holds
        all turns before it, and ends where the reply begins.
        """
        turns = read_turns(lookup(record, task.text, where), where)
        for number, turn in enumerate(turns):
            if turn.role == ASSISTANT and turn.content:
                before = render(task, turns[:number])
                yield record | {task.text: before, task.label: turn.content}

    def prompt(self, task: Task, example: Example) -> str:
        """Return the turns before the reply."""
        return example.text


def read_turns(value: Any, where: str) -> list[Turn]:
    """Read turns from dicts.

    >>> read_turns([{"from": "human", "value": "Hi!"}], "here")
    [Turn(role='user', content='Hi!')]

    Raises:
        UserError: for anything else.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(BAD_DATA, f"{where}: got {value!r}, expected a list of turns")
    turns = []
    for number, turn in enumerate(value):
        role, content = _field(turn, "role", "from"), _field(turn, "content", "value")
        if isinstance(turn, Mapping) and content is None:
            content = ""  # a tool call has no content
        if not isinstance(role, str) or not isinstance(content, str):
            expected = f"expected a dict with texts as role and content, got {turn!r}"
            raise UserError(BAD_DATA, f"{where}: turn {number}: {expected}")
        if role.lower() not in _ROLES:
            known = ", ".join(_ROLES)
            raise UserError(
                BAD_DATA, f"{where}: turn {number}: got the role {role!r}, expected one of {known}"
            )
        turns.append(Turn(_ROLES[role.lower()], content))
    return turns


def _field(turn: Any, key: str, other_key: str) -> Any:
    """Return a field of a turn. Data sets in ShareGPT's format use the other key."""
    if not isinstance(turn, Mapping):
        return None
    return turn[key] if turn.get(key) is not None else turn.get(other_key)


def render(task: Task, turns: Sequence[Turn]) -> str:
    """Write turns as one text that the assistant's reply continues.

    >>> render(Task(turn="{role}: {content}\\n"), [Turn("user", "Hi!")])
    'user: Hi!\\nassistant: '
    """
    before, between, after = _parts(task)
    text = ""
    for turn in turns:
        text += f"{before}{turn.role}{between}{turn.content}{after}"
    return f"{text}{before}{ASSISTANT}{between}"


def _parts(task: Task) -> tuple[str, ...]:
    """Return the parts of the template task.turn: before the role, between role and content, and
    after the content. Return nothing if the template lacks one of the two or has other fields.
    """
    before, role, rest = task.turn.partition("{role}")
    between, content, after = rest.partition("{content}")
    is_whole = role and content and not any("{" in part for part in (before, between, after))
    return (before, between, after) if is_whole else ()
