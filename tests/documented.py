"""The code of docs/tasks.md as a module, so that workers and devices can import it."""

import re
from pathlib import Path

CODE = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(), re.DOTALL)

for code in CODE:
    exec(code)
