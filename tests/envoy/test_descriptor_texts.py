"""Files for envoyproxy/ratelimit from any editor, and values that are no words."""

import pytest

from fuseboard.contract.descriptor_file import read_file


@pytest.mark.parametrize(
    "value",
    ["404", "0404", "on", "yes", "No", "0x1F", "1_000", "1.50", "2020-01-01", "190:20:30", "10.0.0.1", "<<"],
)
def test_a_value_is_the_text_of_the_file(value: str) -> None:
    """envoyproxy/ratelimit reads it so, or refuses it, such as 1.50."""
    file = read_file(f"domain: d\ndescriptors: [{{key: k, value: {value}, rate_limit: {{unlimited: true}}}}]")
    assert file.domain is not None, file.problems
    assert file.domain.rules[0].value == value


_PLAIN = "domain: d\ndescriptors:\n  - key: k\n    value: v\n    rate_limit: {unlimited: true}\n"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + _PLAIN,
        _PLAIN.replace("\n", "\r\n"),
        _PLAIN.replace("\n", "\r"),
        _PLAIN.replace(": ", ":\t").replace("\n", "\t# why\n"),
        f"%YAML 1.1\n---\n{_PLAIN}...\n",
        _PLAIN.replace("key: k", "? key\n    : k"),
        '{\n\t"domain":"d",\n\t"descriptors": [{"key":"k","value":"v","rate_limit":{"unlimited":true}},],\n}',
    ],
    ids=["mark", "CRLF", "CR", "tabs", "directive", "question", "JSON"],
)
def test_files_of_any_editor_are_read(text: str) -> None:
    assert read_file(text).domain == read_file(_PLAIN).domain is not None
