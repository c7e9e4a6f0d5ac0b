"""A real browser without a window, for the pages of Prefect."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_WIDTH, _HEIGHT = 1400, 1000
_PATIENCE_SECONDS = 60.0
_DRAWING_SECONDS = 1.5
_OPTIONS = (
    "--headless=new",
    # A container has no user but root, and its /dev/shm is small.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    f"--window-size={_WIDTH},{_HEIGHT}",
)


def missing_browser() -> str | None:
    """Why there is no browser, as a sentence; None if there is one. An error if EIGEN_REQUIRE_BROWSER is set."""
    if any(map(shutil.which, _BROWSERS)) and shutil.which("chromedriver"):
        return None
    missing = "A browser is missing: `apt-get install chromium chromium-driver` for the tests of pages."
    if os.environ.get("EIGEN_REQUIRE_BROWSER"):
        raise RuntimeError(missing)
    return missing


class Browser:
    """Opens pages, waits for what they show, keeps pictures of them."""

    def __init__(self, driver: webdriver.Chrome, pictures: Path) -> None:
        self.driver = driver
        self._pictures = pictures

    def open(self, url: str, *texts: str) -> None:
        self.driver.get(url)
        self.wait_for(*texts)

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait_for(self, *texts: str) -> None:
        missing = list(texts)

        def look() -> bool:
            # Reading a long page takes longer than looking through what was read.
            page = self.text()
            missing[:] = [text for text in missing if text not in page]
            return not missing

        self._until(look, lambda: f"{missing} on {self.driver.current_url}")

    def wait_for_one(self, *texts: str) -> str:
        def look() -> str | None:
            page = self.text()
            return next((text for text in texts if text in page), None)

        return str(self._until(look, lambda: f"any of {texts} on {self.driver.current_url}"))

    def click(self, label: str) -> None:
        path = f"//*[self::a or self::button or self::li][normalize-space(.)='{label}']"
        self._until(lambda: self.driver.find_elements(By.XPATH, path), lambda: f"'{label}' to click on")[-1].click()

    def fields(self, tag: str) -> list[WebElement]:
        return self._until(lambda: self.driver.find_elements(By.TAG_NAME, tag), lambda: f"a {tag}")

    def picture_widths(self) -> list[int]:
        """The widths of the page's pictures once all were loaded; 0: broken."""
        script = "return [...document.images].map(image => image.complete ? image.naturalWidth : -1)"

        def widths() -> list[int]:
            found: list[int] = self.driver.execute_script(script)
            return [] if -1 in found else found

        return self._until(widths, lambda: f"pictures on {self.driver.current_url}")

    def console_errors(self) -> list[str]:
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in log]

    def show_at(self, width: int, *, scheme: str = "light", media: str = "screen") -> None:
        metrics = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def keep(self, name: str, *, height: int = _HEIGHT) -> Path:
        path = self._pictures / f"{name}.png"
        self.driver.set_window_size(_WIDTH, height)
        # Prefect's pages draw what comes into view some time after it does.
        time.sleep(_DRAWING_SECONDS)
        self.driver.save_screenshot(str(path))
        self.driver.set_window_size(_WIDTH, _HEIGHT)
        return path

    def _until(self, look: Callable[[], T], what: Callable[[], str]) -> T:
        wait = WebDriverWait(self.driver, _PATIENCE_SECONDS, ignored_exceptions=[StaleElementReferenceException])
        try:
            found: T = wait.until(lambda _: look())
        except TimeoutException:
            picture = self.keep("missing")
            raise AssertionError(
                f"not there within {_PATIENCE_SECONDS:.0f} s: {what()}; {picture}\n{self.text()}"
            ) from None
        return found


@contextmanager
def browser(pictures: Path) -> Iterator[Browser]:
    options = Options()
    options.binary_location = next(filter(None, map(shutil.which, _BROWSERS)))
    for option in _OPTIONS:
        options.add_argument(option)
    # Both paths are given: Selenium looks for nothing in the network.
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver, pictures)
    finally:
        driver.quit()
