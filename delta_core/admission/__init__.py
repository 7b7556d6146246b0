"""What counts as the same tokenizer, and the derived table of safe transitions."""
