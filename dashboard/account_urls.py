"""The pages of the user's own account. allauth finds its pages by these names."""

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as codes
from allauth.mfa.totp import views as totp
from allauth.socialaccount.providers.openid_connect import views as oidc
from django.urls import path
from django.views.generic import RedirectView, TemplateView

from dashboard.views.people import login

_off = TemplateView.as_view(template_name="account/account_inactive.html")
_closed = TemplateView.as_view(template_name="account/refused.html")
_codes = login.if_readable(codes.view_recovery_codes)
_new_codes = login.if_readable(codes.generate_recovery_codes)

urlpatterns = [
    path("login", login.Login.as_view(), name="login"),
    path("login", login.Login.as_view(), name="account_login"),
    path("logout", account.logout, name="logout"),
    path("logout", account.logout, name="account_logout"),
    path("login/code", mfa.authenticate, name="mfa_authenticate"),
    # There is no sign-up: an admin invites people.
    path("login/closed", _closed, name="account_signup"),
    path("login/off", _off, name="account_inactive"),
    path("login/closed", _closed, name="socialaccount_signup"),
    path("login/stopped", RedirectView.as_view(pattern_name="login"), name="socialaccount_login_cancelled"),
    path("login/oidc/<str:provider_id>", oidc.login, name="openid_connect_login"),
    path("login/oidc/<str:provider_id>/callback", oidc.callback, name="openid_connect_callback"),
    path("account", login.account, name="account"),
    path("account", login.account, name="mfa_index"),
    path("account", login.account, name="socialaccount_connections"),
    path("account/password", account.password_change, name="account_change_password"),
    path("account/password/new", account.password_set, name="account_set_password"),
    path("account/again", account.reauthenticate, name="account_reauthenticate"),
    path("account/again/code", mfa.reauthenticate, name="mfa_reauthenticate"),
    path("account/second-factor", totp.activate_totp, name="mfa_activate_totp"),
    path("account/second-factor.svg", login.totp_picture, name="totp_picture"),
    path("account/second-factor/remove", totp.deactivate_totp, name="mfa_deactivate_totp"),
    path("account/recovery-codes", _codes, name="mfa_view_recovery_codes"),
    path("account/recovery-codes/new", _new_codes, name="mfa_generate_recovery_codes"),
]
