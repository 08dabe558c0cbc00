"""A gate for the shell tool: denies commands that delete, with a reason. Standard library only."""

import json
import re
import sys

call = json.load(sys.stdin)
if re.search(r"\brm\b|\bmkfs\b|\bdd\b", call["tool_input"].get("command", "")):
    print("this agent may not delete anything; ask a person to do it", file=sys.stderr)
    sys.exit(2)
