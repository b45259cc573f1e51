"""The page in a real browser: mouse, keyboard, reload, two tabs, hostile cells."""

import threading
import time

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("uvicorn")
pytest.importorskip("selenium")

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from support.browser import driven, needs_browser  # noqa: E402
from support.review_cases import EVIL, Medians, people, served, session_of  # noqa: E402

pytestmark = [pytest.mark.browser, needs_browser]


def until(driver, condition, what):
    return WebDriverWait(driver, 20, 0.05).until(lambda _: condition(), what)


CHOSEN = """
const item = document.querySelector("#rows [aria-selected=true]");
const heading = document.querySelector("#detail h2");
const shown = item && heading && item.querySelector(".label").textContent === heading.textContent;
return shown ? Number(item.id.split("-")[1]) : null;
"""


def chosen(driver):
    """Return the number of the chosen row, once its details are shown."""
    return driver.execute_script(CHOSEN)  # at once: the page may replace its parts meanwhile


def text_of(driver, selector):
    """Return the text of an element, None if there is none."""
    script = "const found = document.querySelector(arguments[0]); return found && found.innerText"
    return driver.execute_script(script, selector)


def at(driver, row):
    until(driver, lambda: chosen(driver) == row, f"row {row} is not shown")


def press(driver, *keys):
    for key in keys:
        driver.find_element(By.TAG_NAME, "body").send_keys(key)


def focus(driver):
    """Return the id of the element that takes what is typed."""
    return driver.execute_script("return document.activeElement.id")


def saved(session, row):
    decision = session.decisions.current().get(session.rows[row])
    return None if decision is None else (decision.verdict, decision.note)


def wait_saved(driver, session, row, expected):
    until(driver, lambda: saved(session, row) == expected, f"{saved(session, row)} of row {row}")


def errors_of(driver):
    """Return what the page wrote to the console."""
    return [entry["message"] for entry in driver.get_log("browser")]


def test_a_review_by_mouse_and_keyboard(tmp_path):
    frame, wrong = people()
    wrong = [int(row) for row in wrong]
    session = session_of(tmp_path / "d.sqlite", frame)
    with served(session) as address, driven(tmp_path) as driver:
        driver.get(address)
        at(driver, wrong[0])
        text = text_of(driver, "#detail")
        assert f"{frame['weight'].iloc[wrong[0]]:,g}" in text  # given
        assert "→" in text
        assert text_of(driver, "#targets tr.off th") == "weight"
        assert len(driver.find_elements(By.CSS_SELECTOR, ".similar tbody tr")) == 7
        assert driver.find_elements(By.CSS_SELECTOR, "#detail svg circle.it")
        # A cell that holds a script is text.
        assert EVIL in text_of(driver, ".inputs")
        assert driver.execute_script("return window.evil") is None

        driver.find_element(By.ID, "verdict-wrong").click()  # by mouse
        wait_saved(driver, session, wrong[0], ("wrong", ""))
        at(driver, wrong[1])  # goes on by itself
        press(driver, "c")
        wait_saved(driver, session, wrong[1], ("cells", ""))
        at(driver, wrong[2])
        press(driver, "r")
        wait_saved(driver, session, wrong[2], ("right", ""))
        at(driver, wrong[3])
        press(driver, "2", "c")  # also the second target
        wait_saved(driver, session, wrong[3], ("cells", ""))
        cells = session.decisions.current()[session.rows[wrong[3]]].cells
        assert set(cells) == {"weight", "waist"}
        at(driver, wrong[4])
        press(driver, "n")
        until(driver, lambda: focus(driver) == "note", "the note is not in focus")
        note = driver.switch_to.active_element
        note.send_keys("wurzel & " + EVIL + Keys.ESCAPE)  # w, r, u and z are letters here
        wait_saved(driver, session, wrong[4], ("", "wurzel & " + EVIL))
        press(driver, "u")
        wait_saved(driver, session, wrong[4], ("unsure", "wurzel & " + EVIL))
        at(driver, wrong[5])
        press(driver, "k")
        at(driver, wrong[4])
        assert "version 6: unsure" in text_of(driver, ".history li:last-child")
        press(driver, Keys.ARROW_DOWN, "j")
        at(driver, wrong[6])

        driver.refresh()  # what was decided is there, at the row where one was
        at(driver, wrong[6])
        listed = [
            item.get_attribute("id") for item in driver.find_elements(By.CSS_SELECTOR, "#rows li")
        ]
        assert listed == [f"row-{row}" for row in wrong[5:]]
        assert "3 wrong, 1 right, 1 unsure" in text_of(driver, "#summary")
        press(driver, "w")
        wait_saved(driver, session, wrong[6], ("wrong", ""))
        at(driver, wrong[7])
        press(driver, "k")
        at(driver, wrong[6])
        press(driver, "z")  # withdrawn
        wait_saved(driver, session, wrong[6], ("", ""))

        driver.find_element(By.ID, "refit").click()
        until(driver, lambda: session.state()["since_fit"] == 0, "no fit")
        until(driver, lambda: "since the fit" not in text_of(driver, "#summary"), "")
        driver.find_element(By.CSS_SELECTOR, "#export summary").click()
        driver.find_element(By.ID, "export-clean").click()
        file = tmp_path / "people.clean.csv"
        until(driver, file.exists, "nothing was downloaded")
        clean = pd.read_csv(file, index_col=0)
        assert list(clean.index) == list(frame.index.drop(frame.index[wrong[0]]))
        assert clean.loc[frame.index[wrong[1]], ["weight"]].isna().all()

        assert driver.execute_script("return window.evil") is None
        asked = driver.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert all(name.startswith(address) for name in asked if not name.startswith("data:"))
        assert errors_of(driver) == []
    session.close()


