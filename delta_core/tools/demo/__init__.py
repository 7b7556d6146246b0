"""`delta demo`: a realistic session through Delta Tokenizer beside the reference, turn by turn."""
