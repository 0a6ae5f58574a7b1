"""Unmasking: the likeliest tokens first, and samples as often as their probability."""

import numpy as np
import pytest
from inference.untrained import logits_of, untrained

from t5x_lite.errors import UserError
from t5x_lite.inference.decode_loop import Sampling
from t5x_lite.inference.generate import continue_texts, stream_texts
from t5x_lite.inference.masked_rows import framed, masked_rows
from t5x_lite.inference.unmask import Unmasking, unmask

BOTH = ["encoder", "decoder"]


@pytest.fixture
def model(make, request):
    return untrained(make, "masked_diffusion", request.param)


def probabilities(loaded, prompt, text) -> np.ndarray:
    """Those of each id at each place of `text` after the prompt: [places, ids], [MASK] left out."""
    vocabulary = loaded.tokenizer.vocabulary
    ids, first = framed(loaded, [prompt, text])
    row = masked_rows(loaded, [ids], 16)
    logits = np.asarray(logits_of(loaded.model)(loaded.params, row))[0]
    logits = logits[first + len(prompt) :][: len(text), : vocabulary.size].astype(float)
    logits[:, vocabulary["[MASK]"]] = -np.inf
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


@pytest.mark.parametrize("model", BOTH, indirect=True)
@pytest.mark.parametrize(
    ("steps", "block", "kept"),
    [(0, 0, [1] * 6), (3, 0, [2] * 3), (4, 0, [2, 2, 1, 1]), (0, 4, [1] * 6), (3, 3, [2, 1, 2, 1])],
)
def test_the_most_confident_tokens_come_first(model, steps, block, kept):
    prompt, mask = model.tokenizer.encode("the"), model.tokenizer.vocabulary["[MASK]"]
    text = np.full(6, mask)
    size = block or 6
    filled = 0
    for number in kept:
        ours = np.arange(6) // size == filled // size
        p = probabilities(model, prompt, text)
        confidence = np.where((text == mask) & ours, p.max(-1), -1)
        best = np.argsort(-confidence, kind="stable")[:number]
        text[best] = p.argmax(-1)[best]
        filled += number
    how = Unmasking(steps, "confidence", block)
    *_, written = unmask(model, [prompt], 6, Sampling(), 0, how)
    np.testing.assert_array_equal(written[0], text)


@pytest.mark.parametrize("model", BOTH, indirect=True)
def test_samples_are_as_frequent_as_they_are_likely(model):
    """Two tokens in random order: p(a, b) is the mean of both orders of conditionals."""
    vocabulary, rows = model.tokenizer.vocabulary, 4000
    mask, prompt = vocabulary["[MASK]"], model.tokenizer.encode("the")
    first = probabilities(model, prompt, np.array([mask, mask]))
    # Compare the marginals of each place, given the likeliest tokens at the other.
    *_, written = unmask(
        model, [prompt] * rows, 2, Sampling(temperature=1.0), 0, Unmasking(0, "random")
    )
    for place in (0, 1):
        other = 1 - place
        expected = first[place] / 2  # as the first of both
        for token in np.argsort(-first[other])[: vocabulary.size]:
            text = np.array([mask, mask])
            text[other] = token
            expected = (
                expected + first[other][token] / 2 * probabilities(model, prompt, text)[place]
            )
        found = np.bincount(written[:, place], minlength=vocabulary.size)[: vocabulary.size] / rows
        error = np.abs(found - expected)
        assert (error < 5 * np.sqrt(expected / rows) + 1e-3).all()


def test_prompts_of_any_length_together_and_alone(make):
    model = untrained(make, "masked_diffusion", "encoder")
    prompts = ["the", "the cat sees", ""]
    together = continue_texts(model, prompts, max_new_tokens=5)
    alone = [continue_texts(model, [prompt], max_new_tokens=5)[0] for prompt in prompts]
    assert together == alone
    *some, last = stream_texts(model, prompts, max_new_tokens=6, unmask_block=2)
    assert len(some) == 3
    for number in range(len(prompts)):
        assert all(last[number].startswith(texts[number]) for texts in some)


def test_what_cannot_be_unmasked(make):
    diffusion = untrained(make, "masked_diffusion", "encoder")
    with pytest.raises(UserError, match=r"num_beams: this model writes by unmasking"):
        continue_texts(diffusion, ["a"], num_beams=2)
    with pytest.raises(UserError, match="shorten it"):
        continue_texts(diffusion, ["a"], max_new_tokens=10_000)
    decoder = untrained(make, "causal_lm", "decoder")
    with pytest.raises(UserError, match="unmask_block: is for models of masked_diffusion"):
        continue_texts(decoder, ["a"], unmask_block=2)
    with pytest.raises(UserError, match="an encoder writes no text; use fill"):
        continue_texts(untrained(make, "masked_lm", "encoder"), ["a"])