@pytest.mark.slow
def test_a_note_keeps_the_focus_when_a_fit_ends(tmp_path):
    may_end = threading.Event()
    may_end.set()

    class Waiting(Medians):
        def fit(self, *args, **kwargs):
            may_end.wait(60)
            return super().fit(*args, **kwargs)

    frame, wrong = people()
    session = session_of(tmp_path / "d.sqlite", frame, new_model=Waiting)
    with served(session) as address, driven(tmp_path) as driver:
        driver.get(address)
        at(driver, int(wrong[0]))
        may_end.clear()
        driver.find_element(By.ID, "refit").click()
        until(driver, lambda: text_of(driver, "#fit") != "", "no fit is shown")
        press(driver, "n")
        until(driver, lambda: focus(driver) == "note", "the note is not in focus")
        driver.switch_to.active_element.send_keys("w")
        may_end.set()
        until(driver, lambda: text_of(driver, "#fit") == "", "the fit has no end")
        time.sleep(0.5)  # the list comes anew
        driver.switch_to.active_element.send_keys("r")
        wait_saved(driver, session, int(wrong[0]), ("", "wr"))
    session.close()


@pytest.mark.slow
def test_two_tabs_and_the_end_of_the_review(tmp_path):
    frame, wrong = people()
    row = int(wrong[0])
    session = session_of(tmp_path / "d.sqlite", frame)
    with driven(tmp_path) as driver:
        with served(session) as address:
            driver.get(address)
            at(driver, row)
            first = driver.current_window_handle
            driver.switch_to.new_window("tab")
            driver.get(address)
            at(driver, row)
            press(driver, "w")
            wait_saved(driver, session, row, ("wrong", ""))
            driver.switch_to.window(first)
            press(driver, "r")  # this tab has not heard of it, or has just now
            wait_saved(driver, session, row, ("right", ""))
            assert len(session.decisions.history(session.rows[row])) == 2
            driver.switch_to.window(driver.window_handles[1])
            until(driver, lambda: text_of(driver, f"#row-{row} .badge") == "right", "no news")
            before = saved(session, int(wrong[1]))
        press(driver, "w")  # the review has ended: the page says so
        until(driver, lambda: "review has ended" in text_of(driver, "#message"), "nothing is said")
        assert saved(session, int(wrong[1])) == before
    session.close()


