"""Chromium driven by its DevTools protocol over a pipe: real clicks and keys, and the tree that screen readers get."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60  # that one call may take


class Browser:
    """One page. `with Browser(folder) as page:` ends the browser with the block."""

    def __init__(self, folder: Path) -> None:
        program = next(
            filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
        )
        if program is None:
            pytest.skip("chromium is not installed")
        there, self.output = os.pipe()
        self.input, back = os.pipe()
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}")
        # The protocol's ends are the descriptors 3 and 4.
        redirect = f'exec "$0" "$@" 3<&{there} 4>&{back}'
        self.process = subprocess.Popen(
            ("bash", "-c", redirect, program, *flags, "--remote-debugging-pipe", "about:blank"),
            pass_fds=(there, back),
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self.number, self.rest, self.session = 0, b"", ""
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attach = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attach["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.output)
        os.close(self.input)
        self.process.kill()
        self.process.wait()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of one method; events in between are passed over."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            while b"\0" in self.rest:
                text, _, self.rest = self.rest.partition(b"\0")
                found = json.loads(text)
                if found.get("id") == self.number:
                    assert "error" not in found, found["error"]
                    return found["result"]
            ready, _, _ = select.select([self.input], [], [], max(0, until - time.monotonic()))
            assert ready, f"{method} took more than {SECONDS} s"
            part = os.read(self.input, 1 << 20)
            assert part, "the browser ended"
            self.rest += part

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        for _ in range(SECONDS * 20):
            if self.run("location.href !== 'about:blank' && document.readyState === 'complete'"):
                return
            time.sleep(0.05)
        raise AssertionError(f"{address} does not load")

    def run(self, script: str) -> Any:
        """The value of a script, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str, value: object) -> None:
        """Wait until the script has this value: events such as a new address come after the call that causes them."""
        until = time.monotonic() + SECONDS
        while (found := self.run(script)) != value:
            assert time.monotonic() < until, f"{script} is {found}, not {value}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element, after it was scrolled to."""
        script = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A key of the keyboard, with what the system does for it: focus moves, buttons are pressed."""
        code = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowRight": 39,
        }[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    def tree(self) -> list[dict[str, Any]]:
        """Nodes of the accessibility tree in the order of reading: role, name, and properties by name."""
        self.call("Accessibility.enable")
        nodes = {n["nodeId"]: n for n in self.call("Accessibility.getFullAXTree")["nodes"]}
        found: list[dict[str, Any]] = []

        def visit(node: dict[str, Any], above: tuple[int, ...]) -> None:
            here = above
            if not node["ignored"]:
                properties = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
                name = node.get("name", {}).get("value", "")
                found.append({"role": node["role"]["value"], "name": name, "above": above, **properties})
                here = (*above, len(found) - 1)
            for child in node.get("childIds", ()):
                if child in nodes:
                    visit(nodes[child], here)

        visit(next(n for n in nodes.values() if "parentId" not in n), ())
        return found
