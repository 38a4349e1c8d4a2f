"""The agents of one `Hybrid`: opened when first needed, watched by circuit breakers, raced where one takes long."""
