"""The page is there where it is asked for, loads nothing from elsewhere, and opens no other
file."""

import re
from typing import Any


def test_the_page_and_what_it_names_are_served_and_only_with_the_flag(start: Any) -> None:
    running = start(page=True)
    page = running.http.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert named
    for name in named:
        response = running.http.get(name if name.startswith("/") else f"/{name}")
        assert response.status_code == 200, name
        assert response.headers["x-content-type-options"] == "nosniff"
    assert running.http.get("/page/%2e%2e/main.py").status_code == 404
    assert running.http.get("/page/").status_code == 404
    plain = start()
    assert (
        plain.http.get("/").json()["code"]
        == plain.http.get("/page/index.html").json()["code"]
        == "not-found"
    )
