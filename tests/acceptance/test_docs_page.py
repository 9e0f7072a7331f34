"""The API's documentation in a real browser: on a phone and on a desk, by day and by night."""

import pytest
from playwright.sync_api import sync_playwright

from agentops.local.browser import find


@pytest.fixture(scope="module")
def browser():
    place = find()
    assert place, "Install Chromium, or set AGENTOPS_BROWSER to one."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 780), (1280, 900)])
def test_the_page_is_readable_without_a_complaint_of_the_browser(stack, browser, scheme, width, height):
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{stack.url}/v1/docs")
    page.get_by_role("navigation").get_by_role("link", name="Cancel a run").click()
    assert page.get_by_role("heading", name="Cancel a run").is_visible()
    background, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    sideways = page.evaluate("document.documentElement.scrollWidth") > width
    page.close()
    assert not complaints
    assert not sideways
    assert (_brightness(background) > _brightness(text)) == (scheme == "light")


def _brightness(colour: str) -> float:
    """Of `rgb(245, 246, 248)`."""
    return sum(float(part) for part in colour.strip("rgba()").split(",")[:3])
