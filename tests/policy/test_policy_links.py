"""Links between the repository's pages lead somewhere, and every page of the documentation can be reached."""

from __future__ import annotations

import re

import pytest

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def local_links(text):
    """Yield the relative targets of a page's links, without their anchors."""
    for target in LINK.findall(FENCE.sub("", text)):
        if not re.match(r"[a-z]+:|#", target):
            yield target.split("#")[0]


def broken_links(page):
    """Yield the targets of a page's links that do not exist."""
    return (target for target in local_links(page.read_text()) if not (page.parent / target).exists())


def reachable(start):
    """Return the pages that links lead to from `start`, itself included."""
    found, waiting = set(), [start.resolve()]
    while waiting:
        page = waiting.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        waiting += [(page.parent / target).resolve() for target in local_links(page.read_text())]
    return found


def test_links_lead_somewhere(files, root, assert_none):
    pages = [path for path in files if path.suffix == ".md"]
    assert_none(
        "broken-link", ((page.relative_to(root).as_posix(), target) for page in pages for target in broken_links(page))
    )


def test_every_page_can_be_reached_from_the_index(root):
    assert set(root.glob("docs/**/*.md")) <= reachable(root / "docs/index.md")


@pytest.mark.parametrize("text", ["[a](missing.md)", "[a](missing.md#part)", "see [the page](../missing/)."])
def test_a_broken_link_is_caught(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"[fine](page.md) [far](https://host.example/x) [here](#part)\n```\n[code](x)\n```\n{text}\n")
    assert len(list(broken_links(page))) == 1


def test_an_unlinked_page_is_caught(tmp_path):
    for name, text in {"index": "[a](a.md)", "a": "[index](index.md)", "b": ""}.items():
        (tmp_path / f"{name}.md").write_text(text)
    assert {page.name for page in reachable(tmp_path / "index.md")} == {"index.md", "a.md"}
