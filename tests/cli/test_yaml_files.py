"""Files of settings that would be read as something else, or as nothing."""

import pytest

from lrl.cli.yaml_files import check_yaml
from lrl.types import ConfigError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is empty, but must hold settings"),
        ("# name: a", "it is empty, but must hold settings"),
        ("- a", "it is no mapping, but must hold settings"),
        ("name: a\nruns: b\nname: c", "it, line 3: name is there already, in line 1, and only one"),
        ("data: {env: {id: a, id: b}}", "it, line 1: id is there already"),
        ("callbacks: [{name: a, name: b}]", "it, line 1: name is there already"),
        ("name: a\n---\nname: b", "it, line 2: this is no YAML: .* found another document"),
        ("name:\ta\n\truns: b", "it, line 2: this is no YAML: .* tab character"),
        ("name: [a", "it, line .: this is no YAML"),
        ("name: \0", "it: this is no YAML"),
        ("trainer: &it {max_steps: 1, callbacks: *it}", "it, line 1: callbacks holds itself"),
        ("data: &it [*it]", "it, line 1: data holds itself"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(content, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_yaml(content, "it")


@pytest.mark.parametrize(
    "content",
    [
        "name: a",
        "{}",
        "a: &it {x: 1}\nb: {<<: *it, x: 2}\nc: [*it, *it]",
        "data: {env: {id: a}}\nother: {id: a}",
        "1: {2: 3}",
    ],
)
def test_a_file_of_settings_is_left_alone(content):
    check_yaml(content, "it")


def test_aliases_of_aliases_cost_no_time():
    levels = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 100)]
    check_yaml("\n".join(["a0: &a0 [x]", *levels]), "it")
