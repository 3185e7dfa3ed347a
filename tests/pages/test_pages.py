"""The pages in a browser: silent, accessible, readable without JavaScript, and never fooled by submitted text."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from api.pages.rendering import render
from api.pages.sessions import console_link, sign_in_link
from api.problems import Problem
from services.accounts import TokenService
from services.database import Database
from tests.pages.looks import AXE, follow, reads, shows
from tests.reports.samples import check, failing
from tests.serving import MODULE, RunningServer, Workshop, upload

DARK = {"color_scheme": "dark"}
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2}

HOSTILE_MODULE = """\
import torch


class Norm(torch.nn.Module):
    '''<script>alert(1)</script> \u202egnp.elif\u202c <img src=x onerror=alert(2)>'''

    def forward(self, x):
        return x / x.norm()  # \u2066</code></pre><script>alert(3)</script>
"""


def finished(client: httpx.Client, workshop: Workshop, source: str = MODULE, *results: Any) -> str:
    """The id of an analysis with a finding, a failing, a passing and a skipped check."""
    identity = client.post("/api/v1/analyses", files=upload({"pkg/__init__.py": "", "pkg/a.py": source})).json()["id"]
    workshop.read()
    workshop.probe(
        *(
            results
            or (
                failing(path="pkg/a.py", line=6),
                check(check="compile_equivalence"),
                check(check="device_compare", verdict="skipped", summary="no CUDA device"),
            )
        )
    )
    return str(identity)


def assert_accessible(page: Any) -> None:
    """No violation of WCAG 2.1 AA or of good practice that axe can see."""
    results = Axe().run(page, options=AXE)
    assert results.violations_count == 0, results.generate_report()


def assert_fits(page: Any) -> None:
    """Nothing makes the page wider than the window: tables and code scroll for themselves."""
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_first_visit_explains_how_to_begin(open_window: Any) -> None:
    window = open_window()
    window.open("/analyses")
    expect(window.page.get_by_text("No analysis yet")).to_be_visible()
    assert "gradproof submit" in window.page.content()
    assert_accessible(window.page)


def test_the_list_shows_what_there_is_newest_first_and_page_by_page(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    first = finished(client, workshop)
    for _ in range(25):
        client.post("/api/v1/analyses", files=upload(), data={"project": "vision"})
    window = open_window()
    window.open("/analyses")
    rows = window.page.locator("tbody tr")
    expect(rows).to_have_count(25)
    shows(rows.first, "queued")
    shows(rows.first, "vision")
    assert_accessible(window.page)
    follow(window.page.get_by_role("link", name="Next"))
    follow(window.page.get_by_role("link", name=first))
    window.page.wait_for_url(f"{window.base}/analyses/{first}")
    reads(window.page.get_by_role("heading", level=1), "Failed")


@pytest.mark.parametrize("options", [{}, PHONE | DARK], ids=["light", "dark phone"])
def test_pages_for_everybody_are_accessible_and_fit_in_light_dark_and_on_a_phone(
    open_window: Any, client: httpx.Client, options: dict[str, Any]
) -> None:
    rule = client.get("/api/v1/rules").json()[-1]["id"]
    window = open_window(signed_in=False, **options)
    for path in ["/rules", f"/rules/{rule}", "/checks/gradcheck", "/sign-in", "/nothing"]:
        window.open(path)
        assert_accessible(window.page)
        assert_fits(window.page)
        expect(window.page.get_by_role("heading", level=1)).to_have_count(1)
    window.complaints.remove("console: Failed to load resource: the server responded with a status of 404 (Not Found)")


def test_the_list_moves_by_itself(open_window: Any, client: httpx.Client, workshop: Workshop) -> None:
    client.post("/api/v1/analyses", files=upload())
    window = open_window()
    window.open("/analyses")
    shows(window.page.locator("tbody"), "queued")
    workshop.read()
    workshop.probe(failing())
    window.page.locator("tbody").get_by_text("failed").wait_for()


def test_the_html_report_opens_in_a_browser_without_a_request_or_a_complaint(
    open_window: Any, client: httpx.Client, workshop: Workshop, tmp_path: Any
) -> None:
    identity = finished(client, workshop, HOSTILE_MODULE)
    file = tmp_path / "report.html"
    file.write_bytes(client.get(f"/api/v1/analyses/{identity}/report", params={"format": "html"}).content)
    window = open_window(signed_in=False)
    requests: list[str] = []
    window.page.on("request", lambda request: requests.append(request.url))
    window.page.goto(file.as_uri())
    assert requests == [file.as_uri()]
    reads(window.page.get_by_role("heading", level=1), "Failed")
    assert_accessible(window.page)


def test_a_rule_page_explains_with_both_examples_and_needs_no_session(open_window: Any, client: httpx.Client) -> None:
    rule = next(each for each in client.get("/api/v1/rules").json() if each["settled_by"])
    window = open_window(signed_in=False)
    window.open("/rules")
    follow(window.page.get_by_role("link", name=rule["id"], exact=True))
    for heading in ("What it does", "Why is this bad?", "Example", "Use instead", "Fix safety", "Silence it"):
        expect(window.page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    shows(window.page.locator(".faulty"), rule["faulty_example"].strip().splitlines()[-1])


# ---------------------------------------------------------------------------------------------------- sessions


def test_without_a_session_a_page_leads_to_the_sign_in_and_back(
    open_window: Any, client: httpx.Client, workshop: Workshop, server: RunningServer
) -> None:
    from tests.serving import token  # noqa: PLC0415 - used here only

    identity = finished(client, workshop)
    window = open_window(signed_in=False)
    window.open(f"/analyses/{identity}")
    expect(window.page.get_by_role("heading", name="Sign in")).to_be_visible()
    window.page.get_by_label("API token").fill("gp_api_wrong")
    follow(window.page.get_by_role("button", name="Sign in"))
    reads(window.page.get_by_role("alert"), "This token is unknown, expired or revoked.")
    window.page.get_by_label("API token").fill(token(server.settings, "read"))
    follow(window.page.get_by_role("button", name="Sign in"))
    window.page.wait_for_url(f"{window.base}/analyses/{identity}")
    window.page.locator("summary", has_text="Signed in as").click()
    follow(window.page.get_by_role("button", name="Sign out"))
    window.page.wait_for_url(f"{window.base}/sign-in")
    window.open("/")
    expect(window.page.get_by_role("heading", name="Sign in")).to_be_visible()
    window.complaints.clear()  # the refused token is a 401 on the console


def test_a_sign_in_link_opens_a_session_that_ends_with_its_token(server: RunningServer) -> None:
    database = Database.open(server.settings, lambda _queue: None)
    tokens = TokenService(database, server.settings)
    created = tokens.create("first", ["admin"], kind="first")
    link = httpx.URL(sign_in_link(server.settings, created.info.id)).path
    with httpx.Client(base_url=server.url, follow_redirects=True, headers={"Accept": "text/html"}) as visitor:
        assert "No project yet" in visitor.get(link).text
        cookie = next(iter(visitor.cookies.jar))
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert created.text not in str(cookie.value)
        assert visitor.get("/api/v1/analyses").status_code == 401
        assert "Sign out" in visitor.get("/").text
        tokens.revoke(created.info.id)
        assert "Sign out" not in visitor.get("/").text
        assert visitor.get(link).status_code == 401
    database.close()


def test_the_console_gets_a_link_as_long_as_somebody_holds_a_token(server: RunningServer) -> None:
    assert console_link(server.settings) is None
    database = Database.open(server.settings, lambda _queue: None)
    tokens = TokenService(database, server.settings)
    kept, revoked = tokens.create("kept", ["read"]), tokens.create("revoked", ["read"])
    tokens.revoke(revoked.info.id)
    database.close()
    link = console_link(server.settings)
    assert link is not None
    assert link.startswith(f"{server.settings.public_url}/sign-in/{kept.info.id}.")
    response = httpx.get(server.url + httpx.URL(link).path, follow_redirects=False)
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-1] + "0", lambda code: "x" + code, lambda _: "é", lambda _: ".."]
)
def test_a_damaged_link_or_cookie_lets_nobody_in(server: RunningServer, damage: Any) -> None:
    database = Database.open(server.settings, lambda _queue: None)
    created = TokenService(database, server.settings).create("first", ["admin"])
    database.close()
    code = httpx.URL(sign_in_link(server.settings, created.info.id)).path.rpartition("/")[2]
    broken = damage(code)
    if broken == code:
        broken = code[:-1] + "1"
    assert httpx.get(f"{server.url}/sign-in/{broken}").status_code in {401, 404}
    for value in (broken, code):  # the signature of a link is none of a session
        headers: Any = {"Cookie": f"gradproof_session={value}".encode(), "Accept": "text/html"}
        response = httpx.get(f"{server.url}/", headers=headers)
        assert response.status_code == 303
        assert response.headers["location"].startswith("/sign-in")


def test_a_form_of_another_site_signs_nobody_in_or_out(server: RunningServer) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        for path in ("/sign-in", "/sign-out"):
            response = httpx.post(f"{server.url}{path}", headers=headers, data={"token": "x"})
            assert response.status_code == 403
            assert response.json()["code"] == "foreign-form"
    for headers in ({}, {"Origin": server.url}, {"Sec-Fetch-Site": "same-origin", "Origin": "null"}):
        assert httpx.post(f"{server.url}/sign-out", headers=headers).status_code == 303


@pytest.mark.parametrize(
    "goal", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nX: y", ""]
)
def test_signing_in_never_leads_to_another_site(server: RunningServer, goal: str) -> None:
    from tests.serving import token  # noqa: PLC0415 - used here only

    data = {"token": token(server.settings, "read"), "next": goal}
    response = httpx.post(f"{server.url}/sign-in", data=data)
    assert response.status_code == 303
    assert response.headers["location"] == "/"


def test_an_error_is_a_page_for_a_browser_and_a_problem_for_a_machine(server: RunningServer) -> None:
    page = httpx.get(f"{server.url}/nothing", headers={"Accept": "text/html"})
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "There is nothing at /nothing" in page.text
    machine = httpx.get(f"{server.url}/nothing", headers={"Accept": "*/*"})
    assert machine.headers["content-type"] == "application/problem+json"
    api = httpx.get(f"{server.url}/api/v1/nothing", headers={"Accept": "text/html"})
    assert api.headers["content-type"] == "application/problem+json"
    hostile = httpx.get(f"{server.url}/%3Cscript%3E", headers={"Accept": "text/html"})
    assert "<script>" not in hostile.text


def test_whoever_has_to_sign_in_comes_back_to_the_whole_address(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}) as visitor:
        asked = visitor.get("/compare?base=a&head=b%20c").headers["location"]
        assert asked == "/sign-in?next=/compare%3Fbase%3Da%26head%3Db%2520c"
        assert 'name="next" value="/compare?base=a&amp;head=b%20c"' in visitor.get(asked).text
        assert visitor.get("/analyses?before=" + "x" * 600).headers["location"] == "/sign-in?next=/analyses"


@pytest.mark.parametrize(
    ("status", "said"), [(403, "a role that allows it"), (429, "Wait a little"), (503, "in a few seconds")]
)
def test_a_problem_says_what_to_do_next(status: int, said: str) -> None:
    problem = Problem(type="", title="A problem", status=status, detail="`x` <b>", code="x")
    page = bytes(render("error.html", status=status, problem=problem).body).decode()
    assert said in page
    assert "<code>x</code> &lt;b&gt;" in page


def test_files_are_kept_by_browsers_until_they_change(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}) as visitor:
        page = visitor.get("/sign-in").text
        for address in [part.partition('"')[0] for part in page.split('="/static/')[1:]]:
            response = visitor.get(f"/static/{address}")
            assert response.status_code == 200
            assert "immutable" in response.headers["cache-control"]
            assert "?v=" in address
        assert visitor.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
        assert visitor.get("/static/..%2froutes.py").status_code == 404
