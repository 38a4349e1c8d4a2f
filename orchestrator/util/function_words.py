"""Common English words that carry grammar rather than meaning."""

from typing import Final

_WORDS: Final = """
the a an of to in and is are was were be been for on that this these those with as by at from it its or which what who whom whose how many
much when where why if then than so but not no all any each he she they his her him their them you your we our us i me my has have had do
does did can could will would shall should may might must there here about into over after before between
"""
FUNCTION_WORDS: Final = frozenset(_WORDS.split())
