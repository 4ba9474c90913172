# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/deploy.md, by Kubernetes' own schemas."""

from pathlib import Path

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

MANIFESTS = Path(__file__).parents[2] / "docs/examples/deploy/kubernetes.yaml"
VERSIONS = ["1.28", kubernetes_validate.latest_version()]


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_schemas(version: str) -> None:
    manifests = list(yaml.safe_load_all(MANIFESTS.read_text()))
    assert manifests
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_what_the_schemas_do_not_know_is_noticed() -> None:
    job = list(yaml.safe_load_all(MANIFESTS.read_text()))[-1]
    job["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
