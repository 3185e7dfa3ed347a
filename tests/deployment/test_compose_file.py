"""The compose file is valid, asks for every secret, confines what it starts, and leaves no queue without a worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from services.jobs.broker import queue_names
from services.settings import Settings
from tests.deployment.compose import ROOT, MissingVariableError, interpolate, read_compose, variables_used

SCHEMA = ROOT / "tests" / "fixtures" / "compose" / "compose-spec.json"
REQUIRED = {
    "POSTGRES_PASSWORD": "one",
    "VALKEY_PASSWORD": "two",
    "GRADPROOF_SECRET_KEY": "three",
    "GRADPROOF_PUBLIC_URL": "https://gradproof.example.org",
}
SERVICES = read_compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
WORKERS = {name: service for name, service in OURS.items() if service["command"][0] == "worker"}


def schema_errors(document: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_the_file_is_valid_against_the_compose_specification() -> None:
    assert schema_errors(read_compose()) == []
    assert schema_errors(interpolate(read_compose(), REQUIRED)) == []


def test_the_schema_would_refuse_a_slip() -> None:
    document = read_compose()
    document["services"]["api"]["helthcheck"] = {}
    assert schema_errors(document)


def test_the_parts_that_the_design_names_are_there() -> None:
    assert set(SERVICES) == {"migrate", "api", "control", "worker-cpu", "worker-gpu", "postgres", "valkey"}
    assert SERVICES["worker-gpu"]["profiles"] == ["gpu"]
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("variable", REQUIRED)
def test_a_missing_secret_stops_everything_with_its_name(variable: str) -> None:
    with pytest.raises(MissingVariableError, match=variable):
        interpolate(read_compose(), {**REQUIRED, variable: ""})


def test_no_secret_has_a_default_and_no_other_variable_is_required() -> None:
    assert {name for name, required in variables_used().items() if required} == set(REQUIRED)


def test_the_example_of_an_environment_names_every_variable() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert named == set(variables_used()) - {"GRADPROOF_VERSION"}
    assert {line for line in example.splitlines() if re.match(r"[A-Z_]+=", line)} == {f"{name}=" for name in REQUIRED}


@pytest.mark.parametrize("name", SERVICES)
def test_every_part_runs_without_root_capabilities_or_a_writable_root(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_part_that_stays_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_an_exact_tag(name: str) -> None:
    image = interpolate(SERVICES[name]["image"], {})
    assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?(-[a-z]+)?", image), image


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"api", "control"}))
def test_only_the_api_and_control_reach_a_network_with_a_way_out(name: str) -> None:
    assert SERVICES[name]["networks"] == ["data"]
    assert read_compose()["networks"]["data"]["internal"] is True


@pytest.mark.parametrize("name", [name for name, service in WORKERS.items() if "control" not in service["command"]])
def test_what_runs_submitted_code_holds_no_secret_of_the_api_and_can_not_write_snapshots(name: str) -> None:
    assert "GRADPROOF_SECRET_KEY" not in SERVICES[name]["environment"]
    assert SERVICES[name]["volumes"] == ["data:/var/lib/gradproof:ro"]


def test_every_queue_has_a_worker() -> None:
    served: set[str] = set()
    for service in WORKERS.values():
        command = interpolate(service["command"], REQUIRED)
        served |= set(command[command.index("--queues") + 1].split(","))
    settings = Settings(gpu_classes=(interpolate("${GRADPROOF_GPU_CLASS:-cuda}", {}),))
    assert served == set(queue_names(settings))


def test_every_environment_variable_is_a_setting() -> None:
    known = {f"GRADPROOF_{name.upper()}" for name in Settings.model_fields}
    for name, service in OURS.items():
        ours = {variable for variable in service["environment"] if variable.startswith("GRADPROOF_")}
        assert ours <= known, name


def test_settings_read_the_environment_of_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in OURS.values():
        for variable, value in interpolate(service["environment"], REQUIRED).items():
            monkeypatch.setenv(variable, value)
        settings = Settings()
        assert settings.effective_database_url == "postgresql+psycopg://gradproof:one@postgres:5432/gradproof"
        assert settings.effective_broker_url == "redis://:two@valkey:6379/0"


def test_the_seccomp_profile_denies_what_it_lists_and_nothing_that_bubblewrap_needs() -> None:
    profile = json.loads((ROOT / "docker" / "seccomp-worker.json").read_text(encoding="utf-8"))
    (rule,) = profile["syscalls"]
    assert rule["action"] == "SCMP_ACT_ERRNO"
    assert rule["names"] == sorted(rule["names"])
    needed = {
        "clone",
        "clone3",
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "sethostname",
        "prctl",
        "seccomp",
    }
    assert not needed & set(rule["names"])
    for name, service in WORKERS.items():
        if name == "control":
            continue
        (path,) = (option.split("=", 1)[1] for option in service["security_opt"] if option.startswith("seccomp="))
        assert (ROOT / path).resolve() == ROOT / "docker" / "seccomp-worker.json"
        assert Path(path).parts[0] == "docker"
