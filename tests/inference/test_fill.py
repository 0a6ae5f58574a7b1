import numpy as np
import pytest
from inference.untrained import untrained

from t5x_lite.errors import UserError
from t5x_lite.inference import fill as filling
from t5x_lite.inference.decode_loop import Sampling
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import generate_ids


@pytest.mark.parametrize("objective", ["masked_lm", "masked_diffusion"])
def test_filling_words_gives_probabilities_that_add_up(make, objective):
    loaded = untrained(make, objective, "encoder")
    first, second = fill(loaded, "the ___ sees ___", top=loaded.model.vocab_size)
    for words in (first, second):
        assert sum(p for _, p in words) == pytest.approx(1, abs=1e-4)
        assert [p for _, p in words] == sorted((p for _, p in words), reverse=True)
        if objective == "masked_diffusion":
            assert words[-1][1] == 0  # the mask


@pytest.mark.parametrize(
    ("objective", "mode"), [("span_corruption", ""), ("ul2", "[R]"), ("prefix_lm + ul2", "[R]")]
)
def test_spans_are_read_from_between_the_sentinels(make, monkeypatch, objective, mode):
    """After UL2's token for short spans, where the model was trained with it."""
    loaded = untrained(make, objective, "encoder_decoder")
    encode, sentinel = loaded.tokenizer.encode, loaded.tokenizer.vocabulary.sentinel
    asked = []

    def answer(loaded, inputs, max_new_tokens, sampling):
        assert sampling.first_token == sentinel(0)
        asked.append(loaded.tokenizer.decode(inputs[0]))
        spans = [
            encode("?"),
            [sentinel(1)],
            encode(" c"),
            [sentinel(0)],
            encode("ab"),
            [sentinel(7)],
        ]
        return [np.concatenate(spans)]

    monkeypatch.setattr(filling, "generate_ids", answer)
    assert fill(loaded, "the ___ sees ___.") == ["ab", " c"]
    assert asked == [f"{mode}the<extra_id_0> sees<extra_id_1>.</s>"]


@pytest.mark.parametrize("architecture", ["decoder", "prefix_decoder", "encoder_decoder"])
def test_a_span_begins_with_its_sentinel_whatever_the_model_prefers(make, architecture):
    loaded = untrained(make, "span_corruption", architecture)
    sentinel = loaded.tokenizer.vocabulary.sentinel(0)
    prompts = [loaded.tokenizer.encode(text) for text in ("the cat", "sees")]
    begun = generate_ids(loaded, prompts, 6, Sampling(first_token=sentinel))
    assert [ids[0] for ids in begun] == [sentinel, sentinel]
    if architecture == "decoder":  # whose texts are one stream: the token may end the prompt
        prompts = [np.append(ids, sentinel) for ids in prompts]
        for ids, after in zip(begun, generate_ids(loaded, prompts, 5), strict=True):
            np.testing.assert_array_equal(ids[1:], after)


def test_what_cannot_be_filled(make):
    decoder, encoder = (
        untrained(make, "causal_lm", "decoder"),
        untrained(make, "masked_lm", "encoder"),
    )
    with pytest.raises(UserError, match="cannot fill blanks"):
        fill(decoder, "a ___")
    with pytest.raises(UserError, match="has no blank"):
        fill(encoder, "a blank")
    # Beside the text, an encoder's row holds [CLS] and [SEP], that of a decoder of masks EOS.
    of_masks = untrained(make, "masked_next_token", "decoder")
    for loaded, specials in ((encoder, 2), (of_masks, 1)):
        text = "___" + "a" * (loaded.model.max_length - specials - 1)
        assert fill(loaded, text)
        with pytest.raises(UserError, match="shorten it"):
            fill(loaded, text + "a")
