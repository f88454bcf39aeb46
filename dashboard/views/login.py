from typing import Any

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm

from dashboard.views.page import theme_of


class LoginForm(AuthenticationForm):
    error_messages = {  # noqa: RUF012 - Django's own way to change the words
        "invalid_login": "No account has this name and password. Both are case-sensitive.",
        "inactive": "This account is switched off.",
    }


class Login(views.LoginView):
    template_name = "dashboard/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"theme": theme_of(self.request)}

    def form_invalid(self, form: AuthenticationForm) -> Any:
        response = super().form_invalid(form)
        response.status_code = 422
        return response
