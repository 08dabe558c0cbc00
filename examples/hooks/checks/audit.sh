#!/bin/sh
# Logs each finished call and its result as one line of JSON.
{ cat; echo; } >>audit.jsonl
