import numpy as np
import pytest

from t5x_lite.data.tokenizers.pieces import Pieces, _describe
from t5x_lite.data.tokenizers.text_models import Bytes
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.data.tokenizers.vocabulary import (
    SENTINELS,
    SPECIALS,
    make_vocabulary,
)
from t5x_lite.errors import UserError


class FakeModel:
    """A text model of a few ids."""

    kind = "huggingface"
    is_own = False
    lossless = False

    def __init__(self, size, ordinary, specials):
        self.size = size
        self.ordinary = ordinary
        self.specials = specials

    def encode(self, text):
        return np.zeros(0, np.int32)

    def decode(self, ids):
        return ""

    def files(self):
        return {}

    def texts(self):
        return [b"a"] * self.size


def test_appended_ids_come_after_the_model_and_sentinels_last():
    vocabulary = make_vocabulary(Bytes(), add_specials=True)
    assert vocabulary.size == 256 + len(SPECIALS) + SENTINELS
    assert [vocabulary[name] for name in SPECIALS] == list(range(256, 256 + len(SPECIALS)))
    ids = vocabulary.sentinel(np.arange(SENTINELS))
    assert ids.tolist() == list(range(vocabulary.size - 1, 255 + len(SPECIALS), -1))


def test_special_ids_of_the_model_stay_and_pad_and_start_follow_from_them():
    only_eos = make_vocabulary(FakeModel(400, (range(1, 400),), {"</s>": 0}), False)
    assert (only_eos.pad, only_eos.eos, only_eos.bos, only_eos.start) == (0, 0, None, 0)
    like_t5 = make_vocabulary(FakeModel(99, (range(3, 99),), {"<pad>": 0, "</s>": 1}), False)
    assert (like_t5.pad, like_t5.eos, like_t5.bos, like_t5.start) == (0, 1, None, 0)
    with_bos = make_vocabulary(FakeModel(99, (range(3, 99),), {"<s>": 1, "</s>": 2}), False)
    assert (with_bos.pad, with_bos.eos, with_bos.bos, with_bos.start) == (2, 2, 1, 1)


def test_sentinels_that_the_model_has_as_its_last_ids_are_used():
    names = {"</s>": 1, **{f"<extra_id_{i}>": 99 - i for i in range(10)}}
    vocabulary = make_vocabulary(FakeModel(100, (range(2, 90),), names), False)
    assert (vocabulary.size, vocabulary.sentinels) == (100, 10)
    assert vocabulary.sentinel(3) == vocabulary["<extra_id_3>"]
    elsewhere = {"</s>": 1, "<extra_id_0>": 5}
    assert make_vocabulary(FakeModel(100, (range(6, 100),), elsewhere), False).sentinels == 0


def test_a_model_without_an_end_of_text_needs_special_ids_appended():
    model = FakeModel(10, (range(0, 10),), {})
    with pytest.raises(UserError, match=r"no end-of-text id; set data.add_specials=True"):
        make_vocabulary(model, False)
    assert make_vocabulary(model, True).eos == 11


def test_pieces_say_where_words_and_sentences_begin_and_end():
    vocabulary = Tokenizer().vocabulary
    pieces = Pieces(
        *(flags[:, 0] for flags in vocabulary.describe(np.arange(vocabulary.size)[:, None]))
    )

    def characters(flags) -> str:
        return "".join(chr(i) for i in np.flatnonzero(flags[:128]))

    assert characters(pieces.blank) == "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "
    assert characters(pieces.punctuation) == "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    assert characters(pieces.starts_word) == "".join(
        sorted(characters(pieces.blank) + characters(pieces.punctuation))
    )
    assert characters(pieces.ends_word) == characters(pieces.punctuation)
    assert characters(pieces.digit) == "0123456789"
    assert characters(pieces.capital) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert characters(pieces.ends_sentence) == "!.?"
    assert characters(pieces.starts_line) == "\n"
    assert not any(pieces.ends_line)  # what is blank belongs to what follows
    # Special ids start and end words, and are nothing else; parts of characters are letters.
    special = [bool(flags[vocabulary.eos]) for flags in pieces]
    assert special == [True, True, *[False] * 9]
    assert not any(flags[0xC3] for flags in pieces)
    assert all(len(flags) == vocabulary.size for flags in pieces)


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("end.\n", False, True),
        ("\n  The", True, False),
        (" \n", True, False),
        ("a b", False, False),
    ],
)
def test_pieces_say_where_lines_begin_and_end(text, starts, ends):
    piece = _describe(text)
    assert (piece["starts_line"], piece["ends_line"]) == (starts, ends)
