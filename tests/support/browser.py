"""Pages opened in a browser: a script at their end tells what it saw."""

import contextlib
import json
import re
import shutil
import subprocess

import pytest

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="chromium is not on the PATH"
)


@contextlib.contextmanager
def driven(folder, *, width=1280, height=860, dark=False):
    """Start a browser that clicks and types (selenium); its downloads go to `folder`.

    Skips the test where selenium or chromedriver is missing.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    if shutil.which("chromedriver") is None:
        pytest.skip("chromedriver is not on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver
    finally:
        driver.quit()


def dumped(address, profile, *options):
    """Open a page in a headless Chromium, and return the process with the DOM on stdout."""
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    return subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--no-first-run",
            *(f"--disable-{part}" for part in quiet),
            f"--user-data-dir={profile}",
            *options,
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def verdict_of(path, script, folder):
    """Run `script` at the end of a page; returns what it assigned to `verdict`.

    The page must not write to the console.
    """
    text = path.read_text("utf-8")
    assert text.count("</body>") == 1
    tell = 'document.title = "verdict " + JSON.stringify(verdict);'
    own = f"<script>\n{script}\n{tell}\n</script>\n"
    copy = folder / "opened.html"
    copy.write_text(text.replace("</body>", own + "</body>"), encoding="utf-8")
    more = ("--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0")
    done = dumped(copy.as_uri(), folder / "profile", *more)
    assert "CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>verdict (.*?)</title>", done.stdout)
    assert title is not None
    return json.loads(title.group(1))
