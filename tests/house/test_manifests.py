"""The Kubernetes manifests of examples/launch, against the schemas that Kubernetes publishes. A
misspelt field would otherwise be found by the first user who has a cluster."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pip install '.[dev]'")
schemas = pytest.importorskip("kubernetes_validate", reason="pip install '.[dev]'")

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
#: The first has been out of support since 2024.
VERSIONS = ("1.27", schemas.latest_version())


def manifests() -> list[dict[str, Any]]:
    """Every document of the YAML files that Kubernetes reads: the others name no API."""
    files = sorted(LAUNCH.glob("**/*.y*ml"))
    texts = [file.read_text(encoding="utf-8") for file in files]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in documents if "apiVersion" in document]


def check(manifest: dict[str, Any], version: str = VERSIONS[-1]) -> None:
    """Strictly: a field that the schema does not have is refused."""
    schemas.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_its_schema(version: str) -> None:
    found = manifests()
    assert {each["kind"] for each in found} >= {"Service", "StatefulSet"}
    for manifest in found:
        check(manifest, version)


def spec_of(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A manifest of that kind, and its `spec`."""
    manifest = next(deepcopy(each) for each in manifests() if each["kind"] == kind)
    return manifest, manifest["spec"]


def test_a_misspelt_field_is_refused() -> None:
    manifest, spec = spec_of("Service")
    spec["publishNotReadyAdresses"] = spec.pop("publishNotReadyAddresses")
    with pytest.raises(schemas.ValidationError, match="publishNotReadyAdresses"):
        check(manifest)


def test_a_misspelt_field_deep_inside_is_refused() -> None:
    manifest, spec = spec_of("StatefulSet")
    (learner,) = spec["template"]["spec"]["containers"]
    learner["readinessProbe"]["periodSecond"] = 30
    with pytest.raises(schemas.ValidationError, match="periodSecond"):
        check(manifest)


def test_a_wrong_type_is_refused() -> None:
    manifest, spec = spec_of("StatefulSet")
    spec["replicas"] = "four"
    with pytest.raises(schemas.ValidationError, match="four"):
        check(manifest)


def test_a_number_for_a_variable_is_refused() -> None:
    """The text of a variable that looks like a number needs its quotes."""
    manifest, spec = spec_of("StatefulSet")
    (learner,) = spec["template"]["spec"]["containers"]
    learner["env"].append({"name": "MEND_LIMIT", "value": 29600})
    with pytest.raises(schemas.ValidationError, match="29600"):
        check(manifest)


def test_a_missing_field_is_refused() -> None:
    manifest, spec = spec_of("StatefulSet")
    del spec["selector"]
    with pytest.raises(schemas.ValidationError, match="selector"):
        check(manifest)


def test_an_api_that_kubernetes_does_not_have_is_refused() -> None:
    manifest, _ = spec_of("StatefulSet")
    with pytest.raises(schemas.utils.SchemaNotFoundError):
        check(manifest | {"apiVersion": "apps/v1beta1"})
