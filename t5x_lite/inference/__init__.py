"""What a trained model does: continue a text, fill blanks."""
