from __future__ import annotations

import re

import pytest

from ones.daemon.web import files
from ones.daemon.web.bundle import bundle


def test_a_module_comes_after_all_that_it_imports() -> None:
    text = bundle("report")
    made = re.findall(r"^const (\w+)_module = ", text, re.MULTILINE)
    assert made[-1] == "report"
    assert len(made) == len(set(made))
    assert {"charts", "dom", "words"} <= set(made)
    for name in made:
        used = re.findall(r"from \"\./(\w+)\.js\"", files.read(f"{name}.js").decode())
        assert all(made.index(other) < made.index(name) for other in used)


def test_nothing_is_imported_exported_or_left_open_in_a_bundle() -> None:
    text = bundle("report")
    assert not re.search(r"^(?:import|export)\b", text, re.MULTILINE)
    assert "</script" not in text
    assert "<!--" not in text


def test_what_is_renamed_on_the_way_keeps_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "a.js": b'import { one as two } from "./b.js";\ntwo();\n',
        "b.js": b"export function one() {}\n",
    }
    monkeypatch.setattr(files, "read", made.__getitem__)
    assert bundle("a") == (
        "const b_module = (() => {\nfunction one() {}\n\nreturn { one };\n})();\n"
        "const a_module = (() => {\nconst { one: two } = b_module;\ntwo();\n\nreturn {  };\n})();"
    )


@pytest.mark.parametrize("line", ['import * as b from "./b.js";', "export default 1;"])
def test_what_is_not_understood_is_refused(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "read", lambda _: f"{line}\n".encode())
    with pytest.raises(ValueError, match=r"a\.js: '.*' can't be bundled"):
        bundle("a")
