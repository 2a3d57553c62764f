"""Run the tutorials' programs as they stand, and keep their pictures in docs/images."""

import os
import re
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("hospitals", "from-csv", "choosing-rates")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        names: dict = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for program in BLOCK.findall(text):
                exec(compile(program, page, "exec"), names)
            picture = ROOT / "docs" / "images" / f"tutorial-{page}.png"
            shutil.copyfile(f"{page}.png", picture)
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
