"""What a model may have done on the word of strangers: which tools it may call, and where their arguments have to come from."""
