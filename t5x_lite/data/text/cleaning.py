"""Text cleaning. Real text has issues: for each kind, a setting says what to do about it, and the
documents that have it are counted.
"""

from collections import Counter

from t5x_lite.config import TextCleaning
from t5x_lite.data.text.files import Continuation, Document
from t5x_lite.data.tokenizers.text_models import LONE_SURROGATE
from t5x_lite.errors import BAD_DATA, UserError

_REPLACEMENT = "\ufffd"
_BYTE_ORDER_MARK = "\ufeff"


class Cleaner:
    """Turns the documents of a source into clean text.

    Attributes:
        counts: number of documents with each issue.
    """

    def __init__(self, settings: TextCleaning, source: str):
        self._settings = settings
        self._source = source  # named in errors
        self._number = 0  # number of the current document, from 1
        self.counts: Counter[str] = Counter()

    def __call__(self, document: Document) -> str | None:
        """Return the clean text of a document, or None if it is skipped.

        Raises:
            UserError: for an issue whose setting is "stop".

        >>> cleaner = Cleaner(TextCleaning(carriage_return="replace"), "here")
        >>> cleaner(b"one\\r\\ntwo \\xff"), cleaner("  "), dict(cleaner.counts)
        ('one\\ntwo \ufffd', None, {'invalid_utf8': 1, 'carriage_return': 1, 'empty': 1})
        """
        self._number += 1
        is_kept = True
        if isinstance(document, Continuation):
            self.counts["too_long_and_read_as_several"] += 1

        # Invalid UTF-8 and lone surrogates are always replaced.
        if isinstance(document, bytes):
            try:
                text = document.decode()
            except UnicodeDecodeError:
                is_kept &= self._allows("invalid_utf8")
                text = document.decode(errors="replace")
        elif not document.isascii() and LONE_SURROGATE.search(document):
            is_kept &= self._allows("lone_surrogate")
            text = LONE_SURROGATE.sub(_REPLACEMENT, document)
        else:
            text = document

        if text.startswith(_BYTE_ORDER_MARK):
            is_kept &= self._allows("byte_order_mark")
            if self._settings.byte_order_mark != "keep":
                text = text[1:]
        if "\0" in text:
            is_kept &= self._allows("nul")
            if self._settings.nul != "keep":
                text = text.replace("\0", _REPLACEMENT)
        if "\r" in text:
            is_kept &= self._allows("carriage_return")
            if self._settings.carriage_return == "replace":
                text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text or text.isspace():
            is_kept &= self._allows("empty")
        return text if is_kept else None

    def _allows(self, issue: str) -> bool:
        """Count an issue of a document. Return True if a document with this issue is kept."""
        self.counts[issue] += 1
        policy = getattr(self._settings, issue)
        if policy == "stop":
            reason = f"document {self._number} has the issue {issue}"
            fix = f"fix it, or set data.text_cleaning.{issue}"
            raise UserError(BAD_DATA, f"{self._source}: {reason}; {fix}")
        return policy != "skip"
