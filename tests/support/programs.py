"""Compilers, interpreters and a browser, run from tests."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

# Both with checks of undefined behaviour, as zig's driver has them by default.
_STRICT = ("-Wall", "-Wextra", "-Werror")
CC = (sys.executable, "-m", "ziglang", "cc", *_STRICT)
# Its C++ library would be built first, which takes minutes: the system's clang has one.
_CLANG = ("clang++", "-fsanitize=undefined", "-fsanitize-trap=undefined")
CXX = (
    *(_CLANG if shutil.which("clang++") else (sys.executable, "-m", "ziglang", "c++")),
    "-std=c++17",
    *_STRICT,
)


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def node_with_relaxed_simd() -> tuple[str, ...]:
    """Node, and the option that those before 22 need for relaxed SIMD."""
    node, flag = tool("node"), "--experimental-wasm-relaxed-simd"
    flagged = subprocess.run((node, flag, "-e", ""), capture_output=True, check=False).returncode == 0
    return (node, flag) if flagged else (node,)


def page(url: str, seconds: int = 600) -> str:
    """The document of a page after its scripts have run, in a browser without a window."""
    browser = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
    if browser is None:
        pytest.skip("chromium is not installed")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={seconds * 1000}")
    return run(browser, *flags, "--dump-dom", url, cwd=Path.cwd())


def serve(folder: Path, headers: Mapping[str, str] | None = None) -> http.server.ThreadingHTTPServer:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            for header, value in (headers or {}).items():
                self.send_header(header, value)
            super().end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
