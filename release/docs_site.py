"""What mkdocs is told beyond mkdocs.yml: pages of the API, and how fenced programs name their files."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

MODULES = (
    "cluster", "config", "data", "distributed", "errors", "inference", "loader", "metrics", "partition", "sampler",
    "tables", "telemetry", "typing",
)  # fmt: skip
_NAMED_FENCE = re.compile(r"^```(python|bash|yaml|text) ([\w./-]+)$", re.MULTILINE)
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences as the site's highlighter reads them: "```python train.py" is a program with its file's name above."""
    markdown = _NAMED_FENCE.sub(r'```\1 title="\2"', markdown)
    return re.sub(r"^```(hosts|sh)$", lambda fence: f"```{_LANGUAGES[fence[1]]}", markdown, flags=re.MULTILINE)
