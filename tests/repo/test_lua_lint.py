"""luacheck sees scripts as Redis does, and reports findings at their original place."""

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_lua", ROOT / "tools/check_lua.py")
check_lua = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_lua)

needs_luacheck = pytest.mark.skipif(shutil.which("luacheck") is None, reason="luacheck is not installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(check_lua, "ROOT", tmp_path)
    return tmp_path


def _write(folder, **scripts):
    (folder / "parts").mkdir()
    files = [f"parts/{name}.lua" if name.startswith("part") else f"{name}.lua" for name in scripts]
    for file, text in zip(files, scripts.values(), strict=True):
        (folder / file).write_text(text)
    return files


@needs_luacheck
def test_a_script_knows_the_definitions_of_its_parts(folder, capsys):
    part = "-- Inserted into the scripts.\nlocal function one() return 1 end\n"
    files = _write(folder, part=part, script="#!lua\n-- insert part\nreturn one()\n")
    assert check_lua.main(files) == 0
    assert capsys.readouterr().err == ""


@needs_luacheck
def test_a_finding_in_a_part_has_the_parts_name_and_line(folder, capsys):
    part = "-- Inserted into the scripts.\nlocal function one() return nobody end\n"
    script = "#!lua\n\n\n-- insert part\nreturn one()\n"
    files = _write(folder, part=part, first=script, second=script)
    assert check_lua.main(files) == 1
    assert capsys.readouterr().err == "parts/part.lua:2: (W113) accessing undefined variable 'nobody'\n"


@needs_luacheck
def test_a_function_no_script_uses_is_found_and_one_that_some_use_is_not(folder, capsys):
    part = "local function one() return 1 end\nlocal function two() return 2 end\n"
    files = _write(
        folder,
        part=part,
        first="#!lua\n-- insert part\nreturn one()\n",
        second="#!lua\n-- insert part\nreturn 3\n",
    )
    assert check_lua.main(files) == 1
    assert capsys.readouterr().err == "parts/part.lua:2: (W211) unused function 'two'\n"


@needs_luacheck
def test_a_script_that_is_not_lua_is_reported(folder, capsys):
    files = _write(folder, script="#!lua\nreturn (\n")
    assert check_lua.main(files) == 1
    assert "script.lua:" in capsys.readouterr().err
