"""A browser tab as a near worker: it loads the model, answers, survives what happens to tabs, and tells its owner what it does."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from browser_tab import Served, Tab, attached_tab, near, require_tab, served
from chromium import Watched, browser
from near_model import OPEN, QUESTION, ask, prompt_with_long_answer

from nearfar import Hybrid
from nearfar.orchestrator.lab.worlds import search_world
from nearfar.protocols import Agent, ScriptedAgent, Side, TextDelta, complete, stream
from nearfar.protocols.testing.transports import eventually

if TYPE_CHECKING:
    from playwright.async_api import Browser

require_tab()
pytestmark = pytest.mark.anyio
__all__ = ["browser"]
