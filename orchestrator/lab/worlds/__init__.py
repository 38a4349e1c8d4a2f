"""Generated worlds: task sets with exact answers, made from a seed instead of downloaded."""
