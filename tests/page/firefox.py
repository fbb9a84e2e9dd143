"""Firefox driven over WebDriver BiDi, the W3C protocol that it speaks itself: the second browser
engine of the pages' tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.waiting import HANG_S, until

FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")


class Tab:
    """One tab. Commands are answered in turn; events that come between are left out."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent = 0
        self._context = ""
        self.ask("session.new", capabilities={})

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command, and return its result.

        Raises RuntimeError where Firefox answers with an error."""
        self._sent += 1
        self._connection.send(
            json.dumps({"id": self._sent, "method": method, "params": parameters})
        )
        while (found := json.loads(self._connection.recv(timeout=HANG_S))).get("id") != self._sent:
            pass
        if found["type"] == "error":
            raise RuntimeError(f"{method}: {found['error']}: {found['message']}")
        return found["result"]

    def open(self, address: str, *, width: int, height: int = 900) -> None:
        """Go there in a new window, at a width in pixels, and wait until everything is loaded.

        The first window has its focus in the address bar, and so has one whose page Tab has left.
        """
        self._context = self.ask("browsingContext.create", type="window", background=False)[
            "context"
        ]
        self.ask("browsingContext.activate", context=self._context)
        self.ask(
            "browsingContext.setViewport",
            context=self._context,
            viewport={"width": width, "height": height},
        )
        self.ask("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def evaluate(self, script: str) -> Any:
        """The value of an expression."""
        target = {"context": self._context}
        found = self.ask(
            "script.evaluate",
            expression=f"JSON.stringify({script})",
            target=target,
            awaitPromise=False,
        )
        if found["type"] != "success":
            raise RuntimeError(found["exceptionDetails"]["text"])
        return json.loads(found["result"]["value"])

    def press(self, key: str) -> None:
        """Press and release one key."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.ask(
            "input.performActions",
            context=self._context,
            actions=[{"type": "key", "id": "keyboard", "actions": actions}],
        )


@contextmanager
def firefox(profile: Path, *, dark: bool) -> Iterator[Tab]:
    """A tab of a Firefox of its own.

    It makes no request of its own accord, and ends with the block."""
    assert FIREFOX is not None
    profile.mkdir()
    scheme = 0 if dark else 1
    settings = {
        "layout.css.prefers-color-scheme.content-override": scheme,
        "network.proxy.type": 0,
        "app.update.disabledForTesting": True,
    }
    settings["focusmanager.testmode"] = True  # a window without a screen counts as focused
    settings |= {
        "datareporting.policy.dataSubmissionEnabled": False,
        "network.captive-portal-service.enabled": False,
    }
    (profile / "user.js").write_text(
        "".join(
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in settings.items()
        )
    )
    command = [
        FIREFOX,
        "--headless",
        "--no-remote",
        "--profile",
        str(profile),
        "--remote-debugging-port",
        "0",
        "about:blank",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = profile / "WebDriverBiDiServer.json"
            until(lambda: port.exists() and port.read_text().endswith("}"), "Firefox listens")
            where = json.loads(port.read_text())
            with connect(
                f"ws://{where['ws_host']}:{where['ws_port']}/session",
                max_size=None,
                open_timeout=HANG_S,
            ) as connection:
                yield Tab(connection)
        finally:
            process.terminate()
