"""What a run needs of devices that are not here, and what is wrong with those that are."""
