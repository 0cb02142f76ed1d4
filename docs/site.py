"""For mkdocs: what pages link to outside docs/ is in the repository, and on the site leads there."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page whose links to files of the repository are links to the repository."""
    out = r"\.\./" * page.file.src_uri.count("/") + r"\.\./"
    return re.sub(rf"\]\({out}([^)\s]+)\)", lambda found: f"]({config['repo_url']}/blob/main/{found[1]})", markdown)
