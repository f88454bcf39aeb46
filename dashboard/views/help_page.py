"""The help: where the documentation is, the first steps, and the words of the pages."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import require_role
from dashboard.views.page import show
from dashboard.words.glossary import GLOSSARY


@require_GET
@require_role("viewer")
def help_page(request: HttpRequest) -> HttpResponse:
    return show(request, "help", "help.html", documentation=settings.DOCUMENTATION_URL, glossary=GLOSSARY)
