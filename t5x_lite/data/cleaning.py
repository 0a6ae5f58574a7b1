"""Dirty text is normal: what becomes of each kind of dirt is a setting, and each is counted."""

from collections import Counter

from t5x_lite.config import Dirt
from t5x_lite.data.files import Continued
from t5x_lite.data.text_models import LONE_SURROGATE
from t5x_lite.errors import BAD_DATA, Refusal


class Cleaner:
    """Makes text of documents as they come. Attribute: `met`, how many documents had each kind of dirt."""

    def __init__(self, policy: Dirt, source: str):
        self._policy, self._source, self._number = policy, source, 0
        self.met = Counter()

    def __call__(self, document: bytes | str) -> str | None:
        """The text, or None where the document is skipped. Raises Refusal where the policy is to stop.

        >>> cleaner = Cleaner(Dirt(carriage_return="replace"), "here")
        >>> cleaner(b"one\\r\\ntwo \\xff"), cleaner("  "), dict(cleaner.met)
        ('one\\ntwo \ufffd', None, {'invalid_utf8': 1, 'carriage_return': 1, 'empty': 1})
        """
        self._number += 1
        text, kept = document, True
        if isinstance(document, Continued):
            self.met["too_long_and_read_as_several"] += 1
        if isinstance(document, bytes):
            try:
                text = document.decode()
            except UnicodeDecodeError:
                kept &= self._is_kept("invalid_utf8")
                text = document.decode(errors="replace")
        elif not document.isascii() and LONE_SURROGATE.search(document):
            kept &= self._is_kept("lone_surrogate")
            text = LONE_SURROGATE.sub("\ufffd", document)
        if text.startswith("\ufeff"):
            kept &= self._is_kept("byte_order_mark")
            text = text if self._policy.byte_order_mark == "keep" else text[1:]
        if "\0" in text:
            kept &= self._is_kept("nul")
            text = text if self._policy.nul == "keep" else text.replace("\0", "\ufffd")
        if "\r" in text:
            kept &= self._is_kept("carriage_return")
            if self._policy.carriage_return == "replace":
                text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text or text.isspace():
            kept &= self._is_kept("empty")
        return text if kept else None

    def _is_kept(self, case: str) -> bool:
        self.met[case] += 1
        policy = getattr(self._policy, case)
        if policy == "stop":
            raise Refusal(
                BAD_DATA,
                f"{self._source}: document {self._number} is stopped at for {case}; mend it, or set data.dirt.{case}",
            )
        return policy != "skip"
