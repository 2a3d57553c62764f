"""Run the tutorials' programs as they stand, and keep their pictures in docs/images."""

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
    """All pages, or those that are named."""
    for page in sys.argv[1:] or PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        names: dict = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for program in BLOCK.findall(text):
                exec(compile(program, page, "exec"), names)
            for made in Path(folder).glob("*.png"):
                picture = ROOT / "docs" / "images" / f"tutorial-{made.name}"
                shutil.copyfile(made, picture)
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
