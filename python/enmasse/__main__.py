"""`python -m enmasse` is the program `enmasse`."""
import os
import sys

from ._program import path

program = str(path())
os.execv(program, [program, *sys.argv[1:]])
