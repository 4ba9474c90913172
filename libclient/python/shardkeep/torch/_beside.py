# SPDX-License-Identifier: Apache-2.0
"""What optimizers and modules keep that is no tensor."""

from __future__ import annotations

from typing import Any

import torch

from ._optimizers import Stepped, load_group, of_another_kind


class Beside:
    """Of live tensors, what there is beside them; a part of LiveTensors,
    which has what is declared here."""

    optims: list[Stepped]
    mixed: bool
    #: None: not looked for since :meth:`LiveTensors.items` looked last.
    _labels: list[list[list[str]]] | None
    #: Modules with such a state, by its name.
    _extra: dict[str, torch.nn.Module]

    def parameters(self) -> list[tuple[str, torch.nn.Parameter, Stepped]]:
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all optimizers, themselves."""
        return [g for stepped in self.optims for g in stepped.groups]

    def scalars(self) -> dict[str, dict[str, Any]]:
        """What the optimizers keep of parameters that is no tensor."""
        kept = {}
        for label, p, stepped in self.parameters():
            mine = {k: v for k, v in stepped.state.get(p, {}).items()
                    if not isinstance(v, torch.Tensor)}
            if mine and label:
                kept[label] = mine
        return kept

    def labels(self) -> list[list[list[str]]]:
        """Of each optimizer's each group, its parameters' labels; as they
        were when :meth:`items` looked last."""
        if self._labels is None:
            self._labels = self._find_labels()
        return self._labels

    def _find_labels(self) -> list[list[list[str]]]:
        found = []
        labels: dict[tuple[int, int], list[str]] = {}
        for label, p, stepped in self.parameters():
            labels.setdefault((id(stepped), id(p)), []).append(label)
        for stepped in self.optims:
            found.append([[x for p in g["params"]
                           for x in labels.get((id(stepped), id(p)), [])]
                          for g in stepped.groups])
        return found

    def others(self) -> list[dict[str, Any]]:
        """What the optimizers keep of no parameter."""
        return [stepped.others() for stepped in self.optims]

    def groups(self) -> list[list[dict[str, Any]]]:
        """Each optimizer's, without their parameters."""
        return [[{k: v for k, v in g.items() if k != "params"}
                 for g in stepped.groups] for stepped in self.optims]

    def optimizers(self, more: bool) -> dict[str, Any]:
        """What the optimizers hold beside tensors: their groups without
        their parameters, which :meth:`labels` has, and more where there is
        more."""
        kept: dict[str, Any] = {"groups": self.groups()}
        if more:
            kept["others"] = self.others()
            kept["scalars"] = self.scalars() if self.mixed else {}
        return kept

    def covered_by(self, saved: dict[str, Any]) -> bool:
        """Whether one rank's optimizers tell all of this one's."""
        names = {x for groups in saved["groups"] for g in groups
                 for x in g["params"]}
        return all(x in names for groups in self.labels() for g in groups
                   for x in g)

    def load_optimizers(self, saved: list[dict[str, Any]]) -> list[str]:
        """Gives back what :meth:`optimizers` told on the ranks that saved,
        with the labels of each group's parameters, this one's number first;
        sentences about what does not fit."""
        by_label: dict[str, dict[str, Any]] = {}
        scalars: dict[str, dict[str, Any]] = {}
        for s in reversed(saved):
            for groups in s["groups"]:
                for g in groups:
                    by_label.update(dict.fromkeys(g["params"], g))
            scalars.update(s.get("scalars", {}))
        said = []
        for i, (stepped, labels) in enumerate(zip(self.optims,
                                                  self.labels())):
            for n, (group, names) in enumerate(zip(stepped.groups, labels)):
                theirs = next((by_label[x] for x in names if x in by_label),
                              None)
                kind = theirs and of_another_kind(stepped, group, theirs)
                if kind and kind not in said:
                    said.append(kind)
                differ = load_group(group, names, by_label)
                if not names:
                    _load_empty(group, saved[0]["groups"], i, n)
                if differ:
                    said.append(f"group {n} has parameters of groups that "
                                f"differed in {', '.join(differ)}; all have "
                                "the first one's now")
            others = saved[0].get("others", [])
            stepped.state.update(others[i] if i < len(others) else {})
        own = {id(x): x.own() for x in self.optims}
        for label, p, stepped in self.parameters():
            if label in scalars and id(p) in own[id(stepped)]:
                stepped.state[p].update(scalars[label])
        return said

    def extra_state(self) -> dict[str, Any]:
        """What modules keep by ``get_extra_state()``."""
        return {name: m.get_extra_state() for name, m in self._extra.items()}

    def load_extra_state(self, saved: dict[str, Any]) -> None:
        for name, module in self._extra.items():
            if name in saved:
                module.set_extra_state(saved[name])

    def extra_names(self) -> set[str]:
        return set(self._extra)


def _load_empty(group: dict[str, Any], saved: list[list[dict[str, Any]]],
                i: int, n: int) -> None:
    """A group without parameters is known by its place alone."""
    if i < len(saved) and n < len(saved[i]) and not saved[i][n]["params"]:
        load_group(group, ["it"], {"it": saved[i][n]})
