from __future__ import annotations
import argparse


def run(arguments: argparse.Namespace) -> int:
    return 2
