"""Opens pages in Debian's Chromium, and prints what is wrong with them as a JSON list of sentences.

The only argument is a JSON object. For each address in "pages", at each of "widths" pixels, in a light and a dark scheme, the page must
tell no error, send no request that begins with none of "allowed", be no wider than the window, follow the scheme, and show at least so
many of the elements that each selector in "shows" finds, as {"table": 2}. "absent" names selectors that find nothing. With
"javascript": false the page has to do without scripts. "upload" is a file that is sent by the page's form first, "click" a selector of a
button that leads to another page, and "awaits" a selector of what has to appear by itself. "screenshots" is a folder for images of all that was opened.
"""
import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]
# The width of what is there, and the brightness of the page.
LAYOUT = """() => {
    const page = document.documentElement, colour = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g);
    return {width: Math.max(page.scrollWidth, document.body.scrollWidth),
            brightness: (Number(colour[0]) + Number(colour[1]) + Number(colour[2])) / 765};
}"""
# Ends when all images have come, or cannot.
LOADED = "() => Promise.allSettled([...document.images].map(image => image.decode()))"
# How many of the elements a person sees: one has a size, and an image its pixels. In one step, since an event may replace them between two.
VISIBLE = """selector => [...document.querySelectorAll(selector)].filter(element => {
    const box = element.getBoundingClientRect();
    const loaded = element.tagName !== "IMG" || (element.complete && element.naturalWidth > 0);
    return box.width >= 1 && box.height >= 1 && loaded && element.checkVisibility();
}).length"""


def left(request, wanted):
    """Whether nobody waits for the answer any more: the page was left for another one, or closed its stream of events."""
    return request.failure == "net::ERR_ABORTED" and (request.resource_type == "eventsource" or "click" in wanted)


def problems(page, wanted, width, scheme):
    for selector, least in wanted.get("shows", {}).items():
        seen = page.evaluate(VISIBLE, selector)
        if seen < least:
            yield f"{seen} of at least {least} {selector} can be seen"
    for selector in wanted.get("absent", []):
        if found := page.locator(selector).count():
            yield f"there are {found} {selector}"
    # A script of the page cannot forbid this one, which the browser runs itself.
    layout = page.evaluate(LAYOUT)
    if layout["width"] > width:
        yield f"is {layout['width']} pixels wide"
    if (layout["brightness"] < 0.5) != (scheme == "dark"):
        yield f"has the brightness {layout['brightness']:.2f}"


def opened(browser, address, wanted, width, scheme, script):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, java_script_enabled=script)
    page, found = context.new_page(), []
    page.on("console", lambda message: found.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (found.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("requestfailed", lambda request: None if left(request, wanted) else found.append(f"failed: {request.url[:200]}"))
    own = ("data:", *wanted["allowed"])
    page.on("request", lambda request: None if request.url.startswith(own) else found.append(f"request: {request.url[:200]}"))
    page.goto(address, wait_until="load")
    if file := wanted.get("upload"):
        page.locator("form.drop input[type=file]").set_input_files(file)
    if button := wanted.get("click"):
        with page.expect_navigation(wait_until="load"):
            page.locator(button).click()
    if selector := wanted.get("awaits"):
        page.locator(selector).first.wait_for(timeout=60_000)
        page.evaluate(LOADED)
    found.extend(problems(page, wanted, width, scheme))
    if folder := wanted.get("screenshots"):
        name = "".join(letter if letter.isalnum() else "-" for letter in address)[-60:]
        page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()
    return [f"{address} at {width} pixels, {scheme}: {problem}" for problem in found]


def main():
    wanted, found = json.loads(sys.argv[1]), []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        for address in wanted["pages"]:
            for width in wanted["widths"]:
                for scheme in ["light", "dark"]:
                    found += opened(browser, address, wanted, width, scheme, wanted.get("javascript", True))
        browser.close()
    print(json.dumps(found))


main()
