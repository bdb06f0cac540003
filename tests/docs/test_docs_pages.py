"""The blocks of the documentation that are marked `run` are run, page by page, in an empty folder.

A block is marked by the word after its language: ```bash run or ```python run. Blocks of a page run in their order,
each in its own process, and share the folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(bash|python) run\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"^```\S+ run\b", re.MULTILINE)
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
MARKED = [page for page in PAGES if MARK.search(page.read_text())]


def run_blocks(text, folder):
    """Run the marked blocks of a page in `folder`.

    Returns:
        How many were run.

    Raises:
        AssertionError: A block failed; the message has its text and what it printed.
    """
    blocks = BLOCK.findall(text)
    assert len(blocks) == len(MARK.findall(text)), "a marked block is neither bash nor python, or has no end"
    scripts = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-W", "error", "-c"]}
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, code in blocks:
        command = [*scripts[language], code]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"exit code {done.returncode}\n{code}\n{done.stdout}{done.stderr}"
    return len(blocks)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in MARKED])
def test_the_marked_blocks_run(page, tmp_path):
    assert run_blocks(page.read_text(), tmp_path) >= 1


def test_some_page_has_marked_blocks():
    assert MARKED


def test_blocks_share_a_folder_and_unmarked_ones_are_left_alone(tmp_path):
    text = "```bash run\necho 7 > x\n```\n```bash\nexit 1\n```\n```python run\nassert open('x').read() == '7\\n'\n```\n"
    assert run_blocks(text, tmp_path) == 2


@pytest.mark.parametrize("block", ["```bash run\nfalse\ntrue\n```\n", "```python run\nassert 1 == 2\n```\n"])
def test_a_failing_block_is_caught(block, tmp_path):
    with pytest.raises(AssertionError, match="exit code 1"):
        run_blocks(block, tmp_path)


@pytest.mark.parametrize("block", ["```ruby run\nx\n```\n", "```bash run\ntrue\n"])
def test_a_marked_block_that_would_not_be_run_is_caught(block, tmp_path):
    with pytest.raises(AssertionError, match="marked block"):
        run_blocks(block, tmp_path)
