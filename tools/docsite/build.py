"""Draw docs/ as a site: ``make docs``. Without ``--check``, into build/docs.

``--check`` draws nothing, and fails as the site does: for a link to a page or a heading that does not exist.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import django
from django.core.management import call_command

from tools.docsite.write_pages import DOCS
from tools.docsite.write_pages import main as write_pages

ROOT = DOCS.parent
SITE = ROOT / "build" / "docs"
SPHINX = ROOT / ".venv-docs" / "bin" / "python"
#: Redoc draws the OpenAPI document. django-ninja brings it along, for the same purpose.
REDOC = Path("static", "ninja", "redoc.standalone.js")
_API_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reference of the API · Fuseboard</title>
<body>
<script src="redoc.standalone.js"></script>
<script src="openapi.js"></script>
</body>
</html>
"""


def draw(*options: str, builder: str, output: Path) -> int:
    """Run Sphinx. A warning is an error, and all of them are printed."""
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--jobs", "auto"]
    place = ["--conf-dir", "tools/docsite", "--doctree-dir", "build/doctrees", ".", str(output)]
    command = [str(SPHINX), "-m", "sphinx", *strict, "--builder", builder, *options, *place]
    return subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603


def draw_api_reference(folder: Path) -> None:
    """A page that draws the OpenAPI document, also when it is opened as a file."""
    import ninja

    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "openapi.json"
    call_command("export_openapi_schema", output=str(document), verbosity=0)
    (folder / "openapi.js").write_text(
        f"Redoc.init({json.dumps(json.loads(document.read_text()))}, {{}}, document.body);\n"
    )
    shutil.copy(Path(ninja.__file__).parent / REDOC, folder)
    (folder / "index.html").write_text(_API_PAGE)


def build(*, check: bool) -> str | None:
    """Returns what is wrong, for ``sys.exit``: an empty text would be a failure too."""
    if not SPHINX.exists():
        return f"There is no {SPHINX}. Run: sh tools/environment.sh .venv-docs requirements/docs.txt"
    if check:
        code = draw(builder="dummy", output=ROOT / "build" / "checked")
        return f"Sphinx ended with {code}. Mend what it names." if code else None
    write_pages(DOCS)
    shutil.rmtree(SITE, ignore_errors=True)
    if code := draw(builder="html", output=SITE):
        return f"Sphinx ended with {code}: the site is not complete. Mend what it names, and run this again."
    draw_api_reference(SITE / "api")
    sys.stdout.write(f"The site is in {SITE}: open {SITE}/docs/index.html\n")
    return None


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    sys.exit(build(check=sys.argv[1:] == ["--check"]))
