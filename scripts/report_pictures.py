"""Draw docs/report.png and docs/demo.png from the demo's report: its head, and the apps world's score against dollars.

    nearfar demo --report report.html && python scripts/report_pictures.py report.html

Needs Chromium, which takes the pictures.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_CHART = re.compile(r'<svg role="img" aria-label="apps: score against US dollars.*?</svg>', re.DOTALL)
_HEAD, _WIDE = "1280,1330", "900,630"


def photograph(page: Path, picture: Path, size: str) -> None:
    """Have Chromium take a picture of the top of a page. Raises `SystemExit` where it is missing."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not installed")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}")
    subprocess.run([browser, *options, f"--screenshot={picture}", page.resolve().as_uri()], check=True, capture_output=True)


def main(report: Path) -> None:
    """Draw both pictures from a report."""
    photograph(report, DOCS / "report.png", _HEAD)
    chart = _CHART.search(report.read_text(encoding="utf-8"))
    if chart is None:
        raise SystemExit(f"{report} has no chart of the apps world")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "chart.html"
        page.write_text(f"<style>svg {{ width: 100%; height: auto }}</style>{chart.group()}", encoding="utf-8")
        photograph(page, DOCS / "demo.png", _WIDE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
