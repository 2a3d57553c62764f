"""Run the programs of the tutorials and copy their pictures to docs/images.

    python scripts/tutorials.py [PAGE ...]

The programs run exactly as docs/PAGE.md shows them.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "hospitals", "from-csv", "choosing-rates", "gallery", "pytorch", "new-objective",
    "new-algorithm", "to-deployment",
)  # fmt: skip
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the programs of all pages, or of the pages that are named."""
    for page in sys.argv[1:] or PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        names: dict = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for program in BLOCK.findall(text):
                exec(compile(program, page, "exec"), names)
            for picture in Path(folder).glob("*.png"):
                copy = ROOT / "docs" / "images" / f"tutorial-{picture.name}"
                shutil.copyfile(picture, copy)
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
