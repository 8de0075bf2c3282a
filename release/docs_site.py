"""What mkdocs is told beyond mkdocs.yml: pages of the API, files' names of fenced programs, titles of links."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MODULES = (
    "cluster", "config", "data", "distributed", "errors", "inference", "loader", "metrics", "partition", "sampler",
    "tables", "telemetry", "typing",
)  # fmt: skip
_NAMED_FENCE = re.compile(r"^```(python|bash|yaml|text) ([\w./-]+)$", re.MULTILINE)
_FILE_LINK = re.compile(r"\[[\w/]+\.md\]\((?P<file>[\w./-]+\.md)(?P<anchor>#[\w-]+)?\)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_LANGUAGES = {"hosts": "text", "sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the reference to the navigation."""
    assert config.nav is not None
    config.nav.append({"Reference": [f"reference/{name}.md" for name in MODULES]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Makes a page of each public module."""
    for name in MODULES:
        text = f"# graphlearn_dist.{name}\n\n::: graphlearn_dist.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Fences as the site's highlighter reads them, and links that are named by a file named by the page's title.

    "```python train.py" is a program with its file's name above. "[tables.md](tables.md)" reads well in the
    repository alone.
    """

    def by_title(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link["file"]))
        source = Path(config.docs_dir) / file
        title = (
            _TITLE.search(source.read_text(encoding="utf-8")) if source.exists() else None
        )  # mkdocs names the missing
        return f"[{title[1]}]({link['file']}{link['anchor'] or ''})" if title else link[0]

    markdown = _FILE_LINK.sub(by_title, markdown)
    markdown = _NAMED_FENCE.sub(r'```\1 title="\2"', markdown)
    return re.sub(r"^```(hosts|sh)$", lambda fence: f"```{_LANGUAGES[fence[1]]}", markdown, flags=re.MULTILINE)
