"""The page in a real browser: what is drawn, and what a click, a link and the pointer do."""

import json
import re

import pytest
from browser import CHROMEDRIVER, CHROMIUM, Browser
from training_runs import (
    HOSTILE,
    hostile_run,
    report,
    write_link_repeats,
    write_link_run,
    write_options,
    write_own_run,
    write_repeats,
    write_run,
    write_snapshot_run,
)

METRICS = (
    "loss",
    "train_accuracy",
    "val_accuracy",
    "val_loss",
    "seeds",
    "edges",
    "bytes",
    "resident",
    "peak",
    "data",
    "buffers",
    "reuse",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None or CHROMEDRIVER is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def three(tmp_path):
    runs = [
        write_run(tmp_path / "a", name="sage"),
        write_run(tmp_path / "b", name="wide & fast", speed=2.0, seed=1, hidden=512),
        write_run(tmp_path / "c", name="going on", epochs=3, end=None, trace=False, seed=2),
    ]
    return report(tmp_path, *runs)


def test_every_run_and_metric_is_a_line(browser, three):
    assert browser.open(three) == "true"
    for run in range(3):
        for metric in METRICS:
            assert browser.count(f'path[data-run="{run}"][data-metric="{metric}"][d^="M"]') == 1, (run, metric)
    for section in ("summary", "curves", "time", "stages", "timeline", "sampled", "throughput", "memory", "options"):
        assert browser.count(f"#{section}") == 1
    assert "Not here: going on" in browser.text("#timeline")
    assert "still running or interrupted" in browser.text("#summary")
    assert browser.console() == []


def test_the_page_asks_for_nothing_but_itself(browser, three):
    browser.open(three)
    assert browser.requests() == [three.as_uri()]


def test_the_legend_hides_a_run_and_shows_it_again(browser, three):
    browser.open(three)
    browser.click('[data-toggle="1"]')
    assert browser.count('main [data-run="1"]') == 0
    assert browser.count('path[data-run="0"][data-metric="loss"]') == 1
    assert browser.run("return location.hash") == "#only=sage&only=going+on"
    browser.click('[data-toggle="1"]')
    assert browser.count('path[data-run="1"][data-metric="loss"]') == 1
    assert browser.run("return location.hash") == ""


def test_a_link_shows_what_it_names(browser, three):
    assert browser.open(three, "#only=wide+%26+fast&x=seconds") == "true"
    assert browser.run("return [...new Set([...document.querySelectorAll('main [data-run]')].map(e => e.dataset.run))]") == ["1"]
    assert browser.text('[data-x="seconds"][aria-pressed="true"]') == "by time"
    assert "minutes" in browser.run("return document.querySelector('#curves svg.chart').textContent")


def test_the_axis_of_time_is_a_click_away(browser, three):
    browser.open(three)
    ticks = "[...document.querySelector('#curves svg.chart').querySelectorAll('.tick.across')].map(e => +e.getAttribute('x'))"
    line = "return document.querySelector('path[data-metric=loss][data-run=\"1\"]').getAttribute('d')"
    by_epoch = browser.run(line)
    browser.click('[data-x="seconds"]')
    assert browser.run(line) != by_epoch
    assert max(browser.run(f"return {ticks}")) > 400
    browser.click('[data-x="epoch"]')
    assert browser.run(line) == by_epoch


def test_the_pointer_reads_values_from_curves_bars_and_spans(browser, three):
    browser.open(three)
    browser.hover("#curves figure:nth-child(2) svg.chart")
    shown = browser.text("#tip")
    assert re.search(r"epoch \d", shown)
    assert re.search(r"sage\s+\d\d\.\d\d %\s+\d\d\.\d\d %", shown)
    browser.hover('#time [data-run="0"][data-part="backward"]')
    assert "backward: 40 s, 49.9 %" in browser.text("#tip")
    browser.hover("#timeline rect.span:last-of-type")
    assert re.search(r"item \d+, [\d.]+ ms", browser.text("#tip"))


def test_every_chart_says_in_words_and_in_a_table_what_it_shows(browser, three):
    browser.open(three)
    labels = browser.run("return [...document.querySelectorAll('svg.chart')].map(e => [e.getAttribute('role'), e.ariaLabel])")
    assert len(labels) >= 14
    assert all(role == "img" and len(label) > 40 for role, label in labels)
    assert any("sage loss ends at 0.46" in label for _, label in labels)
    for section in ("curves", "time", "stages", "timeline", "sampled", "throughput", "memory"):
        browser.click(f"#{section} details summary")
        assert browser.count(f"#{section} details tbody tr") > 2


def test_options_that_differ_are_marked_and_may_stand_alone(browser, three):
    browser.open(three)
    assert "hidden\t256\t512\t256" in browser.text("#options")
    assert browser.count("#options tr.differs") == 1
    browser.click("#differing")
    assert browser.count("#options tbody tr") == 1


def test_repeats_are_thin_lines_of_one_color(browser, tmp_path):
    assert browser.open(report(tmp_path, write_repeats(tmp_path / "cora"))) == "true"
    assert browser.count('path.repeat.run-0[data-metric="val_accuracy"]') == 3
    assert "81.50 ± 0.50 %" in browser.text("#summary")
    assert "a full-batch run samples nothing" in browser.text("#sampled")
    assert browser.console() == []


def test_validation_of_every_third_epoch_is_one_line(browser, tmp_path):
    run = write_run(tmp_path / "a", epochs=9)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"val_accuracy": None} if line["kind"] == "epoch" and line["epoch"] % 3 else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser.open(report(tmp_path, run))
    path = browser.run("return document.querySelector('path[data-metric=val_accuracy]').getAttribute('d')")
    assert (path.count("M"), path.count("L")) == (1, 2)


