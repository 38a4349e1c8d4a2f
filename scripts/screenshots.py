"""Photograph every page of the console in Chromium, light and dark, on a desktop and a phone, and compose the pictures into sheets.

    python scripts/screenshots.py [--sweep RUNS.jsonl] [--single FOLDER]

The pages show tasks that are really served, by scripted agents. The sheets are written to docs/.
"""

import argparse
import asyncio
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "console"), str(ROOT / "tests")]
from busy_console import busy  # noqa: E402 - it lies with the tests that use it, too
from console_browser import ConsoleBrowser, browsing  # noqa: E402

if TYPE_CHECKING:
    from PIL.Image import Image

PAGES: Final = (
    *("/?session=weekend", "/runs", "RUN", "/approvals", "/policy", "SIMULATION"),
    *("/tradeoff", "/money", "/memory", "/memory/item?in=notes/ana&key=seat", "/devices", "/privacy"),
)
VIEWS: Final = {"desktop": (1280, 900), "phone": (390, 844)}
_COLUMNS: Final = {"desktop": 3, "phone": 6}
_WIDTHS: Final = {"desktop": 620, "phone": 290}
"""Pixels of one picture in a sheet."""
_GAP: Final = 12
_COLOURS: Final = 160
_SIMULATING: Final = 120_000
"""Milliseconds that a simulation may take."""


async def show(browser: ConsoleBrowser, path: str) -> None:
    """Open a page, or the policy's with the simulation of a change."""
    page = browser.page
    await browser.open(path if path.startswith("/") else "/policy")
    await page.wait_for_timeout(300)  # the first fragments
    if path == "SIMULATION":
        editor = page.get_by_label("nearfar.toml")
        await editor.fill((await editor.input_value()).replace('strategy = "cascade"', 'strategy = "route"\nsensitivity = "public"'))
        await page.get_by_role("button", name="Simulate the change").click(no_wait_after=True)
        await page.get_by_text("The change on recorded tasks").wait_for(timeout=_SIMULATING)


async def photograph(folder: Path, sweep: Path | None, single: Path | None) -> dict[str, list[bytes]]:
    """Return the pictures of all pages by the name of their sheet."""
    taken: dict[str, list[bytes]] = {}
    async with busy(folder, sweep=sweep) as console:
        run = next(each.id for each in console.hybrid.runs.list() if "train" in each.title)
        for view, (width, height) in VIEWS.items():
            for dark in (False, True):
                name = f"{view}-{'dark' if dark else 'light'}"
                async with browsing(console, width=width, height=height, dark=dark) as browser:
                    for path in PAGES:
                        await show(browser, path.replace("RUN", f"/run?id={run}"))
                        taken.setdefault(name, []).append(await browser.page.screenshot())
                        if single is not None:
                            whole = await browser.page.screenshot(full_page=True)
                            (single / f"{name}-{path.strip('/').partition('?')[0].replace('/', '-') or 'chat'}.png").write_bytes(whole)
    return taken


def composed(pictures: list[bytes], view: str) -> "Image":
    """Return the pictures side by side in rows."""
    from PIL import Image

    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    width = _WIDTHS[view]
    height = round(width * images[0].height / images[0].width)
    columns = _COLUMNS[view]
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * (height + _GAP) + _GAP), "#8b9390")
    for place, image in enumerate(images):
        at = (_GAP + place % columns * (width + _GAP), _GAP + place // columns * (height + _GAP))
        sheet.paste(image.resize((width, height), Image.Resampling.LANCZOS), at)
    return sheet.quantize(_COLOURS, Image.Quantize.FASTOCTREE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", type=Path, help="runs.jsonl of a sweep, for the page trade-off; default: made ones")
    parser.add_argument("--single", type=Path, help="folder for a picture of each whole page")
    options = parser.parse_args()
    if options.single is not None:
        options.single.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        taken = asyncio.run(photograph(Path(folder), options.sweep, options.single))
    for name, pictures in taken.items():
        path = ROOT / "docs" / f"console-{name}.png"
        composed(pictures, name.partition("-")[0]).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
