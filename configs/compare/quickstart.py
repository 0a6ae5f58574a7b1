"""Who can answer backwards? Three models read a small language that tells 64 facts in one direction
only, "the capital of LAND is TOWN". Then they are asked about some of them in the other direction:
which land has the capital TOWN? (t5x_lite/data/text/worlds.py; Berglund et al., 2023, "The reversal
curse".)

gpt             a decoder that learned to predict the next word
gpt_denoising   the same decoder with T5's objective: it learned to fill gaps
bert            an encoder of the same size; it writes no answers, but also fills gaps

Both decoders are those of compare/worlds, which crosses objective and architecture and also has
T5's encoder-decoder. They are fine-tuned on questions about 38 facts, in both directions, and
judged by 19 others.

python -m t5x_lite compare --config=compare/quickstart --workdir=/tmp/quickstart --jobs=2
"""

import runpy

from t5x_lite.config.files import find, merge
from t5x_lite.data.text.worlds import make_world

# Learning rates. compare/worlds chose those of the two decoders.
RATES = {"gpt": 5e-3, "gpt_denoising": 2e-2, "bert": 2e-2}


def get_config():
    config = runpy.run_path(str(find("compare/worlds")))["get_config"]("facts")
    config.title = "Who can answer backwards?"
    cells = {
        "gpt": config.cells["decoder-lm"].to_dict(),
        "gpt_denoising": config.cells["decoder-denoising"].to_dict(),
        "bert": {
            "objective": "masked_lm(noise_density=0.3)",
            "model": {"architecture": "encoder"},
            "data": {"lengths": {"sequence_length": 66}},
        },
    }
    config.cells = {
        name: merge(cell, {"optimizer": {"learning_rate": RATES[name]}})
        for name, cell in cells.items()
    }
    config.tune = {}
    config.seeds = 3
    config.baseline = "gpt"
    config.tasks = ("which_land", "which_town")  # the answer first, then the control
    # The last fact is in the test split.
    land, town = make_world().facts[-1]
    config.blanks = (f" the capital of {land} is ___ .", f" the capital of ___ is {town} .")
    config.prompts = (f" the capital of {land} is", f" which land has the capital {town} ?")
    return config
