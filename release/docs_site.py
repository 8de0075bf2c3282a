"""What mkdocs is told beyond mkdocs.yml: pages of the API, and how fenced programs name their files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "cluster", "config", "data", "distributed", "errors", "inference", "loader", "metrics", "partition", "sampler",
    "tables", "typing",
)  # fmt: skip
# Files of the repository that pages show or link to.
SHOWN = ("benchmarks/results/sampling.svg",)
_NAMED_FENCE = re.compile(r"^```(python|bash|yaml|text) ([\w./-]+)$", re.MULTILINE)
_LANGUAGES = {"hosts": "text", "sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the reference to the navigation."""
    assert config.nav is not None
    config.nav.append({"Reference": [f"reference/{name}.md" for name in MODULES]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Makes a page of each public module, and has the shown files copied."""
    for name in MODULES:
        text = f"# graphlearn_dist.{name}\n\n::: graphlearn_dist.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for name in SHOWN:
        files.append(File.generated(config, f"images/{Path(name).name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences as the site's highlighter reads them: "```python train.py" is a program with its file's name above."""
    markdown = _NAMED_FENCE.sub(r'```\1 title="\2"', markdown)
    return re.sub(r"^```(hosts|sh)$", lambda fence: f"```{_LANGUAGES[fence[1]]}", markdown, flags=re.MULTILINE)
