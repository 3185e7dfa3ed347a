"""The migrations travel in the wheel, and nothing but the unit of work commits."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_installed_wheel_can_upgrade_a_database(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from services.database import migrate\n"
        "from services.settings import Settings\n"
        "assert migrate.__file__.startswith(sys.argv[1]), migrate.__file__\n"
        "print(migrate.upgrade(Settings(database_url=sys.argv[2])))"
    )
    url = f"sqlite:///{tmp_path / 'fresh.sqlite3'}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(installed), url], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    newest = max(file.name for file in (ROOT / "migrations/versions").glob("0*.py"))
    assert done.stdout.strip() == newest[:4]


def test_only_the_unit_of_work_ends_transactions() -> None:
    offenders = []
    for room in ("services", "worker", "api"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_bytes())):
                is_commit = (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in {"commit", "rollback"}
                )
                if is_commit:
                    offenders.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []
