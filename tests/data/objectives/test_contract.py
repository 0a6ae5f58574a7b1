"""Every objective that ships keeps to the contract; a bad one of the user's own is refused in one
sentence, in whichever batch it goes wrong.
"""

import numpy as np
import pytest
from conftest import run
from hypothesis import given, settings
from objective_cases import SPECS, VOCABULARY, row_rng, seeds, window_lengths, window_with_sentinels

from t5x_lite.config.permission import allow
from t5x_lite.data.objectives.mixture import parse_objective
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import UserError


@settings(max_examples=20)
@given(n=window_lengths, seed=seeds)
@pytest.mark.parametrize("spec", SPECS)
def test_every_objective_keeps_to_the_contract(spec, n, seed):
    objective = parse_objective(spec)
    n = max(n, objective.traits.min_tokens)
    n -= (n - objective.traits.min_tokens) % objective.traits.window_multiple
    tokens = np.stack([window_with_sentinels(spec, n)] * 4).astype(np.int32)
    if objective.traits.windows_per_row == 2:
        tokens = np.stack([tokens, tokens], 1)
    objective.checked(tokens, row_rng(seed, 4), VOCABULARY)


HEAD = """
import numpy as np
from t5x_lite.data.objectives.declaration import Bound, Traits, objective
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import UserError

calls = 0

def lm(bound=lambda n: Bound(0, n, n), **traits):
    return objective(bound=bound, traits=Traits(**{"has_inputs": False, **traits}))

def pairs_of(tokens, **more):
    nothing = Ragged.empty(len(tokens))
    return Pairs(**{"inputs": nothing, "targets": Ragged.from_array(tokens), **more})

def ones(tokens, dtype=np.float32):
    return np.ones(tokens.shape, dtype)
"""

# Name of the objective → how it goes wrong, and what is said.
WRONG = {
    "raises": ("return 1 / 0", "failed on 3 windows of 20 tokens (ZeroDivisionError"),
    "none": ("return None", "returned NoneType, expected Pairs"),
    "array": ("return tokens", "returned ndarray, expected Pairs"),
    "two": ("return pairs_of(tokens), pairs_of(tokens)", "made 2 Pairs, its traits say 1"),
    "few_rows": (
        "return Pairs(Ragged.empty(1), Ragged.from_array(tokens[:1]))",
        "its inputs have lengths of shape (1,)",
    ),
    "plain_targets": ("return pairs_of(tokens, targets=tokens)", "failed on 3 windows"),
    "fractions": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens / 2))",
        "expected whole numbers",
    ),
    "float_ids": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens, np.float32))",
        "its targets are of type float32, expected whole numbers",
    ),
    "wraps": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens.astype(np.int64) + 2**32))",
        "too large for int32",
    ),
    "large": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens + 10**6))",
        "the tokenizer has",
    ),
    "negative": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens * 0 - 1))",
        "its targets have ids from -1 to -1",
    ),
    "long": (
        "return pairs_of(np.concatenate([tokens, tokens], 1))",
        "made (0, 40, 40) inputs, targets and both of 20 tokens, its bound is (0, 20, 20)",
    ),
    "integer_weights": (
        "return pairs_of(tokens, weights=Ragged.from_array(ones(tokens, np.int32)))",
        "its weights are of type int32, expected float32; give Ragged.from_array dtype=np.float32",
    ),
    "cut_weights": (
        "return pairs_of(tokens, weights=Ragged.from_array(ones(tokens) / 2))",
        "for weights, give dtype=np.float32",
    ),
    "nan_weights": (
        "return pairs_of(tokens, weights=Ragged.from_array(ones(tokens) * np.nan, np.float32))",
        "some of its weights are negative or not finite",
    ),
    "negative_weights": (
        "return pairs_of(tokens, weights=Ragged.from_array(-ones(tokens), np.float32))",
        "some of its weights are negative or not finite",
    ),
    "few_weights": (
        "return pairs_of(tokens, weights=Ragged.from_array(ones(tokens)[:, 1:], np.float32))",
        "its rows have other numbers of weights than of targets",
    ),
    "bad_lengths": (
        "return pairs_of(tokens, targets=Ragged(tokens.reshape(-1), np.full(len(tokens), 3)))",
        "its targets have values of shape (60,) for lengths that add up to 9",
    ),
    "reads_ahead": (
        "return pairs_of(tokens, read=Ragged.from_array(tokens))",
        "declare Traits(looks_ahead=True)",
    ),
    "aligned": (
        "return pairs_of(tokens, scored=Ragged.from_array(tokens))",
        "declare Traits(aligned=True)",
    ),
    "typed": (
        "return pairs_of(tokens, types=Ragged.empty(len(tokens)))",
        "its pairs have types, labels: (True, False), expected neither",
    ),
    "own_random": (
        "own = np.random.randint(0, 99, tokens.shape)\n"
        "    return pairs_of(tokens, targets=Ragged.from_array(own))",
        "take all random numbers from rng",
    ),
    "other_rows": (
        "return pairs_of(tokens, targets=Ragged.from_array(tokens * 0 + len(tokens)))",
        "the targets of a row change when it is made again, alone",
    ),
}


