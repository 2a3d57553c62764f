"""The configuration: its groups of flags, its TOML text and its error messages."""

import tomllib

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from sagda.check import BadValue
from sagda.runs.config import (
    GROUPS,
    Config,
    build,
    parse_set,
    sentence,
    toml_text,
    write_toml,
)


def test_every_field_is_in_one_group_and_has_a_help_text():
    fields = [field for group in GROUPS.values() for field in group]
    assert sorted(fields) == sorted(Config.model_fields)
    for name, field in Config.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert len(field.description) < 220, name


def test_a_configuration_is_read_back_from_its_toml():
    config = Config(
        local_lr="0.01,0.05",
        grid={"local_lr": [0.1, "a[\n"], "local_lr.x": "0.1:1"},
        set={"sagda-i": {"start": "warm", "local_lr": [0.1, 1]}},
    )
    text = write_toml(config)
    assert 'algorithms = ["sagda-i"]\n' in text
    assert "[set.sagda-i]\n" in text
    values = tomllib.loads(text)
    values.pop("schema")
    assert build(values) == config


def test_lists_of_lists_stay_toml():
    values = {"a": [[1, 2], ["],\n"]], "b": {"c": [{"d": [1.5, 2.5]}]}}
    assert tomllib.loads(toml_text(values)) == values


def test_an_error_in_a_table_names_the_table_and_the_nearest_key():
    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")
        sites: int = 2

    def message(**values) -> str:
        with pytest.raises(ValidationError) as caught:
            Options(**values)
        return sentence(caught.value, Options, "federation")

    assert message(sites="x") == "`federation.sites` must be a whole number, got 'x'."
    assert message(site=1) == (
        "`federation key` must be one of sites, got 'site'; did you mean 'sites'?"
    )


def test_an_error_names_the_line_of_the_file():
    with pytest.raises(BadValue, match=r"^c\.toml, line 2: `rounds` must be a whole"):
        build({"rounds": 1.5}, "c.toml", "seed = 1\nrounds = 1.5\n")


def test_assignments_are_parsed_into_values_that_toml_has():
    words = ["start=warm", "lr=0.1,0.2", "a=3", "b=null", "c=true"]
    assert parse_set(words) == {
        "start": "warm", "lr": [0.1, 0.2], "a": 3, "b": "null", "c": True,
    }  # fmt: skip
