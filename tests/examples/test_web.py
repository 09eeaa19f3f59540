"""The page that learns from clicks, in a browser: real events on its canvas, and what it says of itself."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import lenet
import pytest
from places import EXAMPLES
from programs import page, run, serve

from minbuild.authoring import Recipe, generate_artifacts

EXAMPLE = EXAMPLES / "web"
# Loads the page in a frame, clicks blue points on the left and orange ones on the right, and waits for 300 steps.
DRIVER = """<!doctype html><iframe id="frame" src="index.html" width="700" height="900"></iframe>
<script>
const frame = document.getElementById("frame");
function clicks() {
  const page = frame.contentDocument, plane = page.getElementById("plane"), at = plane.getBoundingClientRect();
  for (const [colour, side] of [["0", 0.2], ["1", 0.8]]) {
    page.querySelector(`input[value="${colour}"]`).click();
    for (const row of [0.2, 0.4, 0.6, 0.8]) {
      const place = { clientX: at.left + side * at.width, clientY: at.top + row * at.height, bubbles: true };
      plane.dispatchEvent(new frame.contentWindow.MouseEvent("click", place));
    }
  }
}
(function wait(clicked) {
  const data = frame.contentDocument?.body?.dataset ?? {};
  if (data.failure || Number(data.steps) >= 300) {
    Object.assign(document.body.dataset, data);
    return frame.remove(); // else it would go on learning until the browser's time is up
  }
  if (!clicked && data.points !== undefined) clicks(), clicked = true;
  setTimeout(wait, 20, clicked);
})(false);
</script>"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, after the commands of its README that build the package."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    run(sys.executable, "make_model.py", cwd=folder)
    recipe = Recipe(loss="cross-entropy", outputs=("scores",))
    generate_artifacts(folder / "model.onnx", folder / "artifacts", recipe)
    lenet.write_package(folder / "artifacts", folder / "dist")
    (folder / "driver.html").write_text(DRIVER, "utf-8")
    return folder


def test_clicks_are_learned(work: Path) -> None:
    server = serve(work)
    try:
        text = page(f"http://127.0.0.1:{server.server_port}/driver.html", seconds=20)
    finally:
        server.shutdown()
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', text.split("<body", 1)[1].split(">", 1)[0]))
    assert "failure" not in found and found, text[-2000:]
    assert found["points"] == found["right"] == "8"
    assert float(found["loss"]) < 0.1
