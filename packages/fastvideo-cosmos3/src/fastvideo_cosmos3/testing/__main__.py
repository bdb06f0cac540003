"""Write a tiny checkpoint of random weights into a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastvideo_cosmos3.testing.checkpoint import LAYOUTS, write_checkpoint


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(prog="python -m fastvideo_cosmos3.testing", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder that is new or empty")
    parser.add_argument("--layout", choices=LAYOUTS, default="diffusers", help="default: diffusers")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument("--no-sound", action="store_true", help="leave the sound decoder out")
    args = parser.parse_args()
    write_checkpoint(args.folder, layout=args.layout, seed=args.seed, has_sound=not args.no_sound)
    print(args.folder)


if __name__ == "__main__":
    main()
