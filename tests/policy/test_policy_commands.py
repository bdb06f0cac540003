"""The README opens with the two commands that continuous integration runs."""

from __future__ import annotations

import re

import pytest

SETTINGS = re.compile(r"#.*|set -\S+ pipefail|cd \"\$\(dirname .*|source \.ci/machine|export [A-Z].*|")


def opening_commands(text):
    """Return the commands of the bash blocks before a README's first section."""
    opening = text.split("\n## ", maxsplit=1)[0]
    return [block.strip() for block in re.findall(r"^```bash\n(.*?)^```$", opening, re.DOTALL | re.MULTILINE)]


def script_commands(text):
    """Return the lines of a script that are neither comment nor setting."""
    return [line.strip() for line in text.splitlines() if not SETTINGS.fullmatch(line.strip())]


def test_ci_runs_the_two_commands_of_the_readme(root):
    commands = opening_commands((root / "README.md").read_text())
    assert len(commands) == 2
    assert script_commands((root / ".ci/run").read_text()) == commands


def test_ci_stops_at_the_first_failure(root):
    assert "set -euo pipefail" in (root / ".ci/run").read_text().splitlines()


def test_the_commands_use_the_constraints_and_install_every_needed_package(root):
    install, check = opening_commands((root / "README.md").read_text())
    assert "-c constraints.txt" in install
    assert "-c constraints.txt" in check
    for name in re.findall(r"-e (\S+)", install):
        assert (root / name / "pyproject.toml").is_file()


@pytest.mark.parametrize("line", ["pip install x", "set -x", "true && export A=1", "cd elsewhere"])
def test_another_command_in_the_script_is_seen(line):
    assert script_commands(f'#!/bin/bash\nset -euo pipefail\ncd "$(dirname "$0")"\n\n{line}\n') == [line]


def test_a_third_command_in_the_readme_is_seen():
    block = "```bash\nrun\n```\n"
    assert opening_commands(f"# T\n{block}\n{block}\n{block}\n## More\n{block}") == ["run"] * 3
