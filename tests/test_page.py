"""The HTML page in a real browser: no error, no request, filters, links, keyboard, screen reader, phone, hostile text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise.records import Change, Finding, Status
from pytest_piecewise.reports import html
from tests.reported import HOSTILE, hostile_report, report, result, trend

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1400, "height": 900}
SOUND, BROKEN = result("sound"), result("broken", broken=True)
SKIPPED = replace(result("skipped"), findings=SOUND.findings[-1:])
TRENDS = tuple(
    trend("broken-native-float32", variant, metric, step=metric == "compile")
    for variant in ("full", "piecewise")
    for metric in ("compile", "compile_cpu")
)
REPORT = report(SOUND, BROKEN, SKIPPED, trends=TRENDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium: .ci/services installs it")
        pytest.skip("needs Debian's package chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


class Page:
    """An open page, with what the browser complained of and what it asked the network for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESK} | options))
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def shown(self) -> list[str]:
        """Names of the cases that can be seen."""
        return [item.split()[0] for item in self.page.locator(".case:visible > summary").all_inner_texts()]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    pages: list[Page] = []

    def opener(shown: Any = REPORT, **options: Any) -> Page:
        path = tmp_path / "report.html"
        path.write_text(html.render(shown), encoding="utf-8")
        pages.append(Page(browser, path, **options))
        return pages[-1]

    yield opener
    for page in pages:
        page.context.close()


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_needs_nothing_fits_and_can_be_read_by_all(opened: Any, viewport: Any, scheme: str) -> None:
    found = opened(viewport=viewport, color_scheme=scheme)
    found.page.evaluate("for (const closed of document.querySelectorAll('details')) closed.open = true")
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith("file:")] == []
    assert len(found.requests) == 1
    assert found.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert serious(found.page) == []


