"""Token stores: text that is tokenized once, on disk or in a bucket."""
