"""A web page of another origin, and whoever posts parameters, make the worker neither connect nor train."""

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import browser, missing_browser
from operated import Operated
from operation_cases import listening, serving

pytestmark = pytest.mark.thorough

_MISSING = missing_browser()

_PAGE = """<!doctype html><title>A page of somebody else</title><pre id="said">asking</pre><script>
const url = URL, body = BODY;
const json = {method: "POST", headers: {"content-type": "application/json"}, body: body};
const plain = {method: "POST", mode: "no-cors", body: body};
const told = answer => "answered " + answer.type + " " + answer.status, failed = error => "refused";
const socket = new Promise(done => {
  const opened = new WebSocket(url.replace("http", "ws").replace(/api.*/, "api/events/out"));
  opened.onopen = () => done("opened");
  opened.onerror = () => done("refused");
});
Promise.all([fetch(url, json).then(told, failed), fetch(url, plain).then(told, failed), socket])
  .then(found => { document.getElementById("said").textContent = "said: " + found.join("; "); });
</script>"""


def request_of(operated: Operated, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    url = f"{operated.api}/deployments/{operated.deployment()['id']}/create_flow_run"
    return url, {"parameters": {"config": config, "run": "theirs"}}


def test_a_request_of_another_page_or_under_another_name_begins_nothing(operated: Operated) -> None:
    before = operated.asked_for()
    url, body = request_of(operated, {"preset": "quickstart"})
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null", "Content-Type": "text/plain"},
        {"Host": "evil.example:4200"},
    ):
        answer = httpx.post(url, content=json.dumps(body), headers=headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers
    assert operated.asked_for() == before


@pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
def test_a_page_of_another_origin_begins_nothing_in_a_browser(operated: Operated, tmp_path: Path) -> None:
    before = operated.asked_for()
    of_folder = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with listening() as (address, connections), serving(of_folder) as origin, browser(tmp_path) as pages:
        url, body = request_of(operated, {"preset": "quickstart", "scheduler": f"tcp://{address}"})
        page = _PAGE.replace("URL", json.dumps(url), 1).replace("BODY", json.dumps(json.dumps(body)), 1)
        (tmp_path / "page.html").write_text(page)
        # What a page may not read it may still have sent: that, too, must have done nothing.
        pages.open(f"{origin}/page.html", "said: refused; answered opaque 0; refused")
        harmless = json.dumps(json.dumps(request_of(operated, {"preset": "quickstart"})[1]))
        (tmp_path / "page.html").write_text(page.replace(json.dumps(json.dumps(body)), harmless))
        pages.open(f"{origin}/page.html?again", "said: refused; answered opaque 0; refused")
        assert operated.asked_for() == before
        assert connections == []
        # Its own pages go on.
        pages.console_errors()
        pages.open(operated.pages, "Runs")
        assert [line for line in pages.console_errors() if "403" in line] == []