def test_a_search_for_a_row_of_another_list_leaves_no_row_under_the_keys(tmp_path):
    frame, wrong = people()
    wrong = [int(row) for row in wrong]
    session = session_of(tmp_path / "d.sqlite", frame)
    with served(session) as address, driven(tmp_path) as driver:
        driver.get(address)
        at(driver, wrong[0])
        label = text_of(driver, "#detail h2")
        press(driver, "w")
        wait_saved(driver, session, wrong[0], ("wrong", ""))
        at(driver, wrong[1])
        find = driver.find_element(By.ID, "find")
        find.send_keys(label.split()[-1])
        until(driver, lambda: "Not in this list" in text_of(driver, "#rows"), "the row is shown")
        assert text_of(driver, "#detail") == ""
        find.send_keys(Keys.TAB)
        press(driver, "r")  # of no row
        driver.find_element(By.ID, "elsewhere").click()
        at(driver, wrong[0])
        assert saved(session, wrong[0])[0] == "wrong"
        assert saved(session, wrong[1]) is None
        driver.find_element(By.ID, "find").send_keys(Keys.ESCAPE)
        until(driver, lambda: "of 60" in text_of(driver, "#range"), "the search is not over")
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_nothing_sticks_out_of_the_page(tmp_path, width, dark):
    frame, _ = people()
    wide = frame.rename(columns={"age": "a name that is longer than most " * 4})
    session = session_of(tmp_path / "d.sqlite", wide)
    with served(session) as address, driven(tmp_path, width=width, dark=dark) as driver:
        driver.get(address)
        until(driver, lambda: chosen(driver) is not None, "nothing is shown")
        widths = driver.execute_script(
            "return [document.documentElement.scrollWidth, window.innerWidth]"
        )
        assert widths[0] <= widths[1]
        driver.find_element(By.CSS_SELECTOR, "#export > summary").click()
        menu = driver.find_element(By.CSS_SELECTOR, "#export .menu").rect
        assert 0 <= menu["x"] < menu["x"] + menu["width"] <= widths[1]
        page = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (page == "rgb(255, 255, 255)") != dark
        assert errors_of(driver) == []
    session.close()


@pytest.mark.slow
def test_many_targets_show_the_worst_first(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"t{j}" for j in range(40)]
    frame = pd.DataFrame(rng.uniform(size=(30, 40)), columns=names).assign(x=rng.uniform(size=30))
    frame.iloc[7, 33] = 1000.0
    session = session_of(tmp_path / "d.sqlite", frame, names)
    with served(session) as address, driven(tmp_path) as driver:
        driver.get(address)
        at(driver, 7)
        assert text_of(driver, "#targets tbody th") == "t33"
        rows = "return document.querySelectorAll('#targets tbody tr').length"
        assert driver.execute_script(rows) == 12
        driver.find_element(By.ID, "every-target").click()
        assert driver.execute_script(rows) == 40
        press(driver, "c")
        wait_saved(driver, session, 7, ("cells", ""))
        assert session.decisions.current()[session.rows[7]].cells == ("t33",)
        assert errors_of(driver) == []
    session.close()


@pytest.mark.slow
def test_many_rows_are_paged(tmp_path):
    frame, wrong = people(3000, 120)
    session = session_of(tmp_path / "d.sqlite", frame)
    with served(session) as address, driven(tmp_path) as driver:
        driver.get(address)
        at(driver, int(wrong[0]))
        assert len(driver.find_elements(By.CSS_SELECTOR, "#rows li")) == 50
        assert text_of(driver, "#range") == "1 to 50 of 120"
        start = time.perf_counter()
        driver.find_element(By.ID, "next").click()
        at(driver, int(wrong[50]))
        assert time.perf_counter() - start < 5  # a second, on a machine that is not busy
        press(driver, "k")  # back over the edge of the page
        at(driver, int(wrong[49]))
        driver.find_element(By.ID, "find").send_keys(frame.index[7])
        driver.find_element(By.CSS_SELECTOR, "#show option[value=all]").click()
        at(driver, 7)
    session.close()
