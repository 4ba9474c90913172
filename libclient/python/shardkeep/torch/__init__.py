# SPDX-License-Identifier: Apache-2.0
"""Shardkeep for PyTorch."""
