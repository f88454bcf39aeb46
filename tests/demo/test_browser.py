import pytest

from tools.demo.browser import NoSuchForm, find_form, text_of

PAGE = """
<form action="/search"><input name="q" value="old"></form>
<form method="post" action="/hold?now=1">
  <input type="hidden" name="token" value="t&amp;1">
  <input type="radio" name="act" value="open"><input type="radio" name="act" value="closed" checked>
  <input type="checkbox" name="sure" value="yes">
  <select name="lasts"><option value="5">5 min</option><option value="60" selected>1 h</option></select>
  <select name="zone"><option value="a">a</option><option value="b">b</option></select>
  <textarea name="reason">as typed</textarea>
  <button name="remove" value="1">Remove</button>
</form>
"""


def test_a_form_keeps_what_the_page_filled_in():
    form = find_form(PAGE, {"reason"})
    assert (form.method, form.action) == ("POST", "/hold?now=1")
    assert form.fields == {
        "token": "t&1",
        "act": "closed",
        "lasts": "60",
        "zone": "a",
        "reason": "as typed",
    }


def test_a_button_is_offered_and_not_sent_by_default():
    form = find_form(PAGE, {"remove", "sure"})
    assert "remove" not in form.fields
    assert "sure" not in form.fields


def test_a_missing_form_is_an_error_that_lists_the_forms_of_the_page():
    with pytest.raises(NoSuchForm, match="/search: q; /hold"):
        find_form(PAGE, {"reason"}, action="/search")


def test_the_text_of_a_page_does_not_depend_on_its_markup():
    page = "<nav>Pods</nav><main>\n<dl><dt>Confirmed by</dt><dd>\n  2 of 3</dd></dl> <b>1</b>\nnow</main>"
    assert text_of(page) == "Confirmed by 2 of 3 1 now"
