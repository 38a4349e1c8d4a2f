"""A stateful world of contacts, calendar, mail, notes and payments."""

from .functions import FUNCTIONS, IRREVERSIBLE
from .state import AppState
from .world import AppsWorld, Assignment, draw_assignment

__all__ = ["FUNCTIONS", "IRREVERSIBLE", "AppState", "AppsWorld", "Assignment", "draw_assignment"]
