"""Token stores: text, tokenized once, on a disk or in a bucket."""