def serious(page: Any) -> list[str]:
    """What axe-core holds against a page, of serious or critical impact. Its script comes past the page's own policy."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{item['id']}: {item['nodes'][0]['html'][:200]}" for item in found if item["impact"] in ("serious", "critical")
    ]


def test_axe_would_see_a_fault(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<!DOCTYPE html><html><body><img src="data:,"><p style="color:#eee;background:#fff">pale</p></body></html>'
    )
    found = Page(browser, path)
    assert {item.partition(":")[0] for item in serious(found.page)} >= {"image-alt", "html-has-lang", "color-contrast"}
    found.context.close()


def test_dark_page_is_dark(opened: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened(color_scheme="dark").page.evaluate(colour) != opened(color_scheme="light").page.evaluate(colour)


def test_failures_stand_first_and_open(opened: Any) -> None:
    found = opened()
    assert found.shown() == ["broken-native-float32", "sound-native-float32", "skipped-native-float32"]
    assert [item.get_attribute("open") is not None for item in found.page.locator(".case").all()] == [
        True,
        False,
        False,
    ]


def test_metrics_that_are_not_as_stored_stand_in_a_table(opened: Any) -> None:
    changes = (
        Change(metric="piecewise.kernels", gate="exact", status=Status.FAIL, stored="11", found="12"),
        Change(metric="<b>full.graphs", gate="exact", status=Status.NEW, found="1"),
    )
    finding = Finding(check="baseline", status=Status.FAIL, summary="two metrics", changes=changes)
    found = opened(report(replace(SOUND, findings=(*SOUND.findings, finding))))
    rows = found.page.get_by_role("region", name="Against the baseline: baseline").locator("tbody tr")
    assert [row.inner_text().split() for row in rows.all()] == [
        ["piecewise.kernels", "exact", "11", "12", "FAIL"],
        ["<b>full.graphs", "exact", "1", "NEW"],
    ]


def test_filters_show_the_verdicts_that_are_pressed(opened: Any) -> None:
    found = opened()
    found.page.get_by_role("button", name="PASS").click()
    assert found.shown() == ["broken-native-float32", "skipped-native-float32"]
    assert found.page.locator("tbody tr[data-case]:visible").count() == 2
    assert found.page.get_by_text("2 of 3 cases").is_visible()
    assert found.page.get_by_role("button", name="PASS").get_attribute("aria-pressed") == "false"
    found.page.get_by_role("button", name="PASS").click()
    assert len(found.shown()) == 3
    found.page.get_by_label("Name").fill("BROK float32")
    assert found.shown() == ["broken-native-float32"]
    found.page.get_by_label("Name").fill("nothing")
    assert found.shown() == []


def test_filters_work_from_the_keyboard(opened: Any) -> None:
    found = opened()
    found.page.get_by_role("button", name="FAIL").focus()
    found.page.keyboard.press("Space")
    assert found.shown() == ["sound-native-float32", "skipped-native-float32"]
    found.page.keyboard.press("Tab")
    found.page.keyboard.press("Enter")
    assert found.shown() == ["skipped-native-float32"]


def test_link_opens_a_case_even_one_that_is_filtered_away(opened: Any) -> None:
    found = opened()
    found.page.get_by_role("link", name="sound-native-float32").click()
    assert found.page.locator("#case-2").get_attribute("open") is not None
    assert found.page.get_by_text("Side by side").nth(1).is_visible()
    found.page.get_by_role("button", name="FAIL").click()
    found.page.evaluate("location.hash = 'case-1'")
    found.page.wait_for_function("!document.getElementById('case-1').hidden")
    assert len(found.shown()) == 3


def test_every_link_within_the_page_leads_somewhere(opened: Any) -> None:
    found = opened()
    targets = [link.get_attribute("href")[1:] for link in found.page.locator("a[href^='#']").all()]
    assert len(targets) >= 4
    assert all(found.page.locator(f"[id='{target}']").count() == 1 for target in targets)


def test_without_scripts_everything_can_be_seen(opened: Any) -> None:
    found = opened(java_script_enabled=False)
    assert len(found.shown()) == 3
    assert found.page.locator(".filters").is_hidden()


def test_broken_case_shows_what_there_is_to_see(opened: Any) -> None:
    page = opened().page
    case = page.locator("#case-1")
    assert "the seed, size and phase above repeat it" in case.inner_text()
    for label in (
        "Seconds of each build by phase: eager 0.30 s; full 3.70 s; piecewise 3.20 s",
        "Error over budget of 24 calls; most: piecewise 4e+04, padded, size 4",
        "300 of 1000 elements are wrong, in 16 rows and 100 columns",
        "5 pieces, 3 of them compiled; piece 2 is the first that is wrong",
        "60 values from 2.97 to 3.53, now 3.47",
    ):
        assert case.get_by_role("img", name=label).first.is_visible(), label
    assert case.locator("line.worse").count() == 2
    assert case.locator("rect.shared").count() == 2
    assert case.locator("rect.shared.bad").count() == 1
    for text in ("Where it begins", "right operands, wrong result", "piecewise/full.compile_cpu", "[0.7, 0.9]"):
        assert text in case.inner_text()
    assert case.locator("path.heat9").first.bounding_box()["width"] > 100


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_runs_nothing_and_asks_for_nothing(opened: Any, text: str) -> None:
    found = opened(hostile_report(text))
    found.page.mouse.move(300, 300)
    assert found.complaints == []
    assert len(found.requests) == 1
    assert found.page.evaluate("window.harmed") is None
    assert found.page.locator("script").count() == 1
    assert found.page.locator("img[onerror], [onmouseover], a[href^='javascript']").count() == 0
    assert found.page.locator(".case").count() == 2
    assert len(found.page.content()) < 400_000


def test_no_script_but_its_own_can_run_in_the_page(opened: Any) -> None:
    # Even if a text did become markup: the policy names the only script and the only style by their hashes.
    found = opened()
    found.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed=1\">')")
    found.page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.harmed=1'; document.body.append(s)"
    )
    found.page.wait_for_timeout(100)
    assert found.page.evaluate("window.harmed") is None
    assert any("Content Security Policy" in text for text in found.complaints)
