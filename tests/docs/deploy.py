#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/deploy.md, as far as one machine can tell.

Arguments: the root of the sources, shardkeepd, cachectl.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

failures = []


def check(good, what: str) -> None:
    if not good:
        failures.append(what)


def options_of(program: str) -> set[str]:
    text = subprocess.run([program, "--help"], check=True,
                          capture_output=True, text=True).stdout
    return set(re.findall(r"^  (--[a-z-]+)", text, re.M))


def check_pod(name: str, pod: dict) -> None:
    volumes = {v["name"]: v["hostPath"] for v in pod["volumes"]}
    for volume in volumes.values():
        check(volume["type"].startswith("Directory"),
              f"{name} mounts {volume['path']} as {volume['type']}")
    for container in pod["containers"]:
        resources = container["resources"]
        check(resources["requests"]["memory"] == resources["limits"]["memory"],
              f"{name}: the memory it may take is not its own")
        for mount in container["volumeMounts"]:
            check(mount["name"] in volumes, f"{name}: {mount['name']}")
            check(not mount["mountPath"].endswith(".sock"),
                  f"{name} mounts a socket, not its directory")


def check_kubernetes(folder: Path, options: set[str]) -> None:
    if not yaml:
        return
    both = list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))
    check([x["kind"] for x in both] == ["DaemonSet", "Job"], "kinds")
    daemons, job = both
    for one in both:
        check_pod(one["kind"], one["spec"]["template"]["spec"])
    check(daemons["apiVersion"] == "apps/v1" and
          job["apiVersion"] == "batch/v1", "versions")
    spec = daemons["spec"]
    check(spec["updateStrategy"] == {"type": "OnDelete"}, "a rolling update")
    check(spec["selector"]["matchLabels"] ==
          spec["template"]["metadata"]["labels"], "the selector finds none")
    pod = spec["template"]["spec"]
    check(pod["terminationGracePeriodSeconds"] > 300, "too little to flush")
    for arg in pod["containers"][0]["args"]:
        check(arg.split("=")[0] in options, f"shardkeepd has no {arg}")
    mount = job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]
    check(mount.get("readOnly"), "a job could replace the socket")


def check_slurm(folder: Path, options: set[str], agent: str,
                cachectl: str) -> None:
    for path in folder.glob("*.sh"):
        shell = "bash" if "bash" in path.read_text().split("\n")[0] else "sh"
        r = subprocess.run([shell, "-n", path], check=False)
        check(r.returncode == 0, f"{path.name} is no script")
    job = (folder / "slurm-job.sh").read_text()
    begun = re.search(r"shardkeepd (.*?) &", job, re.S)
    for option in re.findall(r"--[a-z-]+", begun[1]):
        check(option in options, f"shardkeepd has no {option}")
    # The prolog: of a node that has an agent, and of one that has none.
    with tempfile.TemporaryDirectory() as tmp:
        sock = f"{tmp}/agent.sock"
        prolog = (folder / "slurm-prolog.sh").read_text().replace(
            "/usr/bin/cachectl", cachectl).replace(
            "/run/shardkeep/agent.sock", sock)

        def status() -> int:
            return subprocess.run(["sh", "-c", prolog], check=False, env={},
                                  stderr=subprocess.DEVNULL).returncode

        check(status() != 0, "the prolog passes a node without an agent")
        with subprocess.Popen([agent, "--socket", sock, "--memory", "64M",
                               "--no-keeper", "--ready-fd", "1",
                               "--log-level", "error"],
                              stdout=subprocess.PIPE) as p:
            assert p.stdout and p.stdout.read(1)
            check(status() == 0, "the prolog drains a node with an agent")
            p.terminate()


def main() -> int:
    root, agent, cachectl = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder = root / "docs/examples/deploy"
    options = options_of(agent)
    check_kubernetes(folder, options)
    check_slurm(folder, options, agent, cachectl)
    text = (root / "docs/deploy.md").read_text()
    for option in re.findall(r"shardkeepd (--[a-z-]+)", text):
        check(option in options, f"shardkeepd has no {option}")
    for line in failures:
        print("FAIL:", line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
