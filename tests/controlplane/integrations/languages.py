"""URLs in several languages, with included routes."""

from django.conf.urls.i18n import i18n_patterns
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path


def view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("hello")


_INCLUDED = [path("x/<int:pk>/", view), re_path(r"^y/(?P<pk>[0-9]+)/$", view)]
urlpatterns = [
    path("in/", include(_INCLUDED)),
    *i18n_patterns(path("orders/<int:pk>/", view), prefix_default_language=False),
]
