# SPDX-License-Identifier: Apache-2.0
"""Opens flushed images with the safetensors package and checks all we promise."""
import json
import pathlib
import struct
import sys

import numpy
import xxhash
from safetensors import safe_open

MIB = 1 << 20
checked = 0
full = {}

for path in sorted(pathlib.Path(sys.argv[1]).glob("step-*/rank-*.safetensors")):
    raw = path.read_bytes()
    header_bytes = 8 + struct.unpack("<Q", raw[:8])[0]
    assert header_bytes % 4096 == 0, "the data begins on a page"
    with safe_open(path, framework="np") as f:
        meta = f.metadata()
        ours = json.loads(meta["shardkeep"])
        sharding = json.loads(meta["DCP_SHARDING_INFO"])
        assert meta["format"] == "pt" and meta["DCP_VERSION"] == "1.0"
        assert set(sharding) == set(f.keys()), "every key has its offsets"
        assert [e["key"] for e in ours["entries"]] == sorted(
            f.keys(), key=[e["key"] for e in ours["entries"]].index)
        for entry in ours["entries"]:
            item = ours["items"][entry["item"]]
            tensor = f.get_tensor(entry["key"])
            offsets, sizes = item["boxes"][entry["box"]]
            assert list(tensor.shape) == sizes
            assert sharding[entry["key"]]["saved_offsets"] == offsets
            data = tensor.tobytes()
            sums = [xxhash.xxh3_64_hexdigest(data[i:i + MIB])
                    for i in range(0, max(len(data), 1), MIB)]
            assert sums == entry["xxh3"], (path, entry["key"])
            key = (path.parent.name, item["name"])
            whole, seen = full.setdefault(
                key, (numpy.zeros(item["shape"], tensor.dtype),
                      numpy.zeros(item["shape"], int)))
            part = tuple(slice(o, o + s) for o, s in zip(offsets, sizes))
            whole[part] = tensor
            seen[part] += 1
            checked += 1

assert checked, "nothing was flushed"
steps = sorted({step for step, _ in full})
for (step, name), (whole, seen) in full.items():
    assert (seen == 1).all(), f"{name}: every element in one file only"
    if name == "step":
        assert int.from_bytes(whole.tobytes(), "little") == int(step[5:])
    if name.startswith("optim.v"):
        assert (whole >= 0).all() and numpy.isfinite(whole).all()
first = full[steps[0], "model.layers.0.weight"][0]
last = full[steps[-1], "model.layers.0.weight"][0]
assert first.any() and not numpy.array_equal(first, last)

# Exported: whole tensors, and of the model alone in several files.
with safe_open(sys.argv[2], framework="np") as f:
    tensors = {name for step, name in full if step == steps[-1]
               and not name.startswith("shardkeep.")}
    exported = set(f.keys())
    assert exported and exported <= tensors, exported - tensors
    for name in exported:
        assert f.get_tensor(name).tobytes() == \
            full[steps[-1], name][0].tobytes(), name
model = pathlib.Path(sys.argv[3])
index = json.loads((model / "model.safetensors.index.json").read_text())
names = {n[6:] for n in exported if n.startswith("model.")}
assert set(index["weight_map"]) == names and len(names) > 1
assert len(set(index["weight_map"].values())) > 1, "several files"
for name, file in index["weight_map"].items():
    with safe_open(model / file, framework="np") as f:
        assert f.get_tensor(name).tobytes() == \
            full[steps[-1], "model." + name][0].tobytes(), name
print(f"{checked} tensors of {len(steps)} steps are what was sealed")