def test_runs_of_links_show_ranks_and_what_the_disk_did(browser, tmp_path):
    plan = {"predicted": {"read": 7e6, "written": 3.9e6, "seconds": 1.5}}
    runs = [
        write_link_run(tmp_path / "a", name="memory", sampled=True),
        write_link_run(tmp_path / "b", name="disk", disk=True, plan=plan),
    ]
    assert browser.open(report(tmp_path, *runs)) == "true"
    for run in range(2):
        for metric in ("loss", "val_mrr", "val_hits1", "val_hits3", "val_hits10", "seeds", "in_flight"):
            assert browser.count(f'path[data-run="{run}"][data-metric="{metric}"][d^="M"]') == 1, (run, metric)
    for metric in ("disk_bytes_read", "disk_bytes_written", "disk_busy", "disk_stall_seconds"):
        assert browser.count(f'path[data-metric="{metric}"]') == browser.count(f'path[data-run="1"][data-metric="{metric}"]') == 1
    assert browser.run("return document.querySelector('#curves h2').textContent") == "Loss and mrr"
    assert browser.count('path[data-metric="val_accuracy"]') == 0
    assert browser.count("#sampled") == 0
    ranks = browser.text("#ranks")
    assert "memory\tfull filtered\t0.2836\t17.02 %" in ranks
    assert "memory\tsampled filtered" in ranks
    assert "disk\tsampled filtered" not in ranks
    summary = browser.run("return document.querySelector('#summary').textContent")
    assert "Test mrr" in summary
    assert "0.2836" in summary
    assert "Best possible" not in summary
    assert "compute: memory 500 ms, disk 500 ms" in browser.run("return document.querySelector('#stages').innerHTML")
    assert "planned to be written" in browser.run("return document.querySelector('#disk').textContent")
    assert "Not here: memory (its rows are in memory)" in browser.text("#disk")
    browser.click("#disk details summary")
    assert "54\t4 MB\t3.9 MB\t25.0 %\t125 ms" in browser.text("#disk")
    assert browser.console() == []


def test_runs_on_snapshots_show_forecast_baselines_and_balance(browser, tmp_path):
    assert browser.open(report(tmp_path, write_snapshot_run(tmp_path / "a"), write_run(tmp_path / "b"))) == "true"
    assert browser.count("#forecast path.line") == 2 + 2  # truth and forecast, and what the key draws of them
    assert "3,451.7" in browser.text("#baselines")
    assert "1.25" in browser.text("#balance")
    assert "Not here: sage" in browser.text("#balance")
    assert browser.console() == []


def test_classes_have_a_table(browser, tmp_path):
    path = write_run(tmp_path / "a", name="sage")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["test"] = {"accuracy": 0.5, "classes": [{"nodes": 1200, "precision": 0.25, "recall": 1.0, "f1": 0.4}]}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert browser.open(report(tmp_path, path)) == "true"
    assert "sage\t0\t1,200\t25.00 %\t100.00 %\t40.00 %" in browser.text("#classes")


def test_repeats_of_links_have_a_mean_a_spread_and_one_table_of_ranks(browser, tmp_path):
    assert browser.open(report(tmp_path, write_link_repeats(tmp_path / "a"))) == "true"
    for metric in ("val_mrr", "val_hits10"):
        assert browser.count(f'path.repeat.run-0[data-metric="{metric}"]') == 2
    assert "0.2978 ± 0.0201" in browser.text("#summary")
    assert browser.text("#ranks").count("full filtered") == 1
    assert browser.console() == []


