"""A headless Chromium, and what tests look for in its page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from patience import eventually
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *(
        "--disable-extensions",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
    ),
)


# Asked in the page itself: it draws anew whenever it likes, and between two questions from
# outside what the first one found may have gone.
ALL = "Array.from(document.querySelectorAll(arguments[0]))"
GO = """
    const [view, done] = arguments;
    const before = location.hash;
    addEventListener("hashchange", () => done(), { once: true });
    location.hash = view;
    if (location.hash === before) done();
"""
SEEN = f"{ALL}.filter((each) => each.checkVisibility({{ visibilityProperty: true }}))"


@contextmanager
def a_browser(**options: Any) -> Iterator[Surfer]:
    """A Surfer of these options; skipped where there is no browser."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.environ.get("CI"):
            pytest.fail("CI must have chromium and chromedriver")
        pytest.skip("no chromium or chromedriver; apt-get install chromium chromium-driver")
    surfer = Surfer(**options)
    try:
        yield surfer
    finally:
        surfer.close()


class Surfer:
    """One tab of one browser; `trusting`: certificates that nobody has signed, too."""

    def __init__(self, width: int = 1280, height: int = 900, *, trusting: bool = False) -> None:
        options = webdriver.ChromeOptions()
        options.accept_insecure_certs = trusting
        for option in OPTIONS:
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service("/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self._size = width, height
        self.driver.set_window_size(width, height)

    def close(self) -> None:
        self.driver.quit()

    def forget(self) -> None:
        """All that it has seen so far."""
        for method in ("Network.clearBrowserCookies", "Network.clearBrowserCache"):
            self.driver.execute_cdp_cmd(method, {})
        self.driver.get("about:blank")
        self.driver.set_window_size(*self._size)
        self.driver.get_log("browser")

    def complaints(self) -> list[str]:
        """Errors that scripts made, or what was refused to them; refused answers are none."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        return [
            one for one in said if "Failed to load resource" not in one and "net::ERR_" not in one
        ]

    def open(self, link: str) -> None:
        """As if it were typed: another address of the same page only changes what is shown.

        Whoever sees that the network has changed loads anew; containers come and go beside us.
        """
        self.driver.get("about:blank")
        while True:
            try:
                return self.driver.get(link)
            except WebDriverException as fault:
                if "ERR_NETWORK_CHANGED" not in str(fault):
                    raise

    @contextmanager
    def without(self, address: str) -> Iterator[None]:
        """What has such an address does not come."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [address]})
        yield
        self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})

    def go(self, view: str) -> None:
        """To a view, by its link; the page has heard of it when this returns."""
        self.driver.execute_async_script(GO, view)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def text(self) -> str:
        """What a person reads on the page."""
        return str(self.run("return document.body ? document.body.innerText : ''"))

    def reads(self, *words: str) -> None:
        """Wait until all of this stands on the page."""
        try:
            eventually(lambda: all(one in self.text for one in words))
        except AssertionError:
            missing = [one for one in words if one not in self.text]
            raise AssertionError(f"not on the page: {missing}; it says:\n{self.text}") from None

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def each(self, selector: str, what: str = "innerText.trim()") -> list[Any]:
        """This property of each of them, all at one instant; by default what a person reads."""
        return list(self.run(f"return {ALL}.map((each) => each.{what})", selector))

    def sees(self, selector: str) -> None:
        """Wait until one is there that a person can see."""
        eventually(lambda: self.run(f"return {SEEN}.length", selector))

    def first(self, selector: str, what: str = "innerText.trim()") -> Any:
        """This property of the first that can be seen, once there is one."""
        found: list[Any] = []

        def read() -> bool:
            found[:] = self.run(f"return {SEEN}.map((each) => each.{what})", selector)
            return bool(found)

        eventually(read)
        return found[0]

    def click(self, selector: str) -> None:
        """Click on the first that can be seen, once there is one."""
        self._act(selector, WebElement.click)

    def type(self, selector: str, text: str) -> None:
        """Type into the first that can be seen, once there is one."""
        self._act(selector, lambda field: field.send_keys(text))

    def _act(self, selector: str, act: Callable[[WebElement], object]) -> None:
        """Done again where the page drew anew in between, so that nothing was done."""

        def done() -> bool:
            seen = self.run(f"return {SEEN}", selector)
            if not seen:
                return False
            try:
                act(seen[0])
            except StaleElementReferenceException:
                return False
            return True

        eventually(done)

    def press(self, key: str) -> None:
        self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    @contextmanager
    def as_phone(self) -> Iterator[None]:
        """On a phone's screen, in the dark."""
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        try:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def overflows(self) -> bool:
        """Whether the page as a whole would have to be scrolled sideways."""
        # Not beside innerWidth: on a phone that grows with what is too wide.
        return bool(
            self.run(
                "const { scrollWidth, clientWidth } = document.documentElement;"
                "return scrollWidth > clientWidth + 1"
            )
        )