def module_of(body: str, later: bool) -> str:
    """Return a module with an objective that goes wrong, at once or in the ninth call."""
    good = "    if calls < 9: return pairs_of(tokens)\n" if later else ""
    return (
        f"{HEAD}\n@lm()\ndef bad(tokens, rng, vocabulary):\n"
        f"    global calls\n    calls += 1\n{good}    {body}\n"
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_objective_is_refused_before_training(name, config_file, write_module):
    body, words = WRONG[name]
    write_module("mine", module_of(body, later=False))
    path = config_file("mine.bad", **{"data.lengths": {"sequence_length": 20}})
    _, err = run("inspect", f"--config={path}", code=78)
    assert words in err
    assert err.startswith("t5x_lite: objective mine.bad: ") or "prepare:" in err


@pytest.mark.parametrize(
    "name", [name for name in WRONG if name not in ("own_random", "other_rows")]
)
def test_a_bad_objective_is_refused_at_any_step(name, batches_of, write_module):
    body, words = WRONG[name]
    write_module("mine", module_of(body, later=True))
    with allow(["mine"]):
        batches = batches_of("mine.bad", **{"data.lengths": {"sequence_length": 20}})
        with pytest.raises(UserError) as caught:
            list(map(batches.batch_at, range(20)))
    first = words.split("3 windows")[0].split(" of shape")[0]  # whose numbers are of the dry run
    assert first in str(caught.value)
    assert "objective mine.bad: " in str(caught.value)


def test_an_aligned_objective_names_places_of_its_inputs(config_file, write_module):
    head = HEAD + "\n@lm(lambda n: Bound(n, n, n), has_inputs=True, aligned=True)\n"
    body = (
        "    places = np.arange(20) + [[1]] * len(tokens)\n"
        "    return Pairs(rows, rows, scored=Ragged.from_array(places))"
    )
    write_module(
        "mine",
        f"{head}def bad(tokens, rng, vocabulary):\n    rows = Ragged.from_array(tokens)\n{body}\n",
    )
    more = {"data.lengths": {"sequence_length": 20}}
    path = config_file("mine.bad", "encoder", **more)
    _, err = run("inspect", f"--config={path}", code=78)
    assert "some of its `scored` are not places of its inputs" in err


def test_each_field_of_a_row_is_made_from_that_row_alone(config_file, write_module):
    head = HEAD + "\n@lm(looks_ahead=True)\n"
    body = "    return pairs_of(tokens, read=Ragged.from_array(tokens * 0 + len(tokens)))"
    write_module("mine", f"{head}def bad(tokens, rng, vocabulary):\n{body}\n")
    path = config_file("mine.bad", **{"data.lengths": {"sequence_length": 20}})
    _, err = run("inspect", f"--config={path}", code=78)
    assert "the read of a row change when it is made again, alone" in err


def test_ragged_casts_nothing_that_does_not_fit():
    assert Ragged.from_rows([[1.5]], np.float32).tolist() == [[1.5]]
    assert Ragged.from_array(np.array([[2**31 - 1]], np.int64)).tolist() == [[2**31 - 1]]
    for values in ([[1.5]], [[1.0]], [[2**31]], [[-(2**31) - 1]]):
        for make in (Ragged.from_rows, Ragged.from_array):
            with pytest.raises((TypeError, OverflowError), match="got"):
                make(np.array(values))