def test_a_measure_that_is_better_when_smaller_is_marked_at_its_least(browser, tmp_path):
    runs = [write_own_run(tmp_path / "a", name="first"), write_own_run(tmp_path / "b", name="second", errors=(1200.5, 800.25))]
    assert browser.open(report(tmp_path, *runs)) == "true"
    assert browser.run("return document.querySelector('#curves h2').textContent") == "Loss and error"
    head = browser.run("return [...document.querySelectorAll('#summary th')].map(e => e.textContent)")
    shown = ["Validation error", "Test error", "Best possible error", "Validation kept"]
    assert head[6:10] == shown  # nothing was tested of what was kept
    cell = "#summary tr[data-run='{}'] td[data-name='{}']"
    assert browser.text(cell.format(0, "Test error")) == "20.0"
    assert browser.text(cell.format(1, "Test error")) == "8,002.5"
    assert browser.text(cell.format(0, "Validation kept")) == "50.0 %"
    best = "return [...document.querySelectorAll('#summary td.best')].map(e => [e.parentNode.dataset.run, e.dataset.name])"
    assert browser.run(best) == [["0", "Validation error"], ["0", "Test error"], ["0", "Validation kept"]]
    figure = "document.querySelector('#curves figure:nth-child(2)')"
    assert "Error" in browser.run(f"return {figure}.textContent")
    assert "lower is better" in browser.run(f"return {figure}.textContent")
    assert "best possible 0.5" in browser.run(f"return {figure}.textContent")
    least = "Math.max(...[...path.getAttribute('d').matchAll(/,([\\d.]+)/g)].map(m => +m[1]))"  # from above, so the most
    path = f"const path = {figure}.querySelector('path[data-run=\"0\"][data-metric=val_error]')"
    mark = f"+{figure}.querySelector('circle[data-run=\"0\"]').getAttribute('cy')"
    assert browser.run(f"{path}; return Math.abs({least} - {mark}) < 0.1")
    assert browser.count("#sampled") == 0
    assert "it has no pipeline" in browser.text("#stages")
    assert "0 nodes" not in browser.text("#head")
    browser.click("#curves > details summary")
    assert "2\t2 s\t2\t1.8\t2.0\t50.0 %" in browser.text("#curves")
    assert browser.console() == []


def test_measures_are_written_in_their_format(browser, three):
    browser.open(three)
    shown = {
        ".2%": ["12.35 %", "0.00 %"],
        ".4f": ["0.1235", "0.0000"],
        ",.1f": ["0.1", "0.0"],
        ".2e": ["1.23e-1", "0.00e+0"],
        ".3g": ["0.123", "0"],
        "": ["0.123457", "0"],
    }
    for format, words in shown.items():
        assert browser.run(f"return [0.1234567, 0].map((value) => measureFormat({json.dumps(format)})(value))") == words, format
    assert browser.run("return measureFormat('.2%')(null)") == "–"


def test_nodes_and_links_go_on_one_page(browser, tmp_path):
    assert browser.open(report(tmp_path, write_run(tmp_path / "a", epochs=2), write_link_run(tmp_path / "b", epochs=2))) == "true"
    assert browser.run("return document.querySelector('#curves h2').textContent") == "Loss and accuracy and mrr"
    for metric in ("val_accuracy", "val_mrr"):
        assert browser.count(f'path[data-metric="{metric}"]') == 1
    assert "complex (edges are predicted without neighbors)" in browser.text("#sampled")
    assert browser.count("#disk") == 0
    assert browser.console() == []


def test_a_run_that_has_just_begun_has_a_page(browser, tmp_path):
    path = tmp_path / "new"
    path.mkdir()
    write_options(path)
    assert browser.open(report(tmp_path, path)) == "true"
    assert "no epoch has ended yet" in browser.text("#curves")
    assert browser.count("svg.chart") == 0


def test_hostile_strings_are_text(browser, tmp_path):
    assert browser.open(report(tmp_path, hostile_run(tmp_path / "a"), write_run(tmp_path / "b", epochs=2))) == "true"
    assert browser.count("img") == 0
    assert browser.run("return document.title") != "taken"
    assert browser.run("return document.querySelector('[data-toggle]').textContent") == HOSTILE
    assert browser.run("return document.querySelector('#options').textContent").count(HOSTILE) >= 3
    assert browser.console() == []


def test_a_script_that_is_not_the_pages_own_does_not_run(browser, three):
    changed = three.read_text(encoding="utf-8").replace("</body>", "<script>document.title = 'taken'</script></body>")
    three.write_text(changed, encoding="utf-8")
    assert browser.open(three) == "true"
    assert browser.run("return document.title") != "taken"


def test_a_page_that_cannot_be_drawn_says_so(browser, three):
    three.write_text(three.read_text(encoding="utf-8").replace('"curves":[', '"bends":['), encoding="utf-8")
    assert browser.open(three).startswith("error: ")
    assert "could not be drawn" in browser.text("p.problem")


@pytest.mark.parametrize("pixels", [400, 1280])
def test_the_page_is_as_wide_as_the_window(browser, three, pixels):
    browser.width(pixels)
    browser.open(three)
    assert browser.run("return document.documentElement.scrollWidth") <= pixels
    edges = "[...document.querySelectorAll('svg.chart')].map(e => e.getBoundingClientRect().right)"
    assert browser.run(f"return Math.max(...{edges})") <= pixels
