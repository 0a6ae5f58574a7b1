"""EleutherAI's harness: a task of our own, by our model through HarnessModel, and by the model that
we export through the harness's own class for `transformers`. The same numbers.
"""

import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("lm_eval")

import lm_eval
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from peer_models import PEERS, make_peer, read_peer, small_tokenizer

from t5x_lite.errors import UserError
from t5x_lite.interop import huggingface
from t5x_lite.interop.lm_eval import HarnessModel

ITEMS = [
    {"question": "The module provides", "choices": ["classes", "a cat", "functions"], "gold": 0},
    {"question": "If the argument is", "choices": ["omitted", "sat", "on the mat now"], "gold": 2},
    {"question": "Return", "choices": ["True if", "the mat", "a"], "gold": 1},
    {"question": "It is an error to", "choices": ["call", "sing loudly and long"], "gold": 1},
]
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def request(kind, *args):
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same decoder, here and there."""
    path = tmp_path_factory.mktemp("harness")
    tokenizer = small_tokenizer()
    llama = PEERS["llama"]
    # Rows in which all prompts fit: of longer ones ours keep the start token, theirs do not.
    settings = {**llama.settings, "max_position_embeddings": 200}
    peer = make_peer(llama._replace(settings=settings), tokenizer.vocabulary.size, path / "peer")
    # It writes neither special ids, which are text to us and nothing to them, nor bytes, which
    # alone are no text.
    with torch.no_grad():
        peer.lm_head.weight[tokenizer.vocabulary.pad :] = 0
        peer.lm_head.weight[:256] = 0
    peer.save_pretrained(path / "peer")
    loaded = read_peer(path / "peer", tokenizer)
    huggingface.write(path / "out", loaded.model, loaded.params, tokenizer)
    return HarnessModel(loaded), hugging_face_model(path / "out", add_bos_token=True)


def hugging_face_model(path, **settings):
    return HFLM(pretrained=str(path), device="cpu", dtype="float32", **settings)


def test_a_task_of_our_own(models, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    data = tmp_path / "items.jsonl"
    data.write_text("\n".join(map(json.dumps, ITEMS)))
    (tmp_path / "choice.yaml").write_text(CHOICE.format(path=data))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = []
    for model in models:
        results = lm_eval.simple_evaluate(
            model, tasks=["local_choice"], task_manager=tasks, bootstrap_iters=0, num_fewshot=1
        )
        samples = results["samples"]["local_choice"]
        nats = [one[0] for sample in samples for one in sample["filtered_resps"]]
        metrics = results["results"]["local_choice"]
        found.append(([metrics["acc,none"], metrics["acc_norm,none"]], nats))
    (ours, our_nats), (theirs, their_nats) = found
    assert ours == theirs
    np.testing.assert_allclose(our_nats, their_nats, rtol=1e-4)


TEXTS = ["The module provides classes.", "A cat sat on the mat.", "x" * 30]


def test_texts_as_a_whole(models):
    requests = [request("loglikelihood_rolling", text) for text in TEXTS]
    ours = models[0].loglikelihood_rolling(requests)
    # The harness puts a start token before each text itself, and would count a second one.
    peer = hugging_face_model(models[1].pretrained, add_bos_token=False)
    theirs = peer.loglikelihood_rolling(requests)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_likelihoods_with_and_without_context(models):
    pairs = [("", "The module"), ("The module ", "provides"), ("a", "b"), ("Return ", " the mat")]
    encode = models[0]._model.tokenizer.encode
    words = "The module provides classes and functions. " * 20
    fits = next(words[:n] for n in range(len(words), 0, -1) if len(encode("a" + words[:n])) <= 199)
    pairs += [("a", fits), ("", fits)]  # to the end of the row
    requests = [request("loglikelihood", *pair) for pair in pairs]
    ours, theirs = (model.loglikelihood(requests) for model in models)
    np.testing.assert_allclose([nats for nats, _ in ours], [nats for nats, _ in theirs], rtol=1e-4)
    assert [likeliest for _, likeliest in ours] == [likeliest for _, likeliest in theirs]


def test_a_context_that_is_too_long_loses_its_beginning(models):
    settings = {"until": [], "max_gen_toks": 6, "do_sample": False}
    long = " ".join(["The module provides"] * 60)
    (ours,) = models[0].generate_until([request("generate_until", long, settings)])
    assert ours
    (nats, _), (other, _) = models[0].loglikelihood(
        [request("loglikelihood", text, " classes") for text in (long, "x" + long)]
    )
    assert nats == other
    assert models[0].loglikelihood([]) == models[0].loglikelihood_rolling([]) == []
    with pytest.raises(UserError, match=r"a continuation has \d+ tokens, the model's rows 200"):
        models[0].loglikelihood([request("loglikelihood", "a", long)])


def test_what_is_written(models):
    settings = {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False}
    more = {"until": ["\n"], "max_gen_toks": 5, "do_sample": False}
    requests = [request("generate_until", text, settings) for text in TEXTS[:2]]
    requests += [request("generate_until", TEXTS[0], more)]
    ours, theirs = (model.generate_until(requests) for model in models)
    assert ours == theirs
