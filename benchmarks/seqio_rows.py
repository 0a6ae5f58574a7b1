"""Peer of text_to_rows.py: seqio's pipeline from text files to batches of span corruption. It runs
in its own environment, and prints the raw tokens that it read and the seconds that it took.

python benchmarks/seqio_rows.py 'GLOB' SPIECE.MODEL
"""

import glob
import sys
import time

import seqio
import t5.data.preprocessors as t5
import tensorflow as tf

files, model = sorted(glob.glob(sys.argv[1])), sys.argv[2]
vocabulary = seqio.SentencePieceVocabulary(model, extra_ids=100)
features = {name: seqio.Feature(vocabulary, add_eos=True) for name in ("inputs", "targets")}
lengths = {"inputs": 512, "targets": 114}
start = time.perf_counter()
text = tf.data.Dataset.from_tensor_slices(files).map(
    lambda path: {"targets": tf.io.read_file(path)}
)
tokens = seqio.preprocessors.tokenize(text, features, copy_pretokenized=False)
pairs = t5.span_corruption(tokens, lengths, features)
pairs = seqio.preprocessors.append_eos(pairs, features)
rows = pairs.map(
    lambda row: {name: row[name][: lengths[name]] for name in lengths}, tf.data.AUTOTUNE
)
batches = rows.padded_batch(128, lengths).prefetch(2)
count = sum(int(batch["inputs"].shape[0]) for batch in batches)
print(count * 568, time.perf_counter() - start)
