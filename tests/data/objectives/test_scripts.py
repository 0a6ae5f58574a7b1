"""Words and sentences in scripts of all kinds, in vocabularies of all kinds: pieces may be words,
characters, or parts of characters.
"""

from functools import cache

import numpy as np
import pytest
import tokenizers
from objective_cases import row_rng

from t5x_lite.data.objectives import noise
from t5x_lite.data.objectives.denoising import sentence_permutation
from t5x_lite.data.objectives.masked import CHOICES
from t5x_lite.data.tokenizers.text_models import HuggingFace
from t5x_lite.data.tokenizers.tokenizer import Tokenizer, make

# A text of each script: its words between |, and its sentences between ‖. A blank belongs to the
# letters after it; before punctuation and characters that are words it is a word of its own.
TEXTS = {
    "English": "The| cat| sat|.|[|1|]| It| was| 3|.|14| m| away|!‖| |“|Oh|,|”| it| said|…‖| Pi",
    "accents": "Le| cafe\u0301|,| a\u0300| 5| h|.‖| Voila\u0300|!",
    "Chinese": "他|走|了|。‖我|来|了|！‖好|吗|？‖我|们| know| it|。‖《|红|楼|》|好|。",
    "Japanese": "東|京|タ|ワ|ー|で|す|。‖は|い|、|元|気|で|す|。",
    "Thai": "ที่|นี่|ค|น|ดี| |กิ|น|น้|ำ",
    "Hindi": "वह| गया|।‖| मैं| हिन्दी| बोलता| हूँ|।‖| ठीक| है|?",
    "Arabic": "هل| جاء|؟‖| نعم|،| جاء|.",
    "Korean": "나는| 학교에| 간다|.‖| 좋다|!",
    "Russian": "Он| ушёл|.‖| Она| |—| нет|!",
    "symbols": "$|5|+|3|=|$|8|‖",
}


def plain(script) -> str:
    return TEXTS[script].replace("|", "").replace("‖", "")


def byte_fallback():
    """A BPE in the manner of LLaMA: every character that is not ASCII is spelled in bytes."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    vocabulary += [chr(code) for code in range(33, 127)]
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    model = tokenizers.models.BPE(ids, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    decoders = tokenizers.decoders
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    return Tokenizer(HuggingFace(tokenizer.to_str().encode()), add_specials=True)


VOCABULARIES = {
    "bytes": Tokenizer,
    # Its pieces often end inside a character.
    "bpe": lambda: make("byte_level_bpe(vocab_size=600)", map(plain, TEXTS)),
    "byte fallback": byte_fallback,
    "sentencepiece": lambda: make(
        "sentencepiece(vocab_size=800)", [plain(script) * 50 for script in TEXTS]
    ),
}


@cache
def vocabulary_of(kind) -> Tokenizer:
    return VOCABULARIES[kind]()


def cut_at(tokens, starts, tokenizer) -> list[str]:
    """The texts between the tokens that start something."""
    texts = [tokenizer.vocabulary.texts()[i] for i in tokens]
    parts = np.split(np.array(texts, object), np.flatnonzero(starts))
    return [b"".join(part).decode() for part in parts if len(part)]


def words_of(script) -> list[str]:
    return [word for word in TEXTS[script].replace("‖", "|").split("|") if word]


def sentences_of(script) -> list[str]:
    sentences = TEXTS[script].replace("|", "").split("‖")
    return [sentence for sentence in sentences if sentence]


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_words_and_sentences_are_those_of_the_script(kind, script):
    tokenizer = vocabulary_of(kind)
    tokens = tokenizer.encode(plain(script))
    starts = noise.word_starts(tokens[None], tokenizer.vocabulary)[0]
    words = cut_at(tokens, starts, tokenizer)
    if kind in ("bytes", "byte fallback"):
        assert words == words_of(script)
    else:  # a piece may hold several words, but no word begins or ends inside a character
        assert "".join(words) == plain(script)
    if kind == "sentencepiece" and script == "Chinese":
        return  # a piece may hold the end of a sentence and the beginning of the next
    ids = noise.sentence_ids(tokens[None], tokenizer.vocabulary)[0]
    starts = np.diff(ids, prepend=-1) > 0
    assert cut_at(tokens, starts, tokenizer) == sentences_of(script)


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("choice", ["word", "span"])
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_whole_words_of_every_script_are_masked(kind, choice, script):
    tokenizer = vocabulary_of(kind)
    window = np.tile(tokenizer.encode(plain(script) * 9), (40, 1))
    count = np.full(40, round(0.15 * window.shape[1]))
    mask = CHOICES[choice](window, count, row_rng(0, 40), tokenizer.vocabulary)
    mask = mask if choice == "word" else mask >= 0
    assert (mask.sum(1) <= count).all()
    assert mask.sum() > 0.9 * count.sum()
    if choice == "word":
        words = noise.word_ids(window, tokenizer.vocabulary)
        for row, numbers in zip(mask, words, strict=True):
            assert not set(numbers[row]) & set(numbers[~row])


@pytest.mark.parametrize("script", ["Chinese", "Japanese", "Hindi", "Arabic"])
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_sentences_of_every_script_are_permuted(kind, script):
    tokenizer = vocabulary_of(kind)
    tokens = np.tile(tokenizer.encode(plain(script)), (30, 1))
    pairs = sentence_permutation(tokens, row_rng(0, 30), tokenizer.vocabulary)
    texts = {tokenizer.decode(pair.inputs) for pair in pairs.each()}
    assert len(texts) > 1
    for text in texts:
        assert all(sentence in text for sentence in sentences_of(script))


def test_a_number_is_no_end_of_a_sentence_where_blanks_are_lost(tmp_path):
    """BERT's WordPiece writes "3.14" and "3 . 14" alike."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!3"]
    pieces += ["14", "it", "is", "pi", "yes", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = make(str(tmp_path / "vocab.txt"), [])
    tokens = tokenizer.encode("It is 3.14, it is. Yes! Pi.")[None]
    pieces = tokenizer.vocabulary.describe(tokens)
    assert pieces.punctuation[0].tolist() == [i in (3, 5, 8, 10, 12) for i in range(13)]
    ids = noise.sentence_ids(tokens, tokenizer.vocabulary)[0]
    assert ids.tolist() == [0] * 9 + [1] * 2 + [2] * 2


def test_a_row_that_begins_inside_a_character_has_no_word_there():
    vocabulary = Tokenizer().vocabulary
    tokens = Tokenizer().encode("我们")[None, 1:]
    assert noise.word_starts(tokens, vocabulary).tolist() == [[True, False, True, False, False]]
    special = np.array([[vocabulary.eos, 0x91, 0xE6, 0x88, 0x91]])
    assert noise.word_starts(special, vocabulary).tolist() == [[True, True, True, False, False]]
